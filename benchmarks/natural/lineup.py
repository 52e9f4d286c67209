"""Everyone who embeds the texts, started and asked whether they agree."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.encoders import (
    GRAPH,
    MINILM,
    computes_padding,
    export_minilm,
    export_padded,
    trained_minilm,
)
from benchmarks.in_process import CORES
from benchmarks.natural.batches import BatchPlan, Vectors
from benchmarks.natural.comparison import CTRANSLATE2, INT8, PACKED, PADDED, SENTENCE_TRANSFORMERS, Cosines
from benchmarks.natural.engines import EngineModel
from benchmarks.natural.served import TextServer
from benchmarks.natural.workers import EngineWorker, engine_worker
from benchmarks.peers.comparison import POLYHEAD
from benchmarks.peers.contenders import Contender, PeerError
from benchmarks.peers.launch import TritonVariant, tritonserver
from benchmarks.servers import ServerProcess, serve

_VARIANTS = (
    TritonVariant(instances=1, threads=CORES, max_batch={MINILM: 32}),
    TritonVariant(instances=CORES, threads=1, max_batch={MINILM: 8}),
)
_D_MODEL = 384
CONVERTED, DONE = "converted", "done"
_LEAST_COSINE = {"bf16": 0.999, f"dynamic {INT8}": 0.8, INT8: 0.97}
"""By what names hold: the first one counts."""
_LEAST_COSINE_FP32 = 0.9999
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class TextGraphs:
    """The fast graphs of MiniLM."""

    padded: Path
    packed: Path | None
    """None if export does not pack."""
    tokenizer: Path

    @property
    def served(self) -> dict[str, Path]:
        """The graphs by what they compute."""
        return {"padded": self.padded} | ({"packed": self.packed} if self.packed else {})


@dataclass(frozen=True, kw_only=True)
class PeerEnvironments:
    """The Python of each environment of peers."""

    triton: Path
    """Has nvidia-pytriton."""
    sentences: Path
    """Has CTranslate2 and sentence-transformers."""


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """Servers, and engines in process."""

    polyhead: ServerProcess
    servers: Sequence[TextServer]
    workers: Sequence[EngineWorker]


def export_graphs(models: Path) -> TextGraphs:
    """Export what is missing in the model repository, and beside it."""
    export_minilm(models)
    padded = export_padded(trained_minilm().encoder, MINILM, models.absolute())
    served = (models / MINILM / "1" / GRAPH).absolute()
    return TextGraphs(
        padded=padded / MINILM / "1" / GRAPH,
        packed=None if computes_padding(served) else served,
        tokenizer=served.with_name("tokenizer.json"),
    )


def convert(python: Path, checkpoint: Path, folder: Path, *flags: str) -> None:
    """Convert a checkpoint for the engines of peers to `folder / CONVERTED`, unless that was done.

    Args:
        python: Of the environment that has them.
        checkpoint: The checkpoint's folder.
        folder: Where the converted one goes.
        flags: Flags of `benchmarks.natural.convert`.

    Raises:
        PeerError: The environment is missing or damaged.
    """
    converted = folder / CONVERTED
    if (converted / DONE).exists():
        return
    try:
        subprocess.run(
            [python, "-m", "benchmarks.natural.convert", checkpoint, converted, *flags],
            env=os.environ | {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"},
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(
            f"{python} must convert the checkpoint: `make` installs what it needs with what compares engines"
        ) from error
    (converted / DONE).touch()


@contextmanager
def start(graphs: TextGraphs, models: Path, pythons: PeerEnvironments, folder: Path) -> Iterator[Lineup]:
    """Start everyone, and end them.

    Args:
        graphs: The graphs.
        models: The model repository.
        pythons: The environments of peers.
        folder: Where `convert` wrote, and logs and Triton's models go.
    """
    configurations: dict[str, str] = {}
    triton_models: dict[str, tuple[str, int]] = {}
    for computed, graph in graphs.served.items():
        for variant in _VARIANTS:
            model = f"{MINILM}-{computed}{variant.suffix}"
            configurations[model] = variant.text_configuration(
                MINILM, f"-{computed}", _D_MODEL, {"graph": graph, "tokenizer": graphs.tokenizer}
            )
            triton_models[model] = (f"{variant}, {computed} graph", variant.max_batch[MINILM])
    with ExitStack() as stack:
        polyhead = stack.enter_context(serve(models, []))
        servers = [
            TextServer(
                contender=Contender(name=POLYHEAD, address=polyhead.address, process=polyhead.process),
                model=MINILM,
            )
        ]
        started = stack.enter_context(tritonserver(pythons.triton, configurations, folder / "triton"))
        servers += [
            TextServer(contender=replace(started, name=name), model=model, per_text=(1,), max_batch=max_batch)
            for model, (name, max_batch) in triton_models.items()
        ]
        workers = [
            stack.enter_context(engine_worker(name, python, model, folder))
            for name, (python, model) in _engines(graphs, folder, pythons.sentences).items()
        ]
        yield Lineup(polyhead=polyhead, servers=servers, workers=workers)


def check(
    servers: Sequence[TextServer], workers: Sequence[EngineWorker], texts: Sequence[str]
) -> dict[str, Cosines]:
    """Have everyone embed texts, and compare the vectors with those of the padded graph, one text a run.

    Returns:
        The cosines of each.

    Raises:
        PeerError: Vectors are not those of the same encoder.
    """
    reference = next(worker for worker in workers if worker.name == PADDED)
    expected = reference.embed(texts, BatchPlan(batch=1, threads=CORES))
    found: dict[str, Vectors] = {server.name: server.embed(texts) for server in servers}
    together = BatchPlan(batch=16, threads=CORES)
    found |= {worker.name: worker.embed(texts, together) for worker in workers}
    every = {name: cosines(vectors, expected) for name, vectors in found.items()}
    for name, cosine in every.items():
        least = next(
            (least for numbers, least in _LEAST_COSINE.items() if numbers in name), _LEAST_COSINE_FP32
        )
        if not cosine.lowest >= least:
            raise PeerError(
                f"{name} must embed as the padded graph does, but a cosine is {cosine.lowest:.4f} < {least}"
            )
    return every


def cosines(vectors: Vectors, expected: Vectors) -> Cosines:
    """Compare vectors [B, D], of whatever length, with those that they should be."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    found = np.einsum("bd,bd->b", vectors, expected) / norms
    return Cosines(lowest=float(found.min()), mean=float(found.mean()))


def peer_engines(folder: Path, peers: Path, tokenizer: str) -> dict[str, tuple[Path, EngineModel]]:
    """Return CTranslate2 and sentence-transformers by name, as `convert` prepared them.

    Args:
        folder: Given to `convert`.
        peers: The Python of their environment.
        tokenizer: A `tokenizer.json`.
    """
    engines = {}
    for name, numbers in ((CTRANSLATE2, "float32"), (f"{CTRANSLATE2.removesuffix('fp32')}{INT8}", "int8")):
        path = folder / CONVERTED / "ctranslate2"
        engines[name] = _model("ctranslate2", path, tokenizer, numbers)
    for name, backend in (("torch", "torch"), ("ONNX", "model.onnx"), ("ONNX, optimised", "model_O3.onnx")):
        path = folder / CONVERTED / "sentence-transformers"
        engines[f"{SENTENCE_TRANSFORMERS}, {name}"] = _model(
            "sentence-transformers", path, tokenizer, backend
        )
    return {name: (peers, model) for name, model in engines.items()}


def _model(kind: str, path: Path, tokenizer: str, variant: str) -> EngineModel:
    return EngineModel(kind=kind, path=str(path.absolute()), tokenizer=tokenizer, variant=variant)


def _engines(graphs: TextGraphs, folder: Path, peers: Path) -> dict[str, tuple[Path, EngineModel]]:
    """Return the engines in process by name, each with the Python of its environment."""
    own, tokenizer = Path(sys.executable), str(graphs.tokenizer)
    engines = {PADDED: (own, _model("onnxruntime", graphs.padded, tokenizer, "padded"))}
    if graphs.packed is not None:
        engines[PACKED] = (own, _model("onnxruntime", graphs.packed, tokenizer, "packed"))
    return engines | peer_engines(folder, peers, tokenizer)
