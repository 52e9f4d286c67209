"""What a request reads of the stream of its own sequences, and edits in it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from tests.conftest import write_tokenizer
from tests.numerics import close
from tests.server.conftest import Running, running
from tests.servers import quick_settings

from polyhead_export import TokenizerFile, export_family
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import messages as pb
from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.scheduling import (
    CostModel,
    DynamicAxes,
    Lanes,
    Planner,
    Size,
    Work,
    dynamic_axes_of,
    measure,
)
from polyhead_server.scheduling.batch import asked_bytes
from polyhead_server.scheduling.execution import execute, run_batch

L, H, D, K = 2, 2, 16, 8
CONFIG = EncoderConfig(
    d_model=D, heads=H, layers=L, feed_forward=24, vocabulary=32, positions=32, pooling="mean"
)
UNITS = {"Reads": 4 * D + 16, "Edits": 4 * D + 24, "HeadReads": 4 * K + 24, "HeadEdits": 4 * K + 32}
"""The bytes of what may be asked, each once."""
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(5, 32, (3, 7))
LENGTHS = np.array([7, 4, 1], np.int32)
FEEDS: dict[str, Any] = {"input_ids": IDS, "lengths": LENGTHS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    write_tokenizer(folder / "tokenizer.json")
    with torch.random.fork_rng():
        torch.manual_seed(9)
        encoder = Encoder(CONFIG).eval()
    file = TokenizerFile(path=folder / "tokenizer.json", max_tokens=16)
    export_family(encoder, "open", folder / "models", graphs=["stream"], tokenizer=file)
    return folder / "models"


@pytest.fixture(scope="module")
def opened(models: Path, device: str) -> Iterator[Running]:
    with running(quick_settings(models, device=device)) as one:
        yield one


def edits(prefix: str = "", *, batch: int = 3, count: int = 1, **values: Any) -> dict[str, Any]:
    """Edits of every sequence alike: of layer 1, token 0 and head 0 with a vector of ones, unless others are
    given."""
    names = ["layers", "tokens", "modes"] + (["heads"] if prefix else [])
    chosen = {"layers": 1, "tokens": 0, "heads": 0, "modes": 2} | values
    found: dict[str, Any] = {
        f"{prefix}edit_{name}": np.full((batch, count), chosen[name], np.int64) for name in names
    }
    vectors = np.ones((batch, count, K if prefix else D), np.float32) * values.get("vector", 1)
    return found | {f"{prefix}edit_vectors": vectors}


def reads(prefix: str = "", *, batch: int = 3, **values: Any) -> dict[str, Any]:
    names = ["layers", "tokens"] + (["heads"] if prefix else [])
    return {
        f"{prefix}read_{name}": np.broadcast_to(np.array(values.get(name, [0]), np.int64), (batch, 1))
        for name in names
    }


def test_reads_and_edits(opened: Running) -> None:
    plain = opened.infer("open.stream", FEEDS | reads(layers=[L], tokens=[0]))
    fast = opened.infer("open", FEEDS)
    close(plain["pooled"], fast["pooled"])
    close(plain["stream"][:, 0], fast["output"][:, 0])  # there is no norm behind the last layer

    found = opened.infer("open.stream", FEEDS | edits() | reads(layers=[1]) | reads("head_"))
    assert (found["stream"] == 1).all()  # what is read is what was put there
    assert (found["pooled"] != plain["pooled"]).any(axis=-1).all()
    assert found["head_outputs"].shape == (3, 1, K)
    silenced = opened.infer("open.stream", FEEDS | edits("head_", vector=0) | reads("head_", layers=[1]))
    assert not silenced["head_outputs"].any()


def test_what_is_behind_a_sequence_is_no_place(opened: Running) -> None:
    plain = opened.infer("open.stream", FEEDS)
    found = opened.infer("open.stream", FEEDS | edits(tokens=5) | reads(tokens=[5]))

    assert (found["pooled"][1:] == plain["pooled"][1:]).all()
    assert (found["pooled"][0] != plain["pooled"][0]).any()
    assert not found["stream"][1:].any()


def test_places_in_texts(opened: Running) -> None:
    texts = {"text": ["the cat sat on the mat", "a dog"]}
    found = opened.infer(
        "open.stream", texts | edits(batch=2, tokens=3) | reads(batch=2, tokens=[3], layers=[1])
    )

    assert (found["stream"] == 1).all()
    assert "edit_tokens[0, 0] must be between 0 and T-1 (7), was 8" in rejected(
        opened, texts | edits(batch=2, tokens=8)
    )


def test_metadata_says_what_they_may_be(opened: Running) -> None:
    metadata = opened.call("ModelMetadata", pb.ModelMetadataRequest(name="open.stream"))
    tensors = json.loads(metadata.properties["tensors"])

    axes = ["B", "Edits"]
    assert tensors["edit_layers"] == {"axes": axes, "role": "edit_layers", "fill": 0, "below": L + 1}
    assert tensors["edit_tokens"] == {"axes": axes, "role": "edit_tokens", "fill": 0, "below": "T"}
    assert tensors["edit_modes"] == {"axes": axes, "role": "edit_modes", "fill": 0, "below": 4}
    assert tensors["head_outputs"] == {"axes": ["B", "HeadReads", "K"], "role": "head_outputs"}


def rejected(opened: Running, inputs: Mapping[str, Any]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        opened.infer("open.stream", inputs)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (edits(layers=3), "edit_layers[0, 0] must be between 0 and 2, was 3"),
        (edits(tokens=7), "edit_tokens[0, 0] must be between 0 and T-1 (6), was 7"),
        (edits(tokens=-1), "edit_tokens[0, 0] must be between 0 and T-1 (6), was -1"),
        (edits(modes=4), "edit_modes[0, 0] must be between 0 and 3, was 4"),
        (edits(vector=np.nan), "edit_vectors[0, 0, 0] must be finite, was nan"),
        (edits("head_", layers=2), "head_edit_layers[0, 0] must be between 0 and 1, was 2"),
        (edits("head_", heads=2), "head_edit_heads[0, 0] must be between 0 and 1, was 2"),
        (reads(layers=[-1]), "read_layers[0, 0] must be between 0 and 2, was -1"),
        (reads("head_", tokens=[7]), "head_read_tokens[0, 0] must be between 0 and T-1 (6), was 7"),
        (
            {"read_layers": np.zeros((3, 1), np.int64)},
            "input read_tokens must be given together with input read_layers, as both have Reads",
        ),
        (
            edits() | {"edit_modes": np.ones((3, 2), np.int64)},
            "dimension 1 (Edits) of edit_modes must be 1, was 2",
        ),
        (
            {"read_layers": np.zeros((3, 0), np.int64), "read_tokens": np.zeros((3, 0), np.int64)},
            "dimension 1 (Reads) of read_layers must be at least 1, was 0",
        ),
    ],
)
def test_places_that_are_not_there(opened: Running, inputs: Mapping[str, Any], message: str) -> None:
    assert message in rejected(opened, {**FEEDS, **inputs})


def test_too_much_is_refused_before_it_takes_memory(opened: Running) -> None:
    many = np.zeros((1, 4_000_000), np.int64)

    with pytest.raises(grpc.RpcError) as caught:
        opened.infer("open.stream", {"input_ids": IDS[:1], "read_layers": many, "read_tokens": many})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def run_together(
    engine: Engine, items: Sequence[Any], dynamic: DynamicAxes
) -> Iterator[tuple[list[Any], Any]]:
    """Run works of which all are wanted."""
    session = Lanes(engine=engine, costs=CostModel({Size.full(1, 1): 1.0}))
    return run_batch(
        session, [*items], dynamic=dynamic, planner=Planner(packed=True), wanted=lambda some: some
    )


def direct(models: Path, device: str) -> tuple[Engine, DynamicAxes, Callable[..., Work]]:
    """The engine, its dynamic axes, and what makes work of rows of `IDS` and what is asked of them."""
    folder = models / "open" / "1"
    signature = signature_of(read_manifest(folder, family="open", version=1), "stream")
    engine = Engine(folder / "stream.onnx", signature=signature, device=choose_device(device), threads=1)
    dynamic = dynamic_axes_of(signature)

    def work(rows: slice, **asked: Any) -> Work:
        feeds = signature.example(len(IDS[rows]), 1) | {
            "input_ids": IDS[rows, : int(LENGTHS[rows].max())],
            "lengths": LENGTHS[rows],
            **asked,
        }
        size, real_tokens = measure(feeds, dynamic)
        return Work(feeds=feeds, outputs=engine.outputs, size=size, real_tokens=real_tokens)

    return engine, dynamic, work


def test_requests_with_other_edits_share_a_batch(
    models: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, dynamic, work = direct(models, device)
    many = reads(batch=2, layers=[1]) | edits(batch=2, count=3, tokens=[[0, 0, 1]], modes=[[2, 0, 3]])
    works = [work(np.s_[2:]), work(np.s_[:2], **many), work(np.s_[2:], **edits("head_", batch=1))]
    alone = [execute(engine, [each], dynamic).outputs[0] for each in works]

    together = execute(engine, works, dynamic)

    assert together.execution.requests == 3
    assert [each.size.longest for each in works] == [1, 7, 1]  # edits are no tokens
    for found, expected in zip(together.outputs, alone, strict=True):
        for name, value in found.items():
            close(value, expected[name])
    bytes_asked = 4 * (sum(UNITS.values()) + 2 * UNITS["Edits"])
    assert asked_bytes(works, dynamic.sizes(works), dynamic) == bytes_asked

    # What one asks for is not made for any number of others.
    items = [SimpleNamespace(work=each) for each in works]
    monkeypatch.setattr("polyhead_server.scheduling.execution._MOST_ASKED", bytes_asked - 1)
    runs = [some for some, _ in run_together(engine, items, dynamic)]
    assert runs == [items[:1], items[1:]]


def test_what_is_asked_counts_as_tokens(models: Path, device: str) -> None:
    engine, dynamic, work = direct(models, device)
    count = 500_000
    reads_of = {f"read_{name}": np.zeros((1, count), np.int64) for name in ("layers", "tokens")}
    few, many = work(np.s_[2:]), work(np.s_[2:], **reads_of)

    assert few.size == Size.full(1, 1)
    asked = sum(UNITS.values()) + (count - 1) * UNITS["Reads"]
    assert many.size == Size(1, 1, 1 + asked // (8 * 4 * D))
    # Each is more than may be joined, and so runs alone.
    items = [SimpleNamespace(work=each) for each in (many, many)]
    runs = list(run_together(engine, items, dynamic))
    assert [some for some, _ in runs] == [items[:1], items[1:]]
    for _, result in runs:
        assert not isinstance(result, Exception)
        assert result.execution.padded_tokens == 1
        assert result.outputs[0]["stream"].shape == (1, count, D)


def test_memory_is_planned_without_what_is_asked(models: Path) -> None:
    """Of runs of several requests; those of one are known."""
    manifest = read_manifest(models / "open" / "1", family="open", version=1)
    signature = signature_of(manifest, "stream")

    assert signature.working_bytes(2, 30) == signature.working_bytes(2, 30, signature.example_sizes(2, 30))
