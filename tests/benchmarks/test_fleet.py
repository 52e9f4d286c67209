"""What `make fleet` removes from a sweep, and what it demands of the plans that are left."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.load.fleet.known_server import swept

from benchmarks.fleet import ONE_LENGTH, ONE_POINT, Removal, conditions, removals, verdicts, without
from polyhead_load.fleet.measured import read_measured

RIGHT = Removal(
    tokens=64,
    load="60%",
    removed=ONE_POINT,
    rate=100.0,
    p99=0.01,
    planned=110.0,
)


def rounds(*planned: float, removed: str = ONE_POINT, tokens: int = 64, load: str = "60%") -> list[Removal]:
    return [replace(RIGHT, planned=each, removed=removed, tokens=tokens, load=load) for each in planned]


def all_points(changes: Mapping[tuple[str, int, str], Sequence[float]] | None = None) -> list[Removal]:
    points = [(ONE_POINT, tokens, load) for tokens in (32, 64, 128) for load in ("40%", "60%", "80%")]
    points += [(ONE_LENGTH, 64, load) for load in ("40%", "60%", "80%")]
    return [
        row
        for removed, tokens, load in points
        for row in rounds(
            *(changes or {}).get((removed, tokens, load), (108, 110, 112, 110)),
            removed=removed,
            tokens=tokens,
            load=load,
        )
    ]


def test_what_is_removed_is_not_seen_by_the_plan(tmp_path: Path) -> None:
    run = swept(tmp_path / "run", tokens=[32, 64], loads=["single", "50%", "70%"], requests=400)

    with without(run, 64, "50%") as left:
        assert {(point.tokens, point.load) for point in read_measured(left).points} == {
            (32, "50%"),
            (32, "70%"),
            (64, "70%"),
        }
    with without(run, 64) as left:
        measured = read_measured(left)
        assert list(measured.capacities) == [32]
        assert {point.tokens for point in measured.points} == {32}
    assert removals(run) == []  # a length is missing, which is no fault of a plan


def test_all_rounds_of_a_point_make_one_verdict() -> None:
    (found,) = verdicts(rounds(80, 100, 125))

    assert found.ratio.value == pytest.approx(1)
    assert found.ratio.low == pytest.approx(1 / found.ratio.high)
    assert found.within
    assert not found.contradicted
    assert not found.sharp
    assert verdicts(rounds(100, 100)) == []


def test_no_round_decides_alone() -> None:
    """Where a plan says that no fleet can meet the limit, or where any could."""
    assert [row.ratio for row in rounds(0, 60, 1000)] == [0.5, 0.6, 2]


@pytest.mark.parametrize(
    ("changes", "fails", "seen"),
    [
        ({}, [], "9 of 9; median 1.10, 1.10 to 1.10"),
        ({(ONE_POINT, 32, "40%"): (118, 116, 110)}, [], "9 of 9; median 1.10, 1.10 to 1.15"),
        # Too high, but the interval reaches into the tolerance.
        ({(ONE_POINT, 32, "40%"): (100, 120, 140)}, [], "8 of 9; median 1.10, 1.10 to 1.19"),
        ({(ONE_POINT, 32, "40%"): (120, 121, 122)}, [2], "8 of 9; median 1.10, 1.10 to 1.21"),
        ({(ONE_POINT, 32, "40%"): (80, 81, 82)}, [2], "8 of 9; median 1.10, 0.81 to 1.10"),
        ({(ONE_POINT, 32, "40%"): (0, 0, 0)}, [2], "8 of 9; median 1.10, 0.50 to 1.10"),
        (
            {(ONE_POINT, 32, load): (60, 80, 100) for load in ("40%", "60%", "80%")},
            [1],
            "6 of 9; median 1.10, 0.78 to 1.10",
        ),
        (
            {
                (ONE_POINT, tokens, load): (80, 100, 125)
                for tokens in (32, 64)
                for load in ("40%", "60%", "80%")
            },
            [3],
            "9 of 9; median 1.00, 1.00 to 1.10",
        ),
        ({(ONE_POINT, 32, "40%"): (110, 110)}, [0], "8 of 9; median 1.10, 1.10 to 1.10"),
        ({(ONE_LENGTH, 64, "40%"): (120, 121, 122)}, [5, 6], "9 of 9; median 1.10, 1.10 to 1.10"),
    ],
)
def test_every_point_counts(
    changes: dict[tuple[str, int, str], Sequence[float]], fails: list[int], seen: str
) -> None:
    held = conditions(verdicts(all_points(changes)))

    assert [number for number, one in enumerate(held) if not one.holds] == fails
    assert held[1].seen == seen


def test_nothing_measured_holds_nothing() -> None:
    assert not any(one.holds for one in conditions([]))
