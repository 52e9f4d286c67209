"""Every request of a run: read, written, taken apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.load.sweep.synthetic import make_records

from polyhead_load.sweep.errors import SweepError
from polyhead_load.sweep.records import Records, Run


def test_records_come_back(tmp_path: Path) -> None:
    records = make_records(50)

    records.write(tmp_path / "a.npz")

    again = Records.read(tmp_path / "a.npz")
    for name, values in vars(records).items():
        np.testing.assert_array_equal(getattr(again, name), values)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_latency_counts_from_the_planned_time() -> None:
    records = make_records(1000, median_ms=5, sigma=1e-9, lag_ms=2)

    np.testing.assert_allclose(records.latency_ms, 7, rtol=1e-6)
    np.testing.assert_allclose(records.lag_ms, 2, rtol=1e-6)


def test_only_good_answers_have_a_latency() -> None:
    records = make_records(4)
    failed = replace(records, code=np.array([0, 14, -1, 0], np.int16))

    np.testing.assert_array_equal(failed.latency_ms, records.latency_ms[[0, 3]])


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
        Run.read(tmp_path)
