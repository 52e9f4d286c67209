"""Which configurations hold a rate within a limit, and on how many machines."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.load.sweep.synthetic import a_run, searched, small_sweep

from polyhead_load.report.choice import Option, choose, choose_lines, choose_table
from polyhead_load.report.findings import read_findings
from polyhead_load.report.page import write_report
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.target import ServiceTarget

LABELS: Any = {"family": "a", "tokens": "4", "batch": "1", "outputs": "pooled"}


def option(capacity: tuple[float, float, float] | None, **target: Any) -> Option:
    return Option(
        labels=LABELS,
        target=ServiceTarget.model_validate({"p99": "50ms", "rate": 50} | target),
        capacity=None if capacity is None else Interval(low=capacity[0], value=capacity[1], high=capacity[2]),
        throughput=None,
        parameters=None,
        reply_bytes=None,
    )


@pytest.mark.parametrize(
    ("capacity", "machines", "verdict"),
    [
        ((72, 80, 88), 1, "holds"),  # 72 * 0.7 = 50.4
        ((71, 80, 90), 2, "close"),  # 49.7: within the capacity, but not with the headroom
        ((45, 48, 51), 2, "close"),  # within its interval
        ((40, 44, 48), 2, "no"),
        ((5, 6, 7), 15, "no"),
        ((100, 100, math.inf), 1, "holds"),
        ((60, 60, math.inf), 2, "close"),
        ((0, 0, 3), None, "never"),
        ((0, 40, 60), None, "uncertain"),  # some rounds hold, others never do
        ((0.0002, 60, 900), None, "uncertain"),  # not 357,143 machines
        ((16, 45, 60), 5, "close"),
        ((14, 45, 60), None, "uncertain"),
        ((75, 400, 800), 1, "holds"),  # whatever it is
        ((5, 200, math.inf), None, "uncertain"),
        (None, None, "not known"),
    ],
)
def test_machines_are_the_rate_by_the_capacity_with_headroom(
    capacity: tuple[float, float, float] | None, machines: int | None, verdict: str
) -> None:
    one = option(capacity)

    assert (one.machines, one.verdict) == (machines, verdict)


def test_what_is_too_uncertain_is_said_in_words() -> None:
    wide = option((0.0002, 60, 900))
    target = wide.target
    shown = io.StringIO()
    Console(file=shown, width=80).print(choose_table([wide], ["family"], target))

    assert "357" not in shown.getvalue()
    assert "uncertain" in shown.getvalue()
    (*_, said) = choose_lines([wide], target)
    assert said.startswith("uncertain: the capacity is more than 3 times its interval's lower end, because")


def test_headroom_is_the_users() -> None:
    assert option((50, 60, 70), headroom=0).machines == 1
    assert option((50, 60, 70), headroom=0.5).machines == 2
    assert option((50, 60, 70), rate=None).machines is None
    assert option((50, 60, 70), rate=None).verdict == ""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two families, of which one carries 150 requests a second and the other 60."""
    target = {"p99": "50ms", "rate": 60}
    folder = a_run(tmp_path, small_sweep(loads=["single"], target=target, rounds=3))
    searched(folder, {"tiny": 60.0, "tiny-tokens": 150.0})
    return folder


def test_those_with_the_most_capacity_come_first(folder: RunFolder) -> None:
    findings = read_findings(folder)
    target = findings.sweep.target
    assert target is not None

    larger, smaller = choose(findings, target)

    assert [one.labels["family"] for one in (larger, smaller)] == ["tiny-tokens", "tiny"]
    assert (larger.verdict, larger.machines) == ("holds", 1)
    assert (smaller.verdict, smaller.machines) == ("close", 2)
    assert larger.capacity is not None
    assert larger.capacity.value == pytest.approx(150, rel=0.06)
    assert choose_lines([larger, smaller], target) == [
        "1 of 2 hold 60 requests/s with a p99 of 50ms on one machine, with 30% headroom",
        "each was measured alone: `polyhead load --model a,b` loads several families together",
        "close: the rate is within the capacity or its interval, but not with 30% headroom",
    ]


def test_the_report_can_be_given_another_rate_but_no_other_limit(folder: RunFolder) -> None:
    one = write_report(folder, rate=20, headroom="0%").options[0]
    assert (one.verdict, one.machines) == ("holds", 1)

    other = write_report(folder, p99="20ms")
    assert {one.verdict for one in other.options} == {"not known"}
    assert "not known: fewer than 3 rounds of a search for p99 20ms have" in other.page.read_text()


def test_without_a_target_all_is_said_but_what_holds(tmp_path: Path) -> None:
    findings = read_findings(a_run(tmp_path, small_sweep(loads=["single"])))

    options = choose(findings, None)

    assert {one.verdict for one in options} == {""}
    assert not choose_lines(options, None)


def test_the_table_fits_into_80_columns(folder: RunFolder) -> None:
    findings = read_findings(folder)
    target = findings.sweep.target
    shown = io.StringIO()
    Console(file=shown, width=80).print(choose_table(choose(findings, target), findings.sweep.varied, target))

    for name, verdict in (("tiny-tokens", "holds"), ("tiny", "close")):
        assert any(line.split()[:1] == [name] for line in shown.getvalue().splitlines())
        assert verdict in shown.getvalue()
    assert "…" not in shown.getvalue()
