"""The folder of one run: what was to be measured, what was, and everything to make a report of.

```
RUN/
  sweep.json       the sweep, the machine, the families, the rates, what was skipped
  cells.jsonl      one line for each run of a cell
  records/         every request of each run
  server.log
  report.html, report.json, report.csv, plots/
```
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyhead_load.errors import SweepError
from polyhead_load.records import Records
from polyhead_load.sweep.journal import FILE, Journal, no_room
from polyhead_load.sweep.spec import Sweep

_OF_A_SESSION = ("command", "began", "load before", "clock")
"""What may differ each time that a run is gone on with; all else must be as it was."""


class RunFolder:
    """A run's folder.

    Args:
        path: Where it is, or is to be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def records(self) -> Path:
        """Every request of each run."""
        return self.path / "records"

    @property
    def log(self) -> Path:
        """What the servers of the run have said."""
        return self.path / "server.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other sweeps out of it meanwhile.

        Raises:
            SweepError: It cannot be made, or another sweep is at work in it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            there = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise no_room(self.path, error) from error
        try:
            fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise SweepError(
                f"another sweep is measuring into {self.path}: wait for it, or give another --out"
            ) from error
        finally:
            os.close(there)

    def begin(self, sweep: Sweep, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Make the folder, or continue what is there.

        Args:
            sweep: What is to be measured.
            facts: About the machine and the families; those of the beginning stay.

        Returns:
            The facts that the folder holds now.

        Raises:
            SweepError: It holds another sweep, or one of another server or machine, or cannot be written.
        """
        file = self.path / "sweep.json"
        described = {"sweep": sweep.model_dump(mode="json"), **facts}
        if file.exists():
            before, held = self.read()
            if before != sweep:
                raise SweepError(
                    f"{self.path} holds another sweep ({before.title!r}, or with other values): "
                    "give another --out"
                )
            self._require_same(held, facts)
            described = {**described, **held, "skipped": facts.get("skipped", {})}
        elif self.path.exists() and any(self.path.iterdir()):
            raise SweepError(f"--out must be a new folder, or one of a sweep; {self.path} holds other things")
        mark = facts.get("fingerprint", {})
        session = {name: mark[name] for name in _OF_A_SESSION if name in mark}
        described["sessions"] = [*described.get("sessions", []), session]
        try:
            self.records.mkdir(parents=True, exist_ok=True)
            self.write("sweep.json", json.dumps(described, indent=2) + "\n")
        except OSError as error:
            raise no_room(file, error) from error
        return described

    def require(self, facts: Mapping[str, Any]) -> None:
        """Check that what is measured now is what was measured before, as far as `facts` tell.

        Raises:
            SweepError: It is not.
        """
        self._require_same(self.read()[1], facts)

    def _require_same(self, held: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        before, after = _identity(held), _identity(facts)
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                raise SweepError(
                    f"{self.path} was measured with another {name}: it must be {before[name]}, "
                    f"was {after[name]}; one run is of one machine, one server and one version: "
                    "give another --out"
                )

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to those that are written down."""
        sweep, held = self.read()
        described = {**held, **facts, "sweep": sweep.model_dump(mode="json")}
        self.write("sweep.json", json.dumps(described, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file, all of it or nothing."""
        target = self.path / name
        partial = target.with_name(f".{target.name}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise no_room(target, error) from error

    def read(self) -> tuple[Sweep, dict[str, Any]]:
        """Return the sweep, and what else was written down at the beginning.

        Raises:
            SweepError: This is no folder of a run.
        """
        file = self.path / "sweep.json"
        try:
            held = json.loads(file.read_bytes())
            return Sweep.model_validate(held.pop("sweep")), held
        except FileNotFoundError as error:
            raise SweepError(f"{self.path} must be the folder of a sweep, it has no sweep.json") from error
        except (ValueError, KeyError, ValidationError) as error:
            raise SweepError(f"{file} must describe a sweep, is damaged") from error

    def journal(self) -> Journal:
        """Return what has been measured."""
        return Journal(self.path / FILE)

    def load_records(self, name: str) -> Records:
        """Return every request of one run."""
        return Records.read(self.path / name)


def _identity(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what makes measurements those of one run, by name."""
    found = {name: value for name, value in facts.get("fingerprint", {}).items() if name not in _OF_A_SESSION}
    if "server" in facts:
        found["server"] = facts["server"]
    for family, files in facts.get("hashes", {}).items():
        found |= {f"{family}/{file}": sha256 for file, sha256 in files.items()}
    return found
