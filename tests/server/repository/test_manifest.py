"""Reading manifests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.graphs import manifest_of

from polyhead_server.errors import RepositoryError
from polyhead_server.repository.manifest import Manifest, read_manifest

Edit = Callable[[Callable[[dict[str, Any]], None]], None]


def read(folder: Path) -> Manifest:
    return read_manifest(folder, family="tiny", version=1)


def test_what_the_export_writes_is_read(folder: Path) -> None:
    manifest = read(folder)

    assert manifest.encoder.heads == 4
    assert manifest.encoder.head_size == 4
    assert manifest.served_name("fast") == "tiny"
    assert manifest.served_name("attention") == "tiny.attention"
    assert manifest.text_max_tokens is None


def test_text_is_limited_by_the_tokeniser_and_by_the_graph(repository: Path) -> None:
    manifest = manifest_of(repository, "tiny-tokens")
    assert manifest.tokenizer is not None
    assert manifest.text_max_tokens == 16

    generous = manifest.tokenizer.model_copy(update={"max_tokens": 512})
    assert manifest.model_copy(update={"tokenizer": generous}).text_max_tokens == 32


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_precisions(folder: Path, edit: Edit, precision: str) -> None:
    edit(lambda fields: fields.update(precision=precision))

    assert read(folder).precision == precision


def test_unknown_fields_of_the_same_format_are_passed_over(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields.update(colour="red"))

    assert read(folder).name == "tiny"


@pytest.mark.parametrize(("number", "remedy"), [(3, "update polyhead"), (1, "export it again")])
def test_another_format_is_refused_with_what_to_do(
    folder: Path, edit: Edit, number: int, remedy: str
) -> None:
    edit(lambda fields: fields.update(format=number, graphs="something else entirely"))

    with pytest.raises(RepositoryError, match=f"has format {number}; this server reads format 2: {remedy}"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, r"name must be its folder's \(tiny\), was other"),
        ({"version": 2}, r"version must be its folder's \(1\), was 2"),
        ({"limits": 512}, "limits: Input should be"),
        ({"encoder": {"d_model": 16}}, r"not valid: encoder\.heads: Field required"),
        ({"sizes": {"B": 4}}, "B must have no size"),
        ({"sizes": {"D": 0}}, "not valid: sizes"),
        ({"precision": "int4"}, "not valid: precision: Input should be 'fp32', 'fp16', 'bf16' or 'int8'"),
        ({"graphs": {}}, "not valid: graphs"),
        ({"files": {}}, r"files must list model\.onnx"),
        ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "not valid: files"),
        ({"tokenizer": {"file": "/etc/passwd"}}, r"not valid: tokenizer\.file"),
        ({"tokenizer": {"file": "tokenizer.json"}}, r"files must list tokenizer\.json"),
    ],
)
def test_a_wrong_manifest_is_refused(folder: Path, edit: Edit, change: dict[str, Any], message: str) -> None:
    edit(lambda fields: fields.update(change))

    with pytest.raises(RepositoryError, match=message):
        read(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100_000, '{"format": true}'])
def test_what_is_no_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)

    with pytest.raises(RepositoryError, match="is not valid"):
        read(folder)


def test_a_missing_or_huge_manifest_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_text(" " * (4 * 2**20 + 1))
    with pytest.raises(RepositoryError, match="must have at most 4194304 bytes"):
        read(folder)

    (folder / "manifest.json").unlink()
    with pytest.raises(RepositoryError, match=r"manifest\.json cannot be read: No such file"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"datatype": "FP33"}, "Value error, datatype must be one of BOOL"),
        ({"axes": ["T", "B", "D"]}, "must have B first and nowhere else, was T, B, D"),
        ({"axes": ["B", "T", "Q"]}, "axis Q must be that of an input, or have a size"),
        ({"layers": [0]}, "attention.0: layers must be one for each index of their axis, and different"),
        ({"axes": ["B", "L", "T"], "layers": [1, 1]}, "layers must be one for each index of their axis"),
        ({"axes": ["B", "T", "H"], "labels": ["a"]}, "labels must be one for each index of their axis"),
        ({"name": "lengths"}, "each output must have a name of its own, were output, lengths, lengths"),
    ],
)
def test_a_graph_that_cannot_be_described_is_left_out(
    folder: Path, edit: Edit, change: dict[str, Any], problem: str
) -> None:
    def spoil(fields: dict[str, Any]) -> None:
        outputs = fields["graphs"]["attention"]["outputs"]
        outputs[1] |= change
        if change.get("name"):
            outputs[2] |= change

    edit(spoil)

    manifest = read(folder)
    assert list(manifest.graphs) == ["fast"]
    assert list(manifest.skipped) == ["attention"]
    assert problem in manifest.skipped["attention"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"activations": ["N"]}, "activations must be B, T, D or N, D, were N"),
        (
            {
                "activations": ["N", "D"],
                "inputs": [{"name": "x", "datatype": "FP32", "axes": ["B", "T", "D"]}],
            },
            "activations N, D need an input with the lengths of sequences",
        ),
        (
            {
                "activations": ["B", "T", "D"],
                "inputs": [{"name": "i", "datatype": "INT64", "axes": ["B", "M"]}],
            },
            "activations: axis T must be that of an input, or have a size",
        ),
    ],
)
def test_a_graph_of_other_activations_is_left_out(
    folder: Path, edit: Edit, change: dict[str, Any], problem: str
) -> None:
    output = {"name": "output", "datatype": "FP32", "axes": ["B", "D"]}
    edit(lambda fields: fields["graphs"]["attention"].update({"outputs": [output]} | change))

    manifest = read(folder)
    assert list(manifest.graphs) == ["fast"]
    assert problem in manifest.skipped["attention"]


@pytest.mark.parametrize("change", ["input", "size"])
def test_the_tokens_that_exist_are_no_axis_of_an_input(folder: Path, edit: Edit, change: str) -> None:
    def spoil(fields: dict[str, Any]) -> None:
        if change == "size":
            fields["sizes"]["N"] = 7
        for graph in fields["graphs"].values():
            if change == "input":
                graph["inputs"].append({"name": "n", "datatype": "FP32", "axes": ["B", "N"], "fill": 0.0})

    edit(spoil)

    with pytest.raises(RepositoryError, match="N must be no axis of an input, and have no size"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"fill": 0.0}, "an input with an axis beside B must be needed"),
        ({"fill": "S"}, "axis S must be that of an input, or have a size"),
        ({"below": "S"}, "axis S must be that of an input, or have a size"),
    ],
)
def test_where_no_graph_can_be_described_the_version_is_refused(
    folder: Path, edit: Edit, change: dict[str, Any], problem: str
) -> None:
    def spoil(fields: dict[str, Any]) -> None:
        for graph in fields["graphs"].values():
            place = 1 if change.get("fill") == "S" else 0
            graph["inputs"][place] |= change

    edit(spoil)

    with pytest.raises(RepositoryError, match=f"not valid: graphs.fast: .*{problem}"):
        read(folder)


def test_what_a_manifest_holds_does_not_flood_the_index(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields["files"].update({"/" * 10**6: {}}))

    with pytest.raises(RepositoryError, match="not valid: files") as caught:
        read(folder)
    assert len(str(caught.value)) <= 1500
