"""The encoders of a check, exported once."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from benchmarks.encoders import export_missing
from benchmarks.gpu.plan import Check, EncoderFamily

_THREADS = 2
"""Of each export, of which several go side by side."""


def run(check: Check) -> None:
    """Export the families that are missing, the largest first."""
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) // _THREADS), get_context("forkserver")) as pool:
        for family, export in [(each, pool.submit(_export, each)) for each in check.families]:
            with check.attempt(f"export of {family}"):
                check.row(family=str(family), seconds=export.result())


def _export(family: EncoderFamily) -> float:
    """Export a family, if it is not there; return how long that took."""
    torch.set_num_threads(_THREADS)
    start = time.monotonic()
    export_missing([family.encoder], family.repository, precision=family.precision, graphs=family.graphs)
    return time.monotonic() - start
