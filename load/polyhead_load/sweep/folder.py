"""Keep a run on disk: what is to be measured, what was measured, and the report.

```
RUN/
  sweep.json       the sweep, the machine, the families, the rates, what was skipped
  cells.jsonl      one line for each run of a cell
  records/         every request of each run
  server.log
  report.html, report.json, plots/
```
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from polyhead_load.errors import SweepError
from polyhead_load.records import Records
from polyhead_load.sweep.spec import Sweep

_PER_SESSION = ("command", "began", "load before")
"""Facts that may differ each time a run is resumed; all others must stay the same."""


class Measurement(BaseModel):
    """One run of one cell. Latency counts from the planned time to the answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    family: str
    tokens: str
    batch: str
    outputs: str
    load: str
    block: int
    """0 for throughputs, then 1, 2, …; of a search, its round."""
    attempt: int
    """1, 2, … within the block."""
    started: str
    """In UTC."""
    saturated: bool = False
    """Whether it is void because the generator could not keep up, on a machine that was not disturbed."""
    void: tuple[str, ...] = ()
    """Why the run says nothing about the server and is tried again; empty where it is valid."""
    overloaded: tuple[str, ...] = ()
    """How the server did not keep up. That is a result: the run counts and is not tried again."""
    rate: float | None = None
    """Planned requests a second; None in a closed loop."""
    achieved: float | None = None
    """Answered requests a second."""
    requests: int = 0
    late: int | None = None
    """Of a search: requests that took longer than the limit, or failed."""
    errors: int = 0
    shed: int = 0
    """Requests that were not sent because too many were in flight."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    generator_cpu: float | None = None
    """Share of one core, from 0 to 1."""
    generator_priority: str | None = None
    """Scheduling priority of the generator, in words."""
    foreign_cpu: float | None = None
    """Cores that other processes kept busy; None where unknown."""
    steal: float | None = None
    """Cores that the machine's host took away."""
    server_cpu: float | None = None
    """Cores that the sweep's own server kept busy."""
    server_mib: float | None = None
    """Memory of the sweep's own server."""
    request_bytes: float | None = None
    """Mean size of a request."""
    reply_bytes: float | None = None
    records: str | None = None
    """File with every request, in the run's folder."""

    @property
    def configuration(self) -> tuple[str, str, str, str]:
        """Return the labels of what was called."""
        return self.family, self.tokens, self.batch, self.outputs

    @property
    def settled(self) -> bool:
        """Return whether the run need not be tried again: it is valid, and a throughput is a number."""
        return not self.void and (self.block > 0 or bool(self.achieved))

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        """Return the key of its cell."""
        return *self.configuration, self.load


class Journal:
    """A file of measurements, one JSON line for each, appended as they end.

    A line that was cut short by a crash or a full disk is dropped, so that its cell is measured again.

    Raises:
        SweepError: A line is no measurement.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.measurements: list[Measurement] = list(self._read())

    def append(self, measurement: Measurement) -> None:
        """Append a line, and return when it is on the disk.

        Raises:
            SweepError: It cannot be written.
        """
        line = measurement.model_dump_json(exclude_defaults=True) + "\n"
        with writing(self._path), self._path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self.measurements.append(measurement)

    def _read(self) -> Iterator[Measurement]:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                yield Measurement.model_validate_json(line)
            except ValidationError as error:
                raise SweepError(
                    f"line {number} of {self._path} must be a measurement, is not: give another --out, "
                    "or remove the line to have its cell measured again"
                ) from error


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "server.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other sweeps out of it.

        Raises:
            SweepError: It cannot be made, or another sweep uses it.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise SweepError(
                f"another sweep is measuring into {self.path}: wait for it, or give another --out"
            ) from error
        finally:
            os.close(folder)

    def begin(self, sweep: Sweep, facts: Mapping[str, Any]) -> None:
        """Start a run, or resume the one in the folder; the facts of its first session stay.

        Its target may change, and its gates where nothing counts yet.

        Raises:
            SweepError: It holds another sweep or one of another server or machine, or cannot be written.
        """
        file = self.path / "sweep.json"
        described = {"sweep": sweep.model_dump(mode="json"), **facts}
        if file.exists():
            before, held = self.read()
            may_change: dict[str, Any] = {"target": sweep.target}
            if not any(one.settled for one in self.journal().measurements):
                may_change["gates"] = sweep.gates
            if before.model_copy(update=may_change) != sweep:
                raise SweepError(
                    f"{self.path} holds another sweep ({before.title!r}, or with other values): "
                    "give another --out"
                )
            self.require(facts)
            described = {**described, **held, "skipped": facts.get("skipped", {})}
        elif self.path.exists() and any(self.path.iterdir()):
            raise SweepError(f"--out must be a new folder, or one of a sweep; {self.path} holds other things")
        mark = facts.get("fingerprint", {})
        session = {name: mark[name] for name in _PER_SESSION if name in mark}
        described["sessions"] = [*described.get("sessions", []), session]
        with writing(file):
            (self.path / "records").mkdir(parents=True, exist_ok=True)
        self.write(file.name, json.dumps(described, indent=2) + "\n")

    def require(self, facts: Mapping[str, Any]) -> None:
        """Check that machine, server, versions and weights are those of the first session.

        Raises:
            SweepError: One of them differs.
        """
        before, after = _identity(self.read()[1]), _identity(facts)
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                raise SweepError(
                    f"{self.path} was measured with another {name}: it must be {before[name]}, "
                    f"was {after[name]}; one run is of one machine, one server and one version: "
                    "give another --out"
                )

    def note(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Add facts to sweep.json, each to what it has there already.

        Raises:
            SweepError: It cannot be written.
        """
        sweep, held = self.read()
        merged = {name: {**held.get(name, {}), **more} for name, more in facts.items()}
        described = {**held, **merged, "sweep": sweep.model_dump(mode="json")}
        self.write("sweep.json", json.dumps(described, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file, all of it or nothing.

        Raises:
            SweepError: It cannot be written.
        """
        target = self.path / name
        partial = target.with_name(f".{target.name}")
        with writing(target):
            try:
                partial.write_text(text, encoding="utf-8")
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def read(self) -> tuple[Sweep, dict[str, Any]]:
        """Return the sweep, and the facts beside it.

        Raises:
            SweepError: This is no run's folder.
        """
        file = self.path / "sweep.json"
        try:
            held = json.loads(file.read_bytes())
            return Sweep.model_validate(held.pop("sweep")), held
        except FileNotFoundError as error:
            raise SweepError(f"{self.path} must be the folder of a sweep, it has no sweep.json") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SweepError(
                f"{file} must describe a sweep, is damaged, or of another version of polyhead than "
                f"{version('polyhead')}"
            ) from error

    def journal(self) -> Journal:
        """Return what has been measured."""
        return Journal(self.path / "cells.jsonl")

    def load_records(self, name: str) -> Records:
        """Return every request of one run."""
        return Records.read(self.path / name)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `SweepError` where a file of the run cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> SweepError:
    """Return the error for a file of the run that cannot be written."""
    return SweepError(
        f"{path} cannot be written ({error.strerror}): what was measured before is kept; "
        "make room and give the same command again to go on"
    )


def _identity(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what must stay the same within one run, by name."""
    found = {name: value for name, value in facts.get("fingerprint", {}).items() if name not in _PER_SESSION}
    if "server" in facts:
        found["server"] = facts["server"]
    for family, files in facts.get("hashes", {}).items():
        found |= {f"{family}/{file}": sha256 for file, sha256 in files.items()}
    return found
