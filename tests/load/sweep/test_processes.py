"""Processes that end well, and those that do not."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.load.sweep.synthetic import a_plan, make_records

from polyhead_load import LoadPlan
from polyhead_load.errors import SweepError
from polyhead_load.sweep.processes import ProcessError, generate, polyhead

_SCRIPT = """
import pathlib, shutil, sys
plan, out = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[4])
"""


def fake(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "generate.py"
    script.write_text(_SCRIPT + body)
    return [sys.executable, str(script)]


def test_the_generator_gets_the_plan_and_leaves_records(tmp_path: Path) -> None:
    make_records(20).write(tmp_path / "there.npz")
    command = fake(
        tmp_path,
        f"shutil.copy({str(tmp_path / 'there.npz')!r}, out / 'records.npz')\n"
        "(out / 'generator.json').write_text('{\"seconds\": 4.0, \"cpu_seconds\": 1.0}')\n",
    )

    run = generate(a_plan(), tmp_path / "out", command=command)

    np.testing.assert_array_equal(run.records.done, make_records(20).done)
    assert run.facts["cpu_seconds"] == 1.0
    assert run.facts["priority"] in {"real time", "nice -10", f"nice {psutil.Process().nice()}"}
    assert LoadPlan.from_json((tmp_path / "out" / "plan.json").read_text()) == a_plan()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('first\\nno server at there:1\\n')", "ended with 1: no server at there:1"),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
        ("", r"left no records: .*No such file"),
        ("(out / 'generator.json').write_text('{')", r"left no records: .*generator\.json must be JSON"),
    ],
)
def test_how_a_generator_fails_is_reported(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=message):
        generate(a_plan(), tmp_path / "out", command=fake(tmp_path, body))


def test_a_full_disk_ends_the_sweep_and_voids_nothing(tmp_path: Path) -> None:
    full = os.strerror(errno.ENOSPC)

    with pytest.raises(
        SweepError, match=r"No space left on device.*make room and give the same command again"
    ):
        generate(
            a_plan(), tmp_path / "out", command=fake(tmp_path, f"sys.exit('OSError: [Errno 28] {full}')")
        )


def test_what_a_command_said_last_is_reported() -> None:
    with pytest.raises(ProcessError, match="ended with 1: polyhead export: give either --preset"):
        polyhead("export")
