"""What `make fleet` removes from a sweep, and what it demands of the plans that are left."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.load.fleet.known_server import swept

from fleet import ONE_LENGTH, ONE_POINT, Removal, conditions, without
from polyhead_load.fleet.measured import read_measured

RIGHT = Removal(
    tokens=64,
    load="50%",
    removed=ONE_POINT,
    rate=100.0,
    p99_ms={"value": 10.0, "low": 9.0, "high": 11.0},
    planned=110.0,
    planned_between=(105.0, 112.0),
    p99_ratio=1.0,
    limited_by="p99",
)
ALL_RIGHT = [RIGHT] * 12 + [replace(RIGHT, removed=ONE_LENGTH)] * 4


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


LOW = replace(RIGHT, planned=84.0, planned_between=(70.0, 86.0))
NONE = replace(RIGHT, planned=None, planned_between=None)


@pytest.mark.parametrize(
    ("rows", "hold", "seen"),
    [
        (ALL_RIGHT, [True] * 6, "12 of 12; median 1.10, 1.10 to 1.10"),
        (
            [replace(RIGHT, planned=116.0, planned_between=(114.0, 130.0)), *ALL_RIGHT[1:]],
            [True] * 6,
            "11 of 12; median 1.10, 1.10 to 1.16",
        ),
        ([LOW] * 3 + ALL_RIGHT[3:], [True] * 6, "9 of 12; median 1.10, 0.84 to 1.10"),
        (
            [LOW] * 4 + ALL_RIGHT[4:],
            [True, False, True, True, True, True],
            "8 of 12; median 1.10, 0.84 to 1.10",
        ),
        (
            [replace(LOW, planned_between=(70.0, 84.9)), *ALL_RIGHT[1:]],
            [True, True, False, True, True, True],
            "11 of 12; median 1.10, 0.84 to 1.10",
        ),
        (
            [replace(RIGHT, planned=120.0, planned_between=(115.1, 130.0)), *ALL_RIGHT[1:]],
            [True, True, False, True, True, True],
            "11 of 12; median 1.10, 1.10 to 1.20",
        ),
        (
            [NONE, *ALL_RIGHT[1:]],
            [True, True, False, True, True, True],
            "11 of 12; median 1.10, 1.10 to 1.10; 1 without a plan",
        ),
        (ALL_RIGHT[1:], [False, *[True] * 5], "11 of 11; median 1.10, 1.10 to 1.10"),
        ([], [False] * 6, "0 of 0"),
    ],
)
def test_every_plan_counts(rows: list[Removal], hold: list[bool], seen: str) -> None:
    found = conditions(rows)

    assert [condition.holds for condition in found] == hold
    assert found[1].seen == seen


def test_the_two_kinds_of_removal_are_judged_apart() -> None:
    wrong = replace(RIGHT, removed=ONE_LENGTH, planned=200.0, planned_between=(190.0, 210.0))

    found = conditions([*ALL_RIGHT[:-2], wrong, wrong])

    assert [one.holds for one in found] == [True, True, True, True, False, False]
