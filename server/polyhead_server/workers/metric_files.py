"""The files in which workers keep what they count, and which each of them reads.

prometheus_client has a file for each worker and each kind of metric, and maps it into memory. A worker's
replacement goes on with the files of its predecessor: no counter decreases, and there are never more files.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from polyhead_proto.system.locked_folders import abandoned_folders, locked_folder
from polyhead_server.errors import StartError

_PREFIX = "polyhead-metrics-"
_FILE_BYTES = {
    **dict.fromkeys(("counter", "histogram"), 2**20),  # some thirty graphs; then a file is doubled
    **dict.fromkeys(("gauge_livesum", "gauge_livemax", "gauge_max"), 2**16),
}


@contextmanager
def metric_files(workers: int) -> Iterator[Path]:
    """Make a folder with the files of all workers in the system's temporary one (TMPDIR).

    Yields:
        The folder, which is removed at the end of the block.

    Raises:
        StartError: There is no room, or the temporary folder cannot be written.
    """
    for folder in abandoned_folders(_PREFIX, Path(tempfile.gettempdir())):
        shutil.rmtree(folder, ignore_errors=True)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(_PREFIX))
            for worker in range(workers):
                add_files(folder, worker)
        except OSError as error:
            raise StartError(
                f"workers must be able to keep metrics in the temporary folder, {error.strerror}: set TMPDIR"
            ) from error
        yield folder


def add_files(folder: Path, worker: int) -> None:
    """Add the files that a worker lacks, with room on the disk: without, a write would kill it (SIGBUS).

    Raises:
        OSError: There is no room.
    """
    for kind, size in _FILE_BYTES.items():
        file = folder / f"{kind}_{worker}.db"
        if not file.exists():
            new = file.with_suffix(".new")  # which no other worker reads yet
            new.write_bytes(bytes(size))
            new.rename(file)
