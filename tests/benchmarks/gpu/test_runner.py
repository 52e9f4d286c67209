"""Parts that end well, that break, that crash, that hang."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import gpu.runner
from gpu.budget import Budget
from gpu.journal import Found, Journal
from gpu.runner import NO_CARD, NoDeviceError, Runner

_WRITE = """
import json, sys
def write(**facts):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"part": sys.argv[2], **facts}) + "\\n")
write(entry="row", row={"kind": "some", "number": 1})
"""
_END = "write(entry='end', state='done', seconds=0.5, problem=None)"


def run(folder: Path, scripts: dict[str, str], *, seconds: float = 60.0) -> dict[str, Found]:
    journal = Journal(folder / "journal.jsonl")

    def command(part: str, _allowed: float) -> Sequence[str]:
        return [sys.executable, "-c", _WRITE + scripts[part], str(journal.path), part]

    Runner(
        journal=journal,
        budget=Budget(seconds, dict.fromkeys(scripts, 1.0)),
        command=command,
        logs=folder / "logs",
        seen=lambda _: None,
    ).run(list(scripts))
    return journal.read()


def test_one_that_breaks_or_crashes_does_not_stop_the_others(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        {
            "broken": "raise RuntimeError('no such thing')",
            "crashed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "well": _END,
        },
    )

    assert {part: one.state for part, one in found.items()} == {
        "broken": "failed",
        "crashed": "failed",
        "well": "done",
    }
    assert found["broken"].problem == "ended with status 1: RuntimeError: no such thing"
    assert (found["crashed"].problem or "").startswith("ended by SIGSEGV")
    assert all(len(one.rows) == 1 for one in found.values())  # what they had measured is kept


def test_one_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.runner, "_LEAST_SECONDS", 1.0)
    child = tmp_path / "child"
    hangs = (
        "import pathlib, subprocess, time\n"
        f"process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(process.pid))\n"
        "time.sleep(300)"
    )
    found = run(tmp_path, {"hanging": hangs, "well": _END}, seconds=6.0)

    assert found["hanging"].state == "out of time"
    assert len(found["hanging"].rows) == 1
    assert found["well"].state == "done"
    assert _ends(int(child.read_text()))


def test_what_has_hardly_any_time_is_not_begun(tmp_path: Path) -> None:
    found = run(tmp_path, {"late": _END}, seconds=3.0)["late"]

    assert (found.state, found.rows) == ("out of time", [])
    assert found.problem == "not begun: 3 s were left for it"


def test_a_part_is_told_less_than_it_has(tmp_path: Path) -> None:
    told = []
    journal = Journal(tmp_path / "journal.jsonl")

    def command(part: str, allowed: float) -> Sequence[str]:
        told.append(allowed)
        return [sys.executable, "-c", _WRITE + _END, str(journal.path), part]

    for seconds in (100.0, 20.0):
        Runner(
            journal=journal,
            budget=Budget(seconds, {"one": 1.0}),
            command=command,
            logs=tmp_path / "logs",
            seen=lambda _: None,
        ).run(["one"])

    assert told == [pytest.approx(90.0, abs=1), pytest.approx(15.0, abs=1)]


def test_no_device_ends_it_all(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="there is no card here"):
        run(tmp_path, {"first": f"print('there is no card here'); sys.exit({NO_CARD})", "second": _END})

    found = Journal(tmp_path / "journal.jsonl").read()
    assert list(found) == ["first"]
    assert found["first"].problem == "there is no card here"


def _ends(process: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    for _ in range(100):
        try:
            os.kill(process, signal.SIG_DFL)
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
