"""What has been measured: one JSON line for each run of a cell, added as it ends."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from polyhead_load.errors import SweepError

FILE = "cells.jsonl"


class Measurement(BaseModel):
    """One run of one cell. Latency is from the planned time to the answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    family: str
    tokens: str
    batch: str
    attention: str
    load: str
    block: int
    """0 for capacities, then 1, 2, …"""
    attempt: int
    """1, 2, … within the block."""
    started: str
    """When, in UTC."""
    void: tuple[str, ...] = ()
    """Why it says nothing about the server, and is tried again; empty where it does."""
    overloaded: tuple[str, ...] = ()
    """In what the server did not keep up. That is a result: the run counts, and is not tried again."""
    unchecked: tuple[str, ...] = ()
    """Gates that there were too few answers for."""
    rate: float | None = None
    """Requests a second that were planned; None in a closed loop."""
    achieved: float | None = None
    """Requests a second that were answered."""
    requests: int = 0
    errors: int = 0
    shed: int = 0
    """Not sent, because too many were in flight."""
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    send_lag_p99_ms: float | None = None
    generator_cpu: float | None = None
    """Its share of one core, from 0 to 1."""
    generator_priority: str | None = None
    """How the system preferred it, in words."""
    foreign_cpu: float | None = None
    """Cores that other processes kept busy meanwhile; None where one cannot know."""
    steal: float | None = None
    """Cores that the machine's host took away."""
    server_cpu: float | None = None
    """Cores that the server kept busy; None where it is not ours."""
    server_mib: float | None = None
    """The server's memory."""
    warm_up_seconds: float | None = None
    request_bytes: float | None = None
    """The size of a request, on average."""
    reply_bytes: float | None = None
    records: str | None = None
    """The file with every request, in the run's folder."""

    @property
    def configuration(self) -> tuple[str, str, str, str]:
        """The labels of what was called."""
        return self.family, self.tokens, self.batch, self.attention

    @property
    def settled(self) -> bool:
        """Whether it counts, and need not be tried again; a capacity has to be a number, too."""
        return not self.void and (self.block > 0 or bool(self.achieved))

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        """Which cell it is a run of."""
        return *self.configuration, self.load


class Journal:
    """The file of a run's measurements.

    A line that was cut short, by a crash or a full disk, is dropped: its cell is measured again.

    Raises:
        SweepError: A line is no measurement.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.measurements: list[Measurement] = list(self._read())

    def append(self, measurement: Measurement) -> None:
        """Add a line, which is on the disk when this returns.

        Raises:
            SweepError: There is no room for it.
        """
        line = measurement.model_dump_json(exclude_defaults=True) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise no_room(self._path, error) from error
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
                yield Measurement.model_validate(json.loads(line))
            except (ValidationError, ValueError) as error:
                raise SweepError(
                    f"line {number} of {self._path} must be a measurement, is not: give another --out, "
                    "or remove the line to have its cell measured again"
                ) from error


def no_room(path: Path, error: OSError) -> SweepError:
    """Return what to say when a file of the run cannot be written."""
    return SweepError(
        f"{path} cannot be written ({error.strerror}): what was measured before is kept; "
        "make room and give the same command again to go on"
    )
