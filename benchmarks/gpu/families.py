"""The encoders of a check, exported once, each to its own model repository."""

import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.encoders import export_missing
from benchmarks.gpu.device import TimedDevice
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number
from polyhead_model import Encoder, EncoderConfig

FAST, ATTENTION = GRAPHS = ("model", "attention")


def run(check: Check) -> None:
    """Export the families that are missing."""
    for family in check.plan.families:
        with check.attempt(f"export of {family.key}"):
            start = time.monotonic()
            export_missing([family.encoder], check.models / family.key, precision=family.precision)
            seconds = spell_number(time.monotonic() - start)
            check.write("row", cells={"family": family.key, "seconds": seconds})


def build(family: EncoderFamily) -> Encoder:
    """Return the encoder in fp32 on the CPU, the same every time."""
    return family.encoder.build().encoder.eval()


def open_graph(device: TimedDevice, family: EncoderFamily, models: Path, graph: str) -> ort.InferenceSession:
    """Open a session of one of `GRAPHS` on the device.

    Raises:
        RuntimeError: onnxruntime chose another provider.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    path = family.encoder.graph(models / family.key).with_name(f"{graph}.onnx")
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
