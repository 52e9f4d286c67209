"""Contenders take turns; ratios are of one round, their median is judged, and a page says so."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.frame import (
    Condition,
    Rounds,
    Sample,
    at_least,
    at_most,
    compare,
    finish,
    in_turn,
    markdown_table,
    options,
    paired_ratios,
    time_in_turn,
)

HELD = Condition(name="fast", holds=True, seen="1 ms")
MISSED = Condition(name="small", holds=False, seen="9 MiB")


def test_every_second_round_goes_backwards() -> None:
    assert list(in_turn({"a": 1, "b": 2}, 3)) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_calls_are_run_once_before_they_are_timed_in_both_directions() -> None:
    order: list[str] = []
    seconds = iter(range(100))

    taken = time_in_turn(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        seconds=0,
        clock=lambda: float(next(seconds)),
    )

    assert "".join(order) == "ab" + "abba" * 3
    assert taken == {"a": [1.0] * 6, "b": [1.0] * 6}


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    found = compare("it", {name: partial(measure, name) for name in "ab"}, 2)

    assert order == ["a", "b", "b", "a"]
    assert found == {"a": [1, 4], "b": [2, 3]}


def test_ratios_are_of_the_same_turn_and_ascend() -> None:
    assert paired_ratios([4.0, 1.0, 3.0], [2.0, 1.0, 1.0]) == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([1.0, 2.0], [1.0])


def test_the_strongest_has_the_best_median() -> None:
    """The best of each round would be the luckier one."""
    values = {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0], "c": [9.0, 1.0, 1.0]}
    samples = {name: [Sample(rate=each, p50_ms=each) for each in of] for name, of in values.items()}
    compared = Rounds(samples=samples)

    assert compared.strongest("abc") == "b"
    assert compared.strongest("abc", "p50_ms") == "c"
    assert compared.ratios("a", "b") == [0.5, 0.75, 5 / 6]


def test_a_row_is_compared_with_another() -> None:
    served = [
        Sample(rate=rate, p50_ms=8, p99_ms=20, client_cores=0.1, server_cores=1.5) for rate in (90, 100, 110)
    ]
    loads = Rounds(samples={"a": served, "b": [Sample(rate=50, p50_ms=16, batch=4, errors=1)] * 3})

    assert " | ".join(loads.row("a", "a").values()) == "**a** | 100 |  | 8 |  | 20 |  | 0.10 / 1.50 | 0"
    assert " | ".join(loads.row("b", "a").values()) == (
        "b | 50 | 0.50 (0.45–0.56) | 16 | 2.00 (2.00–2.00) |  | 4.0 |  | 3"
    )


def test_the_median_round_is_judged() -> None:
    ratios = [0.9, 1.0, 1.2]

    assert at_least("it", 1.0, "that", ratios) == Condition(
        name="it ≥ 1 × that", holds=True, seen="1.000 (0.900–1.200)"
    )
    assert not at_least("it", 1.01, "that", ratios).holds
    assert at_most("it", 1.0, "that", ratios).holds
    assert not at_most("it", 0.99, "that", ratios).holds


def test_a_result_is_written_and_its_conditions_are_the_status(tmp_path: Path) -> None:
    out = tmp_path / "bench" / "it"

    chosen = options("It.", "it").parse_args(["--out", str(out)])

    assert finish(chosen, "make it", "It", [], conditions=[HELD], facts={}) == 0
    assert finish(
        chosen, "make it", "It", ["the end"], conditions=[HELD, MISSED], intro=["Why."], facts={"n": 1}
    )

    written = json.loads(out.with_suffix(".json").read_text())
    assert written["conditions"][1] == {"name": "small", "holds": False, "seen": "9 MiB"}
    assert written["n"] == 1
    assert written["stolen_cores"] >= 0
    assert {"began", "cores", "Python", "polyhead"} <= written["fingerprint"].keys()
    title, _, made, *lines = out.with_suffix(".md").read_text().splitlines()
    assert title == "# It"
    assert made.startswith("Made by `make it` ([how](../../docs/benchmarks.md)): ")
    assert "Meanwhile other processes kept " in made
    assert lines == [
        "",
        "Why.",
        "",
        "| what must hold |  | seen |",
        "|---|---|---|",
        "| fast | yes | 1 ms |",
        "| small | **no** | 9 MiB |",
        "",
        "the end",
    ]


def test_a_table_without_rows_is_nothing() -> None:
    assert markdown_table([]) == []


def test_a_benchmark_may_share_the_models_of_another() -> None:
    alone, sharing = (options("It.", "it", models=models).parse_args([]) for models in (None, "bench"))

    assert (str(alone.models), str(alone.out)) == ("build/it-models", "build/bench/it")
    assert (str(sharing.models), str(sharing.out)) == ("build/bench-models", "build/bench/it")
