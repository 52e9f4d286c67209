"""Have a checkpoint exported by a process of its own: that takes PyTorch, which a server never loads."""

import signal
import subprocess
import sys
from pathlib import Path

from polyhead_server.errors import StartError

_EXPORT = "polyhead_export.cached"
"""Prints the folder. What it says beside that goes to standard error, as what the server says."""


def exported(checkpoint: str, task: str | None = None) -> Path:
    """Return the folder of a model repository with a checkpoint, which is exported if it never was.

    Args:
        checkpoint: A folder, or `ORG/NAME` or `ORG/NAME@REVISION` on the Hugging Face hub.
        task: The task whose adapter is merged into the weights; None means none.

    Raises:
        StartError: It could not be exported; the process has said why.
        KeyboardInterrupt: SIGINT or SIGTERM came meanwhile; the process has ended.
    """
    chosen = [] if task is None else [f"--task={task}"]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with subprocess.Popen(  # noqa: S603 - no shell is involved
            [sys.executable, "-m", _EXPORT, *chosen, "--", checkpoint], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                printed, _ = process.communicate()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    if process.returncode != 0:
        raise StartError(f"--checkpoint {checkpoint} is not exported: the process that was to do it says why")
    return Path(printed.removesuffix("\n"))
