"""Requests that run in pieces are answered as their sequences are alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export.test_architectures import MODERN, build
from tests.numerics import close

from polyhead_export import export_family
from polyhead_model.task_heads import TokenVectors
from polyhead_server.scheduling import Size
from polyhead_server.scheduling.batch import Piece
from polyhead_server.scheduling.dispatch import Dispatch

pytestmark = pytest.mark.slow  # exports every kind of graph; the rule is tested in `scheduling`

LENGTHS = np.array([5, 30, 1, 17, 30, 2, 9, 16], np.int32)
GRAPHS = ["modern", "modern.attention", "modern.rows", "modern.insight"]
D, K = MODERN.d_model, MODERN.head_size
LAST = np.full((len(LENGTHS), 1), 29)
PLACES: dict[str, dict[str, NDArray[Any]]] = {
    "modern.rows": {"rows": LAST},
    "modern.stream": {
        **dict.fromkeys(["read_tokens", "edit_tokens", "head_read_tokens", "head_edit_tokens"], LAST),
        **dict.fromkeys(["read_layers", "edit_layers", "head_read_layers", "head_edit_layers"], 0 * LAST),
        **dict.fromkeys(["head_read_heads", "head_edit_heads"], 0 * LAST),
        **dict.fromkeys(["edit_modes", "head_edit_modes"], 0 * LAST + 2),
        "edit_vectors": np.ones((len(LENGTHS), 1, D), np.float32),
        "head_edit_vectors": np.ones((len(LENGTHS), 1, K), np.float32),
    },
}
"""What is asked of the last token of the request, which most sequences do not have."""


@pytest.fixture
def pieces(in_threads: None, monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """Cuts every request into pieces of three sequences, whatever that costs; those that were cut."""
    made: list[Piece] = []
    real = Piece.__init__

    def cut(_: Dispatch, sequences: Sequence[Size]) -> list[list[int]]:
        places = list(range(len(sequences)))
        return [places[start : start + 3] for start in range(0, len(places), 3)]

    def init(piece: Piece, **fields: Any) -> None:
        made.append(piece)
        real(piece, **fields)

    monkeypatch.setattr(Dispatch, "pieces", cut)
    monkeypatch.setattr(Piece, "__init__", init)
    return made


@pytest.mark.parametrize("graph", GRAPHS)
def test_pieces_give_what_sequences_give_alone(
    serve: Any, architectures: Path, pieces: list[Piece], graph: str
) -> None:
    server = serve(models=architectures, threads=2, lanes=2)
    (signature,) = (
        each.signature for each in server.runtime.registry.models() if each.signature.name == graph
    )
    names = [spec.name for spec in signature.results if spec.datatype == "FP32"]
    random = np.random.default_rng(8)
    feeds: dict[str, NDArray[Any]] = {
        "input_ids": random.integers(4, 20, (len(LENGTHS), 30)),
        "lengths": LENGTHS,
    }
    if graph == "modern.rows":
        feeds["rows"] = LENGTHS[:, None].astype(np.int64) - 1

    together = server.infer(graph, feeds, outputs=names)

    assert [piece.work.size.rows for piece in pieces] == [3, 3, 2]
    assert [piece.sizes["T"] for piece in pieces] == [30, 16, 2]
    for row, length in enumerate(LENGTHS):
        one = {name: value[row : row + 1] for name, value in feeds.items()}
        alone = server.infer(graph, one | {"input_ids": one["input_ids"][:, :length]}, outputs=names)
        for name in names:
            whole, part = together[name][row : row + 1], alone[name]
            where = tuple(map(slice, part.shape))
            np.testing.assert_array_equal(whole[where], part)
            rest = whole.copy()
            rest[where] = 0
            assert not np.nan_to_num(rest).any()


@pytest.mark.parametrize("graph", PLACES)
def test_places_behind_the_end_of_a_piece(
    serve: Any, architectures: Path, pieces: list[Piece], graph: str
) -> None:
    server = serve(models=architectures, threads=2, lanes=2)
    ids = np.random.default_rng(8).integers(4, 20, (len(LENGTHS), 30))
    feeds: dict[str, NDArray[Any]] = {"input_ids": ids, "lengths": LENGTHS, **PLACES[graph]}

    together = server.infer(graph, feeds)

    assert [piece.sizes["T"] for piece in pieces] == [30, 16, 2]
    for name in ("attention_rows",) if graph == "modern.rows" else ("stream", "head_outputs"):
        there = np.abs(together[name]).reshape(len(LENGTHS), -1).any(axis=1)
        assert there.tolist() == (LENGTHS == 30).tolist()
    for row in range(len(LENGTHS)):
        alone = server.infer(graph, {name: value[row : row + 1] for name, value in feeds.items()})
        for name, value in alone.outputs.items():
            np.testing.assert_array_equal(together[name][row : row + 1], value)


def test_similarities_are_put_together(serve: Any, tmp_path: Path, pieces: list[Piece]) -> None:
    skipped, asked = 5, np.array([4, 1, 4, 0, 3, 2, 4, 4], np.int32)
    late = replace(MODERN, pooling=None, token_vectors=TokenVectors(skipped_ids=(skipped,)))
    export_family(build(late), "late", tmp_path, graphs=["maxsim"])
    server = serve(models=tmp_path, threads=2, lanes=2)
    random = np.random.default_rng(8)
    ids = random.integers(4, 20, (len(LENGTHS), 30))
    ids[2], ids[5, 1] = skipped, skipped
    ids[5, 0] = 6
    feeds = {"input_ids": ids, "lengths": LENGTHS}
    vectors = server.infer("late", feeds, outputs=["token_vectors"])["token_vectors"]
    queries = random.standard_normal((len(LENGTHS), 4, D)).astype(np.float32)
    queries[:, 0] = -3 * vectors[:, 0]  # less similar than any two vectors of length 1
    pieces.clear()

    found = server.infer("late.maxsim", feeds | {"query_vectors": queries, "query_lengths": asked})

    assert len(pieces) == 3
    similarities, largest = np.zeros((len(LENGTHS), 4, 30)), np.zeros((len(LENGTHS), 4))
    for row, length in enumerate(LENGTHS):
        compared = ids[row, :length] != skipped
        for token in range(asked[row]):
            products = vectors[row, :length].astype(np.float64) @ queries[row, token]
            similarities[row, token, :length] = np.where(compared, products, -1)
            largest[row, token] = products[compared].max(initial=-np.inf) if compared.any() else 0
    assert largest[5, 0] < -2
    close(found["similarities"], similarities.astype(np.float32), scale=10.0)
    close(found["max_similarities"], largest.astype(np.float32), scale=10.0)


def test_a_reply_whose_padding_is_not_zero_is_not_put_together(
    serve: Any, architectures: Path, pieces: list[Piece]
) -> None:
    server = serve(models=architectures, threads=2, lanes=2)
    ids = np.full((len(LENGTHS), 30), 5)

    keys = server.infer("modern.insight", {"input_ids": ids, "lengths": LENGTHS}, outputs=["top_keys"])[
        "top_keys"
    ]

    assert not pieces
    assert (keys[2, :, :, 1:] == -1).all()
