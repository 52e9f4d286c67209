"""What a request reads of the stream of its own sequences, and edits in it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tests.numerics import close
from tests.server.conftest import Running, fails, running
from tests.server.graphs import OpenGraph, described
from tests.servers import quick_settings

from polyhead_server.scheduling import CostModel, Lanes, Planner, Size, Work
from polyhead_server.scheduling.execution import run_batch

L, H, D, K = 2, 2, 16, 8
UNITS = {"Reads": 4 * D + 16, "Edits": 4 * D + 24, "HeadReads": 4 * K + 24, "HeadEdits": 4 * K + 32}
"""The bytes of what may be asked, each once."""
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(5, 32, (3, 7))
LENGTHS = np.array([7, 4, 1], np.int32)
FEEDS: dict[str, Any] = {"input_ids": IDS, "lengths": LENGTHS}


@pytest.fixture(scope="module")
def opened(probed_models: Path, device: str) -> Iterator[Running]:
    with running(quick_settings(probed_models, device=device)) as one:
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
    plain = opened.infer("probed.stream", FEEDS | reads(layers=[L], tokens=[0]))
    fast = opened.infer("probed", FEEDS)
    close(plain["pooled"], fast["pooled"])
    close(plain["stream"][:, 0], fast["output"][:, 0])  # there is no norm behind the last layer

    found = opened.infer("probed.stream", FEEDS | edits() | reads(layers=[1]) | reads("head_"))
    assert (found["stream"] == 1).all()  # what is read is what was put there
    assert (found["pooled"] != plain["pooled"]).any(axis=-1).all()
    assert found["head_outputs"].shape == (3, 1, K)
    silenced = opened.infer("probed.stream", FEEDS | edits("head_", vector=0) | reads("head_", layers=[1]))
    assert not silenced["head_outputs"].any()


def test_what_is_behind_a_sequence_is_no_place(opened: Running) -> None:
    plain = opened.infer("probed.stream", FEEDS)
    found = opened.infer("probed.stream", FEEDS | edits(tokens=5) | reads(tokens=[5]))

    assert (found["pooled"][1:] == plain["pooled"][1:]).all()
    assert (found["pooled"][0] != plain["pooled"][0]).any()
    assert not found["stream"][1:].any()


def test_places_in_texts(opened: Running) -> None:
    texts = {"text": ["the cat sat on the mat", "a dog"]}
    found = opened.infer(
        "probed.stream", texts | edits(batch=2, tokens=3) | reads(batch=2, tokens=[3], layers=[1])
    )

    assert (found["stream"] == 1).all()
    assert "edit_tokens[0, 0] must be between 0 and T-1 (7), was 8" in opened.rejected(
        "probed.stream", texts | edits(batch=2, tokens=8)
    )


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
    assert message in opened.rejected("probed.stream", {**FEEDS, **inputs})


def test_too_much_is_refused_before_it_takes_memory(opened: Running) -> None:
    many = np.zeros((1, 4_000_000), np.int64)

    with fails(grpc.StatusCode.RESOURCE_EXHAUSTED):
        opened.infer("probed.stream", {"input_ids": IDS[:1], "read_layers": many, "read_tokens": many})


class OpenStream(OpenGraph):
    """The graph of the stream, for rows of `IDS` and what is asked of them."""

    def __init__(self, models: Path, device: str) -> None:
        super().__init__(models, "probed", "stream", device)

    def rows(self, rows: slice, **asked: Any) -> Work:
        feeds = self.signature.example(len(IDS[rows]), 1) | {
            "input_ids": IDS[rows, : int(LENGTHS[rows].max())],
            "lengths": LENGTHS[rows],
            **asked,
        }
        return self.work(feeds)


def run_together(graph: "OpenStream", items: Sequence[Any]) -> list[tuple[list[Any], Any]]:
    """Run works of which all are wanted."""
    runs: list[tuple[list[Any], Any]] = []
    session = Lanes(engine=graph.engine, costs=CostModel({Size.full(1, 1): 1.0}))
    planner = Planner(packed=True)
    run_batch(
        session,
        [*items],
        planner.joint([item.work.size for item in items]),
        signature=graph.signature,
        planner=planner,
        wanted=lambda some: some,
        send=lambda some, result: runs.append((some, result)),
    )
    return runs


def test_requests_with_other_edits_share_a_batch(
    probed_models: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = OpenStream(probed_models, device)
    many = reads(batch=2, layers=[1]) | edits(batch=2, count=3, tokens=[[0, 0, 1]], modes=[[2, 0, 3]])
    works = [
        graph.rows(np.s_[2:]),
        graph.rows(np.s_[:2], **many),
        graph.rows(np.s_[2:], **edits("head_", batch=1)),
    ]
    alone = [graph.run([each]).outputs[0] for each in works]

    together = graph.run(works)

    assert together.execution.requests == 3
    assert [each.size.longest for each in works] == [1, 7, 1]  # edits are no tokens
    for found, expected in zip(together.outputs, alone, strict=True):
        for name, value in found.items():
            close(value, expected[name])
    bytes_asked = 4 * (sum(UNITS.values()) + 2 * UNITS["Edits"])
    assert graph.joint(works).asked_bytes() == bytes_asked

    # What one asks for is not made for any number of others.
    items = [SimpleNamespace(work=each) for each in works]
    monkeypatch.setattr("polyhead_server.scheduling.execution._MOST_ASKED", bytes_asked - 1)
    runs = [some for some, _ in run_together(graph, items)]
    assert runs == [items[:1], items[1:]]


def test_what_is_asked_counts_as_tokens(probed_models: Path, device: str) -> None:
    graph = OpenStream(probed_models, device)
    count = 500_000
    reads_of = {f"read_{name}": np.zeros((1, count), np.int64) for name in ("layers", "tokens")}
    few, many = graph.rows(np.s_[2:]), graph.rows(np.s_[2:], **reads_of)

    assert few.size == Size.full(1, 1)
    asked = sum(UNITS.values()) + (count - 1) * UNITS["Reads"]
    assert many.size == Size(1, 1, 1 + asked // (8 * 4 * D))
    # Each is more than may be joined, and so runs alone.
    items = [SimpleNamespace(work=each) for each in (many, many)]
    runs = run_together(graph, items)
    assert [some for some, _ in runs] == [items[:1], items[1:]]
    for _, result in runs:
        assert not isinstance(result, Exception)
        assert result.execution.padded_tokens == 1
        assert result.outputs[0]["stream"].shape == (1, count, D)


def test_memory_is_planned_without_what_is_asked(probed_models: Path) -> None:
    """Of runs of several requests; those of one are known."""
    signature = described(probed_models, "probed", "stream")

    assert signature.working_bytes(2, 30) == signature.working_bytes(2, 30, signature.example_sizes(2, 30))
