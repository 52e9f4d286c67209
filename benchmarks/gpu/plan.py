"""The device and the families of a check, its targets, and what every part is given."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.encoders import BERT, MINILM, TINY_TEXTS, BenchEncoder
from benchmarks.rounds import spell_number
from polyhead_export import Precision
from polyhead_export.comparison import LARGEST
from polyhead_export.half_precision import LIMITS
from polyhead_model import Classifier, ContactHead, Dense, EncoderConfig, Splade, TokenVectors
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
from polyhead_server.engine.session import open_session
from polyhead_server.errors import DeviceError
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import Signature, signature_of

FAST, ATTENTION = "model", "attention"
TEXTS, LONG = "minilm", "bert"
"""The family that is served, of up to 256 tokens, and one of BERT-base's size, of up to 512."""

TARGETS: Mapping[str, tuple[str, str, float]] = {
    "kinds": ("graphs of any family that are not served", "≤", 0),
    "fp32": ("fp32: errors by float64 × the limit of an export", "≤", 1),
    "fp16": ("fp16: the largest error by float64", "≤", LIMITS["fp16"]),
    "bf16": ("bf16: the largest error by float64", "≤", LIMITS["bf16"]),
    "shapes": ("first run of a (B, T) × warm, 99th percentile", "≤", 1.2),
    "1,024 natural": ("1,024 natural texts × torch.compile, padded", "≥", 4),
    "128 natural": ("128 natural texts × torch.compile, padded", "≥", 2.4),
    "operator": ("any mix × a bare graph of the same operator", "≥", 0.95),
    "best": ("any mix × the best bare graph", "≥", 0.75),
    "32 × 512": ("32 × 512 × the padded bare graph", "≥", 0.85),
    "1 × 16": ("time of 1 × 16 ÷ the padded bare graph's", "≤", 0.65),
    "T = 128": ("attention's time ÷ the padded bare graph's, 32 × 128", "≤", 1.5),
    "T = 512": ("attention's time ÷ the padded bare graph's, 32 × 512", "≤", 2),
    "outputs fp32": ("fp32: any output, from a CPU server's", "≤", LARGEST),
    "outputs fp16": ("fp16: any output, from a CPU server's in fp32", "≤", 2e-2),
    "served": ("single texts/s, 256 in flight, in the first second", "≥", 1500),
    "errors": ("calls that failed under any load", "≤", 0),
}
"""What a check holds its numbers against."""


def device_of(kind: str) -> Device:
    """Return the device as a server uses it.

    Args:
        kind: `cuda` for the first GPU, or `cpu`.

    Raises:
        DeviceError: `cuda` was asked for, and PyTorch or onnxruntime cannot use it.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} sees no GPU: an NVIDIA driver and a torch with CUDA are needed; "
            "`--device cpu --tiny` tries the code without one"
        )
    return choose_device(kind)


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """An encoder over token ids, in one precision."""

    encoder: BenchEncoder
    precision: Precision
    repository: Path
    graphs: tuple[str, ...]
    """Beside the fast and the attention graph."""

    def __str__(self) -> str:
        return f"{self.encoder.name} {self.precision}"

    @property
    def folder(self) -> Path:
        """Its version."""
        return self.repository / self.encoder.name / "1"

    def signatures(self) -> dict[str, Signature]:
        """Return what the inputs and outputs of each graph are, by the name of its file.

        Raises:
            RepositoryError: It has not been exported.
        """
        manifest = read_manifest(self.folder, family=self.encoder.name, version=1)
        return {Path(each.file).stem: signature_of(manifest, name) for name, each in manifest.graphs.items()}

    def feeds(self, graph: str, lengths: list[int]) -> dict[str, NDArray[Any]]:
        """Return inputs of a graph: random token ids, padded to [B, T], their lengths, and ones or zeros."""
        size = (len(lengths), max(lengths))
        ids = np.random.default_rng(0).integers(self.encoder.config.vocabulary or 1, size=size)
        example = self.signatures()[graph].example(*size)
        return {**example, "input_ids": ids, "lengths": np.array(lengths, np.int32)}


@dataclass(frozen=True, kw_only=True)
class Check:
    """The argument of every part."""

    device: Device
    families: tuple[EncoderFamily, ...]
    tiny: bool
    seconds: float
    """Length of a load."""
    write: Callable[..., None]
    """`write(kind, **facts)` stores one result: a `row` of `cells`, a `line` of `text`, a `target`, …"""

    def family(self, name: str, precision: str | None = None) -> EncoderFamily:
        """Return a family, by default in the precision that is measured."""
        wanted = name, precision or ("fp32" if self.device.host_memory else "fp16")
        return next(each for each in self.families if (each.encoder.name, each.precision) == wanted)

    def engine(self, family: EncoderFamily, graph: str) -> Engine:
        """Load a graph as a server does. Raises what `Engine` does."""
        path, signature = family.folder / f"{graph}.onnx", family.signatures()[graph]
        return Engine(path, signature=signature, device=self.device, threads=0)

    def open(self, graph: Path) -> ort.InferenceSession:
        """Open a graph as a server does.

        Raises:
            DeviceError: It does not run on the device, or only in part.
        """
        return open_session(graph, device=self.device, threads=0)

    def clock(self) -> float:
        """Return the seconds when all that was queued is done."""
        if not self.device.host_memory:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def attempt(self, what: object) -> Iterator[None]:
        """Store an exception as a problem, and go on."""
        try:
            yield
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.write("problem", what=str(what), reason=reason)

    def row(self, **cells: object) -> None:
        """Store a row of the part's table; numbers are spelt."""
        spelt = (spell_number(each) if isinstance(each, float) else each for each in cells.values())
        self.write("row", cells=dict(zip((name.replace("_", " ") for name in cells), spelt, strict=True)))

    def judge(self, key: str, value: float) -> None:
        """Store what is held against a target, of which the worst counts."""
        self.write("target", key=key, value=value)


_small = partial(EncoderConfig, d_model=64, heads=4, layers=2, feed_forward=96, vocabulary=50, positions=128)
_LATE = TokenVectors(dense=(Dense(width=16, bias=False),), skipped_ids=(4, 5), expansion_id=6)
_OTHERS = {
    "contacts": _small(rotary_base=1e4, contacts=ContactHead(weights=(0.1,) * 8, bias=0.1, end_id=2)),
    "sparse": _small(splade=Splade()),
    "maxsim": _small(token_vectors=_LATE),
    "pooled": _small(classifier=Classifier(labels=("a", "b", "c"), pooling="cls")),
    "rows": _small(classifier=Classifier(labels=("a", "b", "c"), pooling=None)),
}
"""Small encoders for the kinds of graphs that texts have not, by the kind; the last one labels tokens."""


def families_of(device: Device, models: Path, *, tiny: bool) -> tuple[EncoderFamily, ...]:
    """Return what a check exports and measures; a CPU has kernels for fp32 alone."""
    texts, long, names = MINILM, BERT, list(_OTHERS)
    if tiny:
        texts = long = replace(TINY_TEXTS, config=replace(TINY_TEXTS.config, feed_forward=32))
        names = ["maxsim"]
    precisions: tuple[Precision, ...] = ("fp32",) if device.host_memory else ("fp32", "fp16", "bf16")
    encoders = [replace(texts, name=TEXTS, config=replace(texts.config, head_mask_input=True))]
    encoders += [BenchEncoder(name=name, config=_OTHERS[name], tokens=8) for name in names]
    large, measured = replace(long, name=LONG, tokenizer=False), precisions[len(precisions) > 1]
    return (
        EncoderFamily(encoder=large, precision=measured, repository=models / measured, graphs=()),
        *(
            EncoderFamily(
                encoder=each,
                precision=precision,
                repository=models / (f"{precision}-others" if each.name in _OTHERS else precision),
                graphs=(each.name if each.name in _OTHERS else "all",),
            )
            for precision in precisions
            for each in encoders
        ),
    )
