"""Measured costs are kept, and only used for what they are about."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from polyhead_server.scheduling.cache import Key, default_folder, read_costs, write_costs
from polyhead_server.scheduling.costs import Measured

KEY = Key(
    manifest="ab",
    graph="fast",
    provider="CPUExecutionProvider",
    library="1.31",
    processor="a",
    cpus=2,
    threads=2,
    runs=2,
)
COSTS = Measured(points={(1, 8): 0.25, (2, 8): 0.375}, gains={8: 1.25})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write_costs(folder, KEY, COSTS)

    assert read_costs(folder, KEY) == COSTS
    assert [file.name for file in folder.iterdir()] == [KEY.file]


@pytest.mark.parametrize(
    "change", [{"manifest": "cd"}, {"graph": "attention"}, {"threads": 1}, {"cpus": 3}, {"library": "2"}]
)
def test_costs_of_something_else_are_not_used(tmp_path: Path, change: dict[str, Any]) -> None:
    write_costs(tmp_path, KEY, COSTS)
    other = dataclasses.replace(KEY, **change)

    assert read_costs(tmp_path, other) is None
    (tmp_path / KEY.file).rename(tmp_path / other.file)
    assert read_costs(tmp_path, other) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"format": 3}',
        b"[" * 100_000,
    ],
)
def test_a_broken_file_is_passed_over_and_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY.file).write_bytes(content)

    assert read_costs(tmp_path, KEY) is None
    write_costs(tmp_path, KEY, COSTS)
    assert read_costs(tmp_path, KEY) == COSTS


@pytest.mark.parametrize(
    "broken",
    [
        *({"points": p} for p in (None, [], [[1, 8]], [[1, 8, "x"]], [[1, 8, 0]], [[2, 8, 1.0]])),
        {"points": [[1, 8, float("inf")]]},
        *({"gains": g} for g in (None, [[8]], [[8, 0]], [[8, "x"]])),
    ],
)
def test_costs_that_make_no_sense_are_passed_over(tmp_path: Path, broken: dict[str, Any]) -> None:
    write_costs(tmp_path, KEY, COSTS)
    file = tmp_path / KEY.file
    kept = json.loads(file.read_text())
    assert set(broken) <= set(kept)
    file.write_text(json.dumps(kept | broken))

    assert read_costs(tmp_path, KEY) is None


def test_a_folder_that_cannot_be_written_to_costs_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    write_costs(tmp_path / "file" / "folder", KEY, COSTS)

    assert "cannot be kept" in caplog.text
    assert read_costs(tmp_path / "file" / "folder", KEY) is None


def test_the_default_folder_follows_the_specification() -> None:
    assert default_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/polyhead")
    assert default_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/polyhead")
    assert default_folder({"HOME": "/h"}) == Path("/h/.cache/polyhead")
    assert default_folder({}).is_absolute()
