"""What a family's graphs take and give on the wire."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.server.graphs import described, manifest_of

from polyhead_server.repository.manifest import GraphName
from polyhead_server.repository.signature import Signature, signature_of


def test_a_token_family_without_a_tokeniser_needs_ids(repository: Path) -> None:
    manifest = manifest_of(repository, "tiny-tokens")
    bare = signature_of(manifest.model_copy(update={"tokenizer": None}), "fast")

    assert not {"text", "text_pair"} & set(bare.inputs)
    assert not bare.inputs["input_ids"].optional
    assert list(bare.outputs) == ["output", "pooled", "lengths"]


def test_text_pairs_are_for_tokenisers_that_take_them(repository: Path) -> None:
    manifest = manifest_of(repository, "tiny-tokens")
    assert manifest.tokenizer is not None
    older = manifest.tokenizer.model_copy(update={"pairs": False})
    signature = signature_of(manifest.model_copy(update={"tokenizer": older}), "fast")

    assert "text" in signature.inputs
    assert "text_pair" not in signature.inputs


def test_a_bound_by_a_fixed_axis_is_a_number(repository: Path) -> None:
    manifest = manifest_of(repository, "tiny")
    fast = manifest.graphs["fast"]
    choice = replace(fast.inputs[1], name="choice", axes=("B", "L"), below="H")
    graph = fast.model_copy(update={"inputs": [*fast.inputs, choice]})
    chosen = signature_of(manifest.model_copy(update={"graphs": {"fast": graph}}), "fast")

    assert chosen.inputs["choice"].below == 4


@pytest.mark.parametrize(("graph", "maps", "norms"), [("fast", 2, 0), ("attention", 4, 2)])
def test_working_memory_counts_every_attention_map(
    repository: Path, graph: GraphName, maps: int, norms: int
) -> None:
    needed = described(repository, "tiny", graph).working_bytes(3, 100)

    assert needed == 4 * 3 * (maps * 4 * 100 * 100 + norms * 4 * 100 + (8 + 1) * 16 * 100)


def test_working_memory_counts_the_maps_that_the_manifest_says(repository: Path) -> None:
    manifest = manifest_of(repository, "tiny")
    fast = manifest.graphs["fast"]
    before, more = (
        signature_of(manifest.model_copy(update={"graphs": {"fast": graph}}), "fast").working_bytes(3, 100)
        for graph in (fast.model_copy(update={"maps": None}), fast.model_copy(update={"maps": 11}))
    )

    assert fast.maps == 2 * 4
    assert more - before == 4 * 3 * (11 - 2 * 4) * 100 * 100


def with_activations(repository: Path, axes: tuple[str, ...] | None) -> Signature:
    manifest = manifest_of(repository, "tiny")
    graph = manifest.graphs["fast"].model_copy(update={"activations": axes})
    return signature_of(manifest.model_copy(update={"graphs": {"fast": graph}}), "fast")


def test_graphs_are_packed_where_the_manifest_says_so(repository: Path) -> None:
    assert described(repository, "tiny").packed
    assert not described(repository, "tiny-masked").packed
    assert not with_activations(repository, ("B", "T", "D")).packed
    assert not with_activations(repository, None).packed  # exported before there were others
    assert [spec.name for spec in described(repository, "tiny").lengths] == ["lengths"]


def test_working_memory_of_packed_graphs_counts_the_tokens_that_exist(repository: Path) -> None:
    packed, padded = (with_activations(repository, axes) for axes in (("N", "D"), ("B", "T", "D")))
    whole = padded.working_bytes(3, 100)

    assert packed.working_bytes(3, 100) == packed.working_bytes(3, 100, tokens=300) == whole
    assert padded.working_bytes(3, 100, tokens=200) == whole
    assert whole - packed.working_bytes(3, 100, tokens=200) == 4 * 8 * 16 * 100
    # What attention takes and gives is padded.
    assert whole - packed.working_bytes(3, 100, tokens=3) == 4 * 4 * 16 * 300
