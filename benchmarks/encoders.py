"""The encoders that `make bench` serves, from tiny to large, and the traffic that each gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import messages as pb


@dataclass(frozen=True, kw_only=True)
class BenchEncoder:
    """An encoder and the length of its requests."""

    name: str
    config: EncoderConfig
    tokens: int
    """T of the requests of equal length."""
    round: int = 96
    """Requests of mixed lengths, before they come again."""


ENCODERS = (
    BenchEncoder(name="bench-256", config=EncoderConfig(d_model=256, heads=4, layers=1), tokens=8),
    BenchEncoder(
        name="bench-384", config=EncoderConfig(d_model=384, heads=12, layers=6, feed_forward=1536), tokens=64
    ),
    BenchEncoder(
        name="bench-768",
        config=EncoderConfig(d_model=768, heads=12, layers=12, feed_forward=3072),
        tokens=128,
        round=32,
    ),
)

_MIXED_MIN, _MIXED_MAX = 8, 128


def export_missing(encoders: Sequence[BenchEncoder], models: Path) -> None:
    """Exports, with random weights, those of the encoders that are not in the repository yet."""
    for encoder in encoders:
        if not (models / encoder.name / "1").exists():
            torch.manual_seed(0)
            export_family(Encoder(encoder.config), encoder.name, models)


def equal_lengths(encoder: BenchEncoder, count: int) -> list[int]:
    """`count` requests, all T tokens long."""
    return [encoder.tokens] * count


def mixed_lengths(count: int, *, seed: int = 0) -> list[int]:
    """`count` log-normal lengths from 8 to 128 tokens, median about 29, as sentences have them."""
    lengths = np.random.default_rng(seed).lognormal(np.log(29), 0.6, count)
    return [int(length) for length in np.clip(np.round(lengths), _MIXED_MIN, _MIXED_MAX)]


def sequences(encoder: BenchEncoder, lengths: Sequence[int], *, seed: int = 0) -> list[NDArray[np.float32]]:
    """A random sequence [T_i, D] of each length."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((tokens, encoder.config.d_model), dtype=np.float32) for tokens in lengths]


def feed_of(batch: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[np.generic]]:
    """Pads sequences [T_i, D] to one input of the graph."""
    lengths = np.array([len(sequence) for sequence in batch], dtype=np.int32)
    x = np.zeros((len(batch), int(lengths.max()), batch[0].shape[1]), dtype=np.float32)
    for row, sequence in zip(x, batch, strict=True):
        row[: len(sequence)] = sequence
    return {"x": x, "lengths": lengths}


def request_bytes(
    encoder: BenchEncoder,
    lengths: Sequence[int],
    *,
    batch: int = 1,
    attention: Sequence[int] | None = None,
    dtype: str | None = None,
) -> list[bytes]:
    """Requests of `batch` sequences each, for the outputs that a client would name.

    Args:
        encoder: Whose.
        lengths: T of each sequence.
        batch: B.
        attention: The layers whose attention is wanted, where any is.
        dtype: How attention is sent.
    """
    every = sequences(encoder, lengths)
    requests = []
    for start in range(0, len(every) - batch + 1, batch):
        request = pb.ModelInferRequest(model_name=encoder.name + (".attention" if attention else ""))
        for name, datatype in (("x", "FP32"), ("lengths", "INT32")):
            array = feed_of(every[start : start + batch])[name]
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        request.outputs.add(name="output")
        for layer in attention or ():
            output = request.outputs.add(name=f"attention.{layer}")
            if dtype is not None:
                output.parameters["dtype"].string_param = dtype
        requests.append(request.SerializeToString())
    return requests


def reply_bytes(
    encoder: BenchEncoder,
    tokens: int,
    *,
    batch: int = 1,
    attention: Sequence[int] | None = None,
    dtype: str | None = None,
) -> int:
    """The size of the tensors in a reply."""
    config, width = encoder.config, 1 if dtype == "UINT8" else 4
    weights = len(attention or ()) * config.heads * tokens**2
    return batch * (4 * tokens * config.d_model + width * weights)
