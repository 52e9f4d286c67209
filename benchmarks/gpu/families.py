"""The encoders of a check, exported once, each to its own model repository."""

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.encoders import MINILM
from benchmarks.gpu.device import TimedDevice
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number
from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig

FAST, ATTENTION = GRAPHS = ("model", "attention")
_AT_ONCE = 4
"""Parallel exports; one of BERT-large takes about 6 GiB."""


def run(check: Check) -> None:
    """Export the families that are missing, several at once."""
    missing = [family for family in check.plan.families if not _folder(family, check.models).exists()]
    threads = max(1, (os.cpu_count() or 1) // _AT_ONCE)
    with ProcessPoolExecutor(_AT_ONCE, get_context("spawn")) as processes:
        exports = {processes.submit(export, family, check.models, threads): family.key for family in missing}
        for done in as_completed(exports):
            with check.attempt(f"export of {exports[done]}"):
                seconds = spell_number(done.result())
                check.write("row", cells={"family": exports[done], "seconds": seconds})


def export(family: EncoderFamily, models: Path, threads: int) -> float:
    """Export one family; return the seconds it took."""
    torch.set_num_threads(threads)
    start = time.monotonic()
    export_family(build(family), family.key, models / family.key, precision=family.precision)
    return time.monotonic() - start


def build(family: EncoderFamily) -> Encoder:
    """Return the encoder in fp32 on the CPU, the same every time."""
    if family.trained:
        return MINILM.build().encoder.eval()
    torch.manual_seed(0)
    return Encoder(family.config).eval()


def open_graph(device: TimedDevice, family: EncoderFamily, models: Path, graph: str) -> ort.InferenceSession:
    """Open a session of one of `GRAPHS` on the device.

    Raises:
        RuntimeError: onnxruntime chose another provider.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    path = _folder(family, models) / f"{graph}.onnx"
    session = ort.InferenceSession(str(path), options, providers=device.providers)
    session.disable_fallback()
    wanted = device.providers[0] if device.kind == "cpu" else device.providers[0][0]
    if session.get_providers()[0] != wanted:
        raise RuntimeError(
            f"{path.name} must run on {wanted}, onnxruntime chose {session.get_providers()[0]}"
        )
    return session


def feeds_of(config: EncoderConfig, lengths: list[int], *, seed: int) -> dict[str, NDArray[np.generic]]:
    """Return random token ids, padded to [B, T], and their lengths."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    feeds: dict[str, NDArray[np.generic]] = {"input_ids": random.integers(config.vocabulary or 1, size=shape)}
    if config.types:
        feeds["token_type_ids"] = np.zeros(shape, np.int64)
    return feeds | {"lengths": np.array(lengths, np.int32)}


def _folder(family: EncoderFamily, models: Path) -> Path:
    return models / family.key / family.key / "1"
