"""Every request of a run: recorded, written, read, taken apart."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.load.sweep.synthetic import make_records

from polyhead_load.errors import SweepError
from polyhead_load.records import SHED, UNANSWERED, GeneratorRun, RequestSample, Window, write_run

COLUMNS = {
    "planned": "float64",
    "sent": "float64",
    "done": "float64",
    "code": "int16",
    "request_bytes": "int64",
    "reply_bytes": "int64",
    "parse_ns": "int64",
    "tokenise_ns": "int64",
    "queue_ns": "int64",
    "compute_ns": "int64",
    "serialise_ns": "int64",
}
WINDOW = Window(started_unix=5.0, seconds=2.0, cpu_seconds=0.25)


def test_records_are_written_in_the_order_they_were_planned_in(tmp_path: Path) -> None:
    nan = float("nan")
    records = [
        RequestSample(0.5, 0.6, 0.9, 0, 20, 300, queue_ns=2**40, parse_ns=0),
        RequestSample(0.3, nan, nan, SHED, 21),
        RequestSample(0.1, 0.1, 0.8, 14, 22),
        RequestSample(0.6, 0.7, nan, UNANSWERED, 23),
    ]
    write_run(tmp_path / "new", records, WINDOW)

    with np.load(tmp_path / "new" / "records.npz", allow_pickle=False) as arrays:
        assert {name: str(arrays[name].dtype) for name in arrays} == COLUMNS
        np.testing.assert_array_equal(arrays["planned"], [0.1, 0.3, 0.5, 0.6])
        np.testing.assert_array_equal(arrays["sent"], [0.1, np.nan, 0.6, 0.7])
        np.testing.assert_array_equal(arrays["done"], [0.8, np.nan, 0.9, np.nan])
        np.testing.assert_array_equal(arrays["code"], [14, -1, 0, -2])
        np.testing.assert_array_equal(arrays["request_bytes"], [22, 21, 20, 23])
        np.testing.assert_array_equal(arrays["reply_bytes"], [0, 0, 300, 0])
        np.testing.assert_array_equal(arrays["queue_ns"], [-1, -1, 2**40, -1])
        np.testing.assert_array_equal(arrays["parse_ns"], [-1, -1, 0, -1])
        np.testing.assert_array_equal(arrays["compute_ns"], [-1, -1, -1, -1])
    summary = json.loads((tmp_path / "new" / "generator.json").read_text())
    assert {
        name: summary[name] for name in ("seconds", "cpu_seconds", "planned", "shed", "errors", "unanswered")
    } == {
        "seconds": 2.0,
        "cpu_seconds": 0.25,
        "planned": 4,
        "shed": 1,
        "errors": 1,
        "unanswered": 1,
    }
    assert summary["started_unix"] == 5.0
    assert set(summary["versions"]) == {"python", "polyhead", "locust", "gevent", "grpcio", "numpy"}


def test_the_parts_add_up() -> None:
    parts = dict(make_records(300).parts_ms())
    total = parts.pop("total")

    assert set(parts) == {"send lag", "parse", "queue", "compute", "serialise", "network + client"}
    assert sum(parts.values()) == pytest.approx(total, rel=1e-12)
    assert parts["parse"] == pytest.approx(0.02)


def test_without_the_servers_word_there_is_only_the_total() -> None:
    records = make_records(10)

    assert set(replace(records, queue_ns=np.full(10, -1)).parts_ms()) == {"total"}
    assert replace(records, code=np.full(10, 14, np.int16)).parts_ms() == {}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"plain"])
def test_damaged_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "records.npz").write_bytes(content)
    (tmp_path / "generator.json").write_text("{}")

    with pytest.raises(SweepError, match=r"records\.npz must be the records of a run, is damaged"):
        GeneratorRun.read(tmp_path)
