"""Requests that run in pieces are answered as their sequences are alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.numerics import close

from polyhead_server.scheduling import Size
from polyhead_server.scheduling.dispatch import Dispatch
from polyhead_server.scheduling.splitting import Piece

pytestmark = pytest.mark.slow  # exports every kind of graph; the rule is tested in `scheduling`

LENGTHS = np.array([5, 30, 1, 17, 30, 2, 9, 16], np.int32)
GRAPHS = ["modern", "modern.attention", "modern.rows", "modern.insight"]


@pytest.fixture
def pieces(in_threads: None, monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """Cuts every request into pieces of three sequences, whatever that costs; those that were cut."""
    made: list[Piece] = []
    real = Piece.__init__

    def cut(_: Dispatch, sequences: Sequence[Size]) -> list[list[int]]:
        places = list(range(len(sequences)))
        return [places[start : start + 3] for start in range(0, len(places), 3)]

    def init(piece: Piece, *arguments: Any) -> None:
        made.append(piece)
        real(piece, *arguments)

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
    assert [piece.sizes[0] for piece in pieces] == [30, 16, 2]
    for row, length in enumerate(LENGTHS):
        one = {name: value[row : row + 1] for name, value in feeds.items()}
        alone = server.infer(graph, one | {"input_ids": one["input_ids"][:, :length]}, outputs=names)
        for name in names:
            whole, part = together[name][row : row + 1], alone[name]
            where = tuple(map(slice, part.shape))
            close(whole[where], part, scale=max(1.0, float(np.nan_to_num(np.abs(part)).max())))
            rest = whole.copy()
            rest[where] = 0
            assert not np.nan_to_num(rest).any()


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
