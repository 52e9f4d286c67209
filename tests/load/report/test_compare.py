"""Two runs against each other."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.load.sweep.synthetic import measured, new_folder, small_sweep

from polyhead_load.errors import SweepError
from polyhead_load.report.compare import compare, read_report
from polyhead_load.report.page import write_report


def a_report(path: Path, **how: Any) -> dict[str, Any]:
    folder = new_folder(path)
    sweep = how.pop("sweep", small_sweep(loads=["single"], blocks=5))
    measured(folder, sweep, **how)
    write_report(folder)
    return read_report(folder.path)


def test_what_differs_and_what_does_not(tmp_path: Path) -> None:
    first = a_report(tmp_path / "a", seed=1)
    second = a_report(tmp_path / "b", seed=2, slower={"tiny-tokens": 1.6})

    comparison = compare(first, second)

    same, slower = comparison.pairs
    assert same.ratios["p50"] is not None
    assert 1.0 in same.ratios["p50"]
    assert slower.ratios["p50"] is not None
    assert slower.ratios["p50"].low > 1.2
    assert comparison.same("p50") == (1, 2)
    reach: Any = comparison.reach("p50")
    assert 0 < reach < 0.3
    assert comparison.sentences()[0].startswith("p50: in 1 of 2 cells the ratio's interval contains 1 (it")
    shown = io.StringIO()
    Console(width=80, file=shown).print(comparison.table())
    words = " ".join(shown.getvalue().split())
    assert re.search(r"tiny +no measurable", words)
    assert re.search(r"tiny-tokens +1\.\d\d", words)
    assert all(line.count("(") == line.count(")") for line in shown.getvalue().splitlines())


def test_too_few_samples_agree_with_nothing(tmp_path: Path) -> None:
    comparison = compare(a_report(tmp_path / "a", count=30), a_report(tmp_path / "b", count=30))

    assert comparison.same("p99") == (0, 0)
    assert comparison.pairs[0].ratios["p99"] is None


def test_cells_of_one_run_alone_are_counted(tmp_path: Path) -> None:
    more = small_sweep(loads=["single", "20/s"])
    comparison = compare(
        a_report(tmp_path / "a", sweep=more), a_report(tmp_path / "b", sweep=small_sweep(loads=["single"]))
    )

    assert len(comparison.pairs) == 2
    assert [key[-1] for key in comparison.only_first] == ["20/s", "20/s"]
    assert comparison.only_second == []


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is no JSON"), ("[]", "has no rows"), ("{}", "has no rows")]
)
def test_what_is_no_report_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)

    with pytest.raises(SweepError, match=rf"report\.json must be the report\.json of a sweep, .*{message}"):
        read_report(tmp_path)


def test_what_else_differs_is_said(tmp_path: Path) -> None:
    first = a_report(tmp_path / "a")
    second = a_report(tmp_path / "b", sweep=small_sweep(loads=["single"], blocks=5, seconds=9))
    second["fingerprint"] |= {"cores": "64", "command": "polyhead sweep another"}
    for row in second["rows"]:
        row["offered_per_second"] = 51.0
    for row in first["rows"]:
        row["offered_per_second"] = 50.0

    comparison = compare(first, second)

    assert list(comparison.differences) == ["sweep: seconds: 0.5, then 9.0", "fingerprint: cores: 2, then 64"]
    assert [pair.rate for pair in comparison.pairs] == [1.02, 1.02]
    assert "the rates of open loops were 1.020 to 1.020 times the first's" in comparison.sentences()
    assert "they differ in fingerprint: cores: 2, then 64" in comparison.sentences()
