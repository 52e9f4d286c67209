"""The stored table has what the command measures, and shows what lesson 6 says of it."""

import json
import statistics
from typing import Any

import pytest
import torch

from heads_matter import EXPERIMENTS, OF_LETTERS, SEEDS, STORED, measure
from letters import Text

ALL = EXPERIMENTS | OF_LETTERS


@pytest.fixture(scope="module")
def stored() -> dict[str, list[dict[str, Any]]]:
    return json.loads(STORED.read_text())  # type: ignore[no-any-return]


def means(rows: list[dict[str, Any]]) -> dict[int, float]:
    return {row["heads"]: statistics.fmean(row["by_seed"]) for row in rows}


def test_every_setting_is_stored_with_every_seed(stored: dict[str, list[dict[str, Any]]]) -> None:
    settings = {
        name: [{key: row[key] for key in row if key != "by_seed"} for row in rows]
        for name, rows in stored.items()
    }
    assert settings == ALL
    assert all(len(row["by_seed"]) == len(SEEDS) for rows in stored.values() for row in rows)


def test_the_middle_wins_and_both_ends_fail(stored: dict[str, list[dict[str, Any]]]) -> None:
    right = means(stored["equal total width"])
    assert right[1] < right[2] < right[4]
    assert right[8] > 0.9
    assert right[16] < right[8]
    assert max(right[1], right[32]) < 0.5
    bits = means(stored["hidden letter"])
    assert max(bits[4], bits[8]) < min(bits[1], bits[2], bits[16], bits[32])


def test_controls_tell_the_number_of_heads_from_their_width(stored: dict[str, list[dict[str, Any]]]) -> None:
    one = means(stored["equal total width"])[1]
    assert all(abs(statistics.fmean(row["by_seed"]) - one) < 0.05 for row in stored["one wide head"])
    assert means(stored["width 8 each"])[16] > 0.95


def test_what_is_not_general_is_stored(stored: dict[str, list[dict[str, Any]]]) -> None:
    assert means(stored["250 steps"])[8] < means(stored["250 steps"])[4]
    assert means(stored["2000 steps"])[16] > 0.95
    assert means(stored["2000 steps"])[1] < 0.5
    assert means(stored["one relation"])[1] > 0.95
    assert means(stored["in any order"])[1] > 0.8
    hidden, following = means(stored["hidden letter"]), means(stored["next letter"])
    assert following[1] - following[8] < 0.6 * (hidden[1] - hidden[8])


def test_measuring_gives_a_result_for_each_seed() -> None:
    torch.set_num_threads(1)
    row = measure({"heads": 2, "steps": 1}, None)
    assert {key: row[key] for key in ("heads", "steps")} == {"heads": 2, "steps": 1}
    assert len(set(row["by_seed"])) > 1
    letters = measure({"heads": 2, "steps": 1}, Text(torch.arange(200) % 27, torch.arange(100) % 27))
    assert all(3 < bits < 7 for bits in letters["by_seed"])
