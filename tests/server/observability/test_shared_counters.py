"""Counters that add up across processes, and outlive them."""

import os
import signal
import subprocess
import sys

import pytest

from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.shared_counters import SharedCounters

CHILD = f"""
import os, sys
from polyhead_server.observability.shared_counters import SharedCounters
files, worker = [int(file) for file in sys.argv[1].split(",")], int(sys.argv[2])
page = SharedCounters(files, worker).page("tiny", 1)
for _ in range(1000):
    page[3] += 1
page[{slots.READY}] = 1
os.kill(os.getpid(), 9)
"""


def run_and_kill(counters: SharedCounters, worker: int) -> None:
    """A process counts 1000 on slot 3, says that it is ready, and is killed."""
    arguments = [sys.executable, "-c", CHILD, ",".join(map(str, counters.files)), str(worker)]
    assert subprocess.run(arguments, pass_fds=counters.files, check=False).returncode == -signal.SIGKILL


def test_what_a_killed_process_has_counted_stays_and_its_successor_counts_on() -> None:
    counters = SharedCounters.create(2, worker=None)

    run_and_kill(counters, 0)
    run_and_kill(counters, 1)
    assert counters.total("tiny", 1)[3] == 2000
    run_and_kill(counters, 0)

    assert counters.total("tiny", 1)[3] == 3000


def test_how_things_stood_ends_with_the_process() -> None:
    counters = SharedCounters.create(2, worker=None)
    run_and_kill(counters, 0)
    run_and_kill(counters, 1)
    assert counters.total("tiny", 1)[slots.READY] == 2

    counters.clear_gauges(0)

    assert counters.total("tiny", 1)[slots.READY] == 1
    assert counters.total("tiny", 1)[3] == 2000
    assert SharedCounters([os.dup(file) for file in counters.files], 1).total("tiny", 1)[slots.READY] == 0


def test_pages_are_distinguished_by_name_and_version() -> None:
    counters = SharedCounters.create()
    counters.page("b", 2)[0] = 1
    counters.page("a", 1)[0] = 2
    counters.page("b", 1)[0] = 3
    counters.page("b", 2)[0] += 10
    counters.page("x" * 255 + ".attention", 1)[0] = 4

    totals = {key: values[0] for key, values in counters.totals().items()}

    assert totals == {("a", 1): 2, ("b", 1): 3, ("b", 2): 11, ("x" * 255 + ".attention", 1): 4}
    assert counters.written == [("b", 2), ("a", 1), ("b", 1), ("x" * 255 + ".attention", 1)]
    assert counters.total("unknown", 1) == [0] * slots.SLOTS


def test_dates_and_providers_are_not_added_up() -> None:
    writer = SharedCounters.create(2, worker=0)
    other = SharedCounters([os.dup(file) for file in writer.files], 1)
    for counters, date in ((writer, 5), (other, 7)):
        counters.page("a", 1)[slots.LAST_INFERENCE_MS] = date
        counters.page("a", 1)[slots.PROVIDER] = slots.encode_provider("OpenVINOExecutionProvider")
        counters.page("a", 1)[slots.SEQUENCES] = date

    values = other.total("a", 1)

    assert (values[slots.LAST_INFERENCE_MS], values[slots.SEQUENCES]) == (7, 12)
    assert slots.decode_provider(values) == "OpenVINOExecutionProvider"


def test_counters_that_are_only_read_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        SharedCounters.create(1, worker=None).page("a", 1)
