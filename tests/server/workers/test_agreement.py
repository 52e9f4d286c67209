"""What all workers are to serve, in memory that they share."""

import subprocess
import sys

import pytest

from polyhead_server.desired import Desired, Family, Version
from polyhead_server.errors import ServerError
from polyhead_server.workers.agreement import Agreement

FIRST: Desired = {"a": Family(loaded=True, versions={2: Version(digest="ab", models=("a", "a.attention"))})}
SECOND: Desired = {**FIRST, "b": Family(loaded=False, versions={1: Version(digest="cd", models=("b",))})}

CHILD = """
import os, sys
from polyhead_server.workers.agreement import Agreement
agreement = Agreement(int(sys.argv[1]), 2, 1)
agreement.join()
number, desired = agreement.read()
agreement.reach(number, {"a": "no memory"} if "a" in desired else {})
print("locked" if agreement.lock() else "taken", number, *desired, flush=True)
sys.stdin.read()
"""


def test_nothing_has_been_said_at_first() -> None:
    agreement = Agreement.create(2)

    assert agreement.newest == 0
    assert agreement.read() == (0, {})
    assert agreement.behind(1) == []


def test_the_newest_is_read_by_another_process_as_it_was_written() -> None:
    above = Agreement.create(2)
    mine = Agreement(above.file, 2, 0)

    for number, desired in enumerate((FIRST, SECOND, FIRST, SECOND), start=1):
        assert mine.write(desired) == number
        assert above.read() == (number, desired)


def test_who_takes_part_and_is_not_there_yet_is_behind() -> None:
    above = Agreement.create(2)
    one, other = (Agreement(above.file, 2, worker) for worker in (0, 1))
    one.join()
    number = one.write(FIRST)
    assert one.behind(number) == [0]
    other.join()
    one.reach(number, {})
    assert one.behind(number) == [1]
    other.reach(number, {"a": "x" * 5000, "b": "why"})

    assert one.behind(number) == []
    assert one.failures("b") == {1: "why"}
    assert len(one.failures("a")[1]) == 1000
    assert one.failures("c") == {}
    above.leave(1)
    assert one.failures("b") == {}
    assert one.behind(number + 1) == [0]


def test_a_lock_ends_with_its_process() -> None:
    agreement = Agreement.create(2)
    agreement.write(FIRST)
    arguments = [sys.executable, "-c", CHILD, str(agreement.file)]
    with subprocess.Popen(
        arguments, pass_fds=[agreement.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked 1 a\n"
        assert not agreement.lock()
        assert agreement.failures("a") == {1: "no memory"}
        child.kill()
        child.wait()

        assert agreement.lock()
        agreement.unlock()


def test_who_holds_no_place_takes_no_part() -> None:
    with pytest.raises(ValueError, match="only a worker"):
        Agreement.create(1).join()


def test_there_is_an_end_to_what_can_be_said() -> None:
    agreement = Agreement.create(1)
    versions = {number: Version(digest="ab" * 32, models=("a" * 100,) * 2) for number in range(60_000)}

    with pytest.raises(ServerError, match="at most 16777216 bytes"):
        agreement.write({"a": Family(loaded=True, versions=versions)})
    assert agreement.read() == (0, {})
