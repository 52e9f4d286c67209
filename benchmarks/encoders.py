"""The encoders that `make bench` serves, from tiny to large, and the traffic that each gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyhead_export import export_family
from polyhead_load import Lengths
from polyhead_load.contents import draw_lengths, vectors
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES


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

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_MIXED = Lengths(median=29, sigma=0.6, low=8, high=128)


def export_missing(encoders: Sequence[BenchEncoder], models: Path) -> None:
    """Export, with random weights, those of the encoders that are not in the repository yet."""
    for encoder in encoders:
        if not (models / encoder.name / "1").exists():
            torch.manual_seed(0)
            export_family(Encoder(encoder.config), encoder.name, models)


def equal_lengths(encoder: BenchEncoder, count: int) -> list[int]:
    """Return `count` lengths, all T tokens."""
    return [encoder.tokens] * count


def mixed_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Return `count` log-normal lengths from 8 to 128 tokens, median about 29, as sentences have them."""
    return draw_lengths(_MIXED, count, np.random.default_rng(seed))


def sequences(encoder: BenchEncoder, lengths: Sequence[int], *, seed: int = 0) -> list[NDArray[np.float32]]:
    """Return a random sequence [T_i, D] of each length."""
    return list(vectors(list(lengths), encoder.config.d_model, np.random.default_rng(seed)))


def feed_of(batch: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[np.generic]]:
    """Pad sequences [T_i, D] to one input of the graph."""
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
    """Return requests of `batch` sequences each, for the outputs that a client would name.

    Args:
        encoder: Whose.
        lengths: T of each sequence.
        batch: B.
        attention: The layers whose attention is wanted, where any is.
        dtype: How attention is sent.
    """
    every = sequences(encoder, lengths)
    outputs = {"output": None, **{f"attention.{layer}": dtype for layer in attention or ()}}
    return [
        infer_request(
            encoder.name + (".attention" if attention else ""), feed_of(every[start : start + batch]), outputs
        )
        for start in range(0, len(every) - batch + 1, batch)
    ]


def infer_request(
    model: str, inputs: Mapping[str, NDArray[np.generic]], outputs: Mapping[str, str | None]
) -> bytes:
    """Return a `ModelInferRequest`.

    Args:
        model: Its name.
        inputs: Arrays by name.
        outputs: The wanted outputs by name, each with the datatype that it is sent in, or None for its own.
    """
    request = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_DATATYPES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name, dtype in outputs.items():
        output = request.outputs.add(name=name)
        if dtype is not None:
            output.parameters["dtype"].string_param = dtype
    return bytes(request.SerializeToString())


def reply_bytes(
    encoder: BenchEncoder,
    tokens: int,
    *,
    batch: int = 1,
    attention: Sequence[int] | None = None,
    dtype: str | None = None,
) -> int:
    """Return the size of the tensors in a reply."""
    config, width = encoder.config, 1 if dtype == "UINT8" else 4
    weights = len(attention or ()) * config.heads * tokens**2
    return batch * (4 * tokens * config.d_model + width * weights)
