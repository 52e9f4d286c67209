"""A page says how it was made and what held, which is the status."""

import json
from argparse import Namespace
from pathlib import Path

from benchmarks.page import begun, finish, options
from benchmarks.rounds import Condition

HELD = Condition(name="fast", holds=True, seen="1 ms")
MISSED = Condition(name="small", holds=False, seen="9 MiB")
NOT_RUN = Condition(name="right", holds=None, seen="")


def chosen(out: Path, *flags: str) -> Namespace:
    return begun(options("It.").parse_args(["--out", str(out), *flags]), seconds=2.0, rounds=5)


def test_a_result_is_written_and_its_conditions_are_the_status(tmp_path: Path) -> None:
    run = chosen(tmp_path)

    assert finish(run, "it", "make it", "It", [], conditions=[HELD, NOT_RUN], facts={}) == 0
    assert finish(
        run,
        "it",
        "make it",
        "It",
        ["the end"],
        conditions=[HELD, MISSED, NOT_RUN],
        intro=["Why."],
        facts={"n": 1},
    )

    written = json.loads((tmp_path / "it.json").read_text())
    assert written["conditions"][1] == {"name": "small", "holds": False, "seen": "9 MiB"}
    assert (written["n"], written["rounds"], written["seconds"]) == (1, 5, 2.0)
    assert written["disturbance"]["stolen"] >= 0
    assert {"began", "processor", "cores", "Python", "polyhead"} <= written["fingerprint"].keys()
    title, _, made, *lines = (tmp_path / "it.md").read_text().splitlines()
    assert title == "# It"
    assert made.startswith("Made by `make it` ([how](../../docs/benchmarks.md)): ")
    assert "cores busy, and the host took" in made
    assert lines == [
        "",
        "Why.",
        "",
        "| what must hold |  | seen |",
        "|---|---|---|",
        "| fast | yes | 1 ms |",
        "| small | **no** | 9 MiB |",
        "| right | not run |  |",
        "",
        "the end",
    ]


def test_numbers_of_tiny_encoders_mean_nothing(tmp_path: Path) -> None:
    run = chosen(tmp_path, "--tiny")

    assert (run.rounds, run.spare) == (1, 0)
    assert finish(run, "it", "make it", "It", [], conditions=[MISSED], facts={}) == 0
    assert "the numbers mean nothing" in (tmp_path / "it.md").read_text()
