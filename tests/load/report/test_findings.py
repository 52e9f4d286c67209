"""What measurements come to."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.load.sweep.synthetic import a_run, small_sweep

from polyhead_load.errors import SweepError
from polyhead_load.records import Records
from polyhead_load.report.findings import read_findings
from polyhead_load.report.page import summary
from polyhead_load.report.tables import as_json, remarks, terminal_table
from polyhead_load.sweep.folder import Measurement, RunFolder


def test_a_known_difference_is_found(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single", "50%"], blocks=5), slower={"tiny-tokens": 1.2})

    findings = read_findings(folder)

    assert [row.key for row in findings.rows] == [
        ("tiny", "4", "1", "default", "single"),
        ("tiny-tokens", "4", "1", "default", "single"),
        ("tiny", "4", "1", "default", "50%"),
        ("tiny-tokens", "4", "1", "default", "50%"),
    ]
    baseline, other = findings.rows[:2]
    assert findings.is_baseline(baseline.labels)
    assert not baseline.ratios
    ratio: Any = other.ratios["p50"]
    # The blocks differ by ten percent, the ratio's interval is far narrower.
    assert ratio.value == pytest.approx(1.2, abs=0.02)
    assert ratio.high - ratio.low < 0.1
    p50: Any = other.quantiles["p50"]
    assert p50.low < 6.0 < p50.high
    assert sum(value for name, value in other.parts.items() if name != "total") == pytest.approx(
        other.parts["total"]
    )


def test_too_few_samples_are_no_number(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single"]), count=30)

    other = read_findings(folder).rows[1]

    assert other.quantiles["p50"] is not None
    assert other.ratios["p50"] is not None
    assert other.quantiles["p99"] is None
    assert other.ratios["p99"] is None


def test_void_runs_count_for_nothing(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single"]))
    journal = folder.journal()
    one = journal.measurements[0]
    path = folder.path / "cells.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")
    folder.journal().append(one.model_copy(update={"void": ("the server ended",), "p50_ms": 1e9}))

    findings = read_findings(folder)

    row: Any = findings.rows[0]
    assert len(row.valid) == 2
    assert row.reasons == ["the server ended"]
    assert row.quantiles["p50"].high < 100
    assert [each.void for each in findings.void] == [("the server ended",)]


def test_records_that_are_gone_are_named(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single"]))
    next((folder.path / "records").iterdir()).unlink()

    with pytest.raises((SweepError, FileNotFoundError), match="records"):
        read_findings(folder)


def rewritten(folder: RunFolder, change: Callable[[Measurement], Measurement | None]) -> None:
    """Changes what was measured, or drops it."""
    every = [change(one) for one in folder.journal().measurements]
    lines = [one.model_dump_json(exclude_defaults=True) for one in every if one is not None]
    (folder.path / "cells.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_overloaded_runs_count_and_are_counted(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["50%"]))
    rewritten(
        folder,
        lambda one: (
            one.model_copy(update={"overloaded": ("7 of 400 requests were not sent",)})
            if one.family == "tiny" and one.block < 3
            else one
        ),
    )

    findings = read_findings(folder)

    row, other = findings.rows
    assert (len(row.valid), len(row.overloaded), len(other.overloaded)) == (3, 2, 0)
    assert row.requests == other.requests
    assert [one.block for one in findings.overloaded] == [1, 2]
    assert "2 overloaded: … of … requests were not sent" in remarks(findings)
    assert any("the server did not keep up: 2. They count" in sentence for sentence in summary(findings))
    runs = [one["runs"] for one in as_json(findings)["rows"]]
    assert [sum("overloaded" in one for one in each) for each in runs] == [2, 0]


def test_a_throughput_is_the_median_of_its_runs(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["50%"]))
    journal = folder.journal()
    for attempt, (achieved, void) in enumerate([(90.0, ()), (30.0, ("late",)), (100.0, ()), (98.0, ())], 1):
        changes = {"load": "throughput", "block": 0, "attempt": attempt, "achieved": achieved, "void": void}
        journal.append(journal.measurements[0].model_copy(update=changes))

    (throughput,) = read_findings(folder).throughputs

    assert throughput.value == 98.0
    assert len(throughput.valid) == 3


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single", "50%"]))
    rewritten(folder, lambda one: None if (one.family, one.load) == ("tiny", "50%") else one)

    findings = read_findings(folder)

    assert findings.missing == [("tiny", "4", "1", "default", "50%")]
    assert "1 of 4 cells have not been measured" in remarks(findings)
    assert findings.rows[-1].key == ("tiny-tokens", "4", "1", "default", "50%")
    assert findings.rows[-1].uncompared == "the baseline has no valid run"
    assert not findings.rows[-1].ratios


def test_too_few_blocks_in_common_are_said(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single"]))
    rewritten(folder, lambda one: None if (one.family, one.block) == ("tiny", 2) else one)

    assert read_findings(folder).rows[1].uncompared == "too few blocks in common: 2"


def test_parts_that_exceed_the_latency_are_not_hidden(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single"]))
    for path in (folder.path / "records").iterdir():
        records = Records.read(path)
        replace(records, compute_ns=2 * records.compute_ns).write(path)

    findings = read_findings(folder)

    parts = findings.rows[0].parts
    assert parts["network + client"] < 0
    assert sum(value for name, value in parts.items() if name != "total") == pytest.approx(parts["total"])


def test_differences_of_every_quantile_are_counted(tmp_path: Path) -> None:
    folder = a_run(tmp_path, small_sweep(loads=["single", "50%"], blocks=5), slower={"tiny-tokens": 1.3})

    findings = read_findings(folder)
    said = summary(findings)

    for name in ("p50", "p95", "p99"):
        (counted,) = (one for one in said if f"compared with family tiny at {name}: " in one)
        assert counted.startswith("2 cells were")
        assert counted.endswith("about 0.1 of 2 would still show one, by chance.")


@pytest.mark.parametrize("load", ["single", "50%"])
def test_what_this_run_cannot_tell_is_no_difference(tmp_path: Path, load: str) -> None:
    folder = a_run(tmp_path, small_sweep(loads=[load], blocks=5), seed=3)

    findings = read_findings(folder)
    said = summary(findings)

    assert sum("1 show no measurable difference (this run cannot tell)" in one for one in said) == 3


@pytest.mark.parametrize("slower", [1.0, 1.4, 2000.0])
def test_the_table_fits_into_80_columns(tmp_path: Path, slower: float) -> None:
    names: dict[str, dict[str, int]] = {"minilm-int8": {}, "reranker-large": {}}
    folder = a_run(
        tmp_path, small_sweep(families=names, loads=["single", "50%"]), slower={"reranker-large": slower}
    )

    shown = io.StringIO()
    Console(file=shown, width=80).print(terminal_table(read_findings(folder)))

    lines = shown.getvalue().splitlines()
    for name in names:  # each in one piece, with its number beside it
        found = [line for line in lines if line.split()[:4][:1] == [name]]
        assert len(found) == 2
        assert all(re.search(rf"{name} +3 of 3 +[\d,.]+", line) for line in found)
    assert all(line.count("(") == line.count(")") for line in lines)
    assert ("no measurable " in shown.getvalue()) is (slower == 1.0)
    assert "…" not in shown.getvalue()
