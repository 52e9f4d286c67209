"""Keep measured costs on disk, so that the next start need not measure again.

A file holds what its costs depend on: the graph, the machine and the library. Files that are unreadable or
about something else are ignored and overwritten; if the folder cannot be written to, that is logged.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.files import read_regular
from polyhead_server.scheduling.costs import Measured

_FORMAT = 5
_LARGEST_FILE = 2**20


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a graph's costs depend on."""

    manifest: str
    """SHA-256 of the version's manifest, which has every file's."""
    graph: str
    provider: str
    library: str
    """onnxruntime's version."""
    processor: str
    """The model of the CPU, and the GPU if one is used."""
    cpus: int
    """CPUs that this process may use."""
    threads: int
    """Threads of one run."""
    runs: int
    """Runs at once."""
    packed: bool = True
    """Whether weights are packed."""
    single_thread: bool = False
    """Whether it is the single-thread session beside another one."""
    workers: int = 1
    """Processes that share the GPU."""

    @property
    def file(self) -> str:
        """The name of the file."""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return f"costs-{hashlib.sha256(content).hexdigest()[:32]}.json"


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `polyhead` in the user's cache folder, by the XDG specification."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # noqa: PTH117 - the specification: relative paths are ignored
        base = os.path.join(environment.get("HOME") or tempfile.gettempdir(), ".cache")  # noqa: PTH118
    return Path(base, "polyhead")


def read_costs(folder: Path, key: Key) -> Measured | None:
    """Read measurements; return None if there are none that can be used."""
    try:
        content = json.loads(read_regular(folder / key.file, limit=_LARGEST_FILE, follow=True))
        if content["format"] != _FORMAT or content["key"] != asdict(key):
            return None
        points = {(int(batch), int(tokens)): float(seconds) for batch, tokens, seconds in content["points"]}
        gains = {int(tokens): float(gain) for tokens, gain in content["gains"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        LOGGER.info("measured costs in %s are not used: %s", key.file, type(error).__name__)
        return None
    sound = all(
        batch > 0 and 0 < seconds < float("inf") and (1, tokens) in points
        for (batch, tokens), seconds in points.items()
    )
    sound = sound and all(0 < gain < float("inf") for gain in gains.values())
    return Measured(points=points, gains=gains) if points and sound else None


def write_costs(folder: Path, key: Key, measured: Measured) -> None:
    """Write measurements. Concurrent readers get the old file or the new one."""
    content = {
        "format": _FORMAT,
        "key": asdict(key),
        "points": [[batch, tokens, seconds] for (batch, tokens), seconds in sorted(measured.points.items())],
        "gains": sorted(measured.gains.items()),
    }
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            json.dump(content, file)
        temporary.replace(folder / key.file)
    except OSError as error:
        LOGGER.warning("measured costs cannot be kept for the next start: %s", error.strerror)
        if temporary is not None:
            temporary.unlink(missing_ok=True)
