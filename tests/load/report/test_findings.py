"""What measurements come to."""

from pathlib import Path

import numpy as np
import pytest
from tests.load.sweep.synthetic import measured, new_folder, small_sweep

from polyhead_load.report.findings import find
from polyhead_load.sweep.errors import SweepError


def test_a_known_difference_is_found(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    measured(folder, small_sweep(loads=["single", "50%"], blocks=5), slower={"tiny-tokens": 1.2})

    findings = find(folder)

    assert [row.key for row in findings.rows] == [
        ("tiny", "4", "1", "off", "single"),
        ("tiny-tokens", "4", "1", "off", "single"),
        ("tiny", "4", "1", "off", "50%"),
        ("tiny-tokens", "4", "1", "off", "50%"),
    ]
    baseline, other = findings.rows[:2]
    assert findings.is_baseline(baseline)
    assert not baseline.ratios
    ratio = other.ratios["p50"]
    assert ratio is not None
    # The blocks differ by ten percent, the ratio's interval is far narrower.
    assert ratio.value == pytest.approx(1.2, abs=0.02)
    assert ratio.high - ratio.low < 0.1
    p50 = other.quantiles["p50"]
    assert p50 is not None
    assert p50.low < 6.0 < p50.high
    assert sum(value for name, value in other.parts.items() if name != "total") == pytest.approx(
        other.parts["total"]
    )
    assert np.all(np.diff(other.ecdf) >= 0)


def test_too_few_samples_are_no_number(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    measured(folder, small_sweep(loads=["single"]), count=30)

    other = find(folder).rows[1]

    assert other.quantiles["p50"] is not None
    assert other.ratios["p50"] is not None
    assert other.quantiles["p99"] is None
    assert other.ratios["p99"] is None


def test_void_runs_count_for_nothing(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    measured(folder, small_sweep(loads=["single"]))
    journal = folder.journal()
    one = journal.measurements[0]
    path = folder.path / "cells.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")
    folder.journal().append(one.model_copy(update={"void": ("the server ended",), "p50_ms": 1e9}))

    findings = find(folder)

    row = findings.rows[0]
    assert len(row.valid) == 2
    assert row.reasons == ["the server ended"]
    assert row.quantiles["p50"] is not None
    assert row.quantiles["p50"].high < 100
    assert [each.void for each in findings.void] == [("the server ended",)]


def test_records_that_are_gone_are_named(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    measured(folder, small_sweep(loads=["single"]))
    next((folder.path / "records").iterdir()).unlink()

    with pytest.raises((SweepError, FileNotFoundError), match="records"):
        find(folder)
