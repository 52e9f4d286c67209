"""Who takes part: servers of each engine and precision, and engines in process; and whether they agree."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.frame import in_turn
from benchmarks.in_process import CORES
from benchmarks.peers.contenders import Contender, PeerError
from benchmarks.texts.batches import BatchPlan, Vectors
from benchmarks.texts.engines import EngineModel
from benchmarks.texts.files import EngineFiles
from benchmarks.texts.served import TextServer
from benchmarks.texts.workers import EngineWorker, engine_worker
from polyhead_load.sweep.server import started_server

POLYHEAD = "polyhead, onnxruntime fp32"
"""What the others are compared with."""
OPENVINO, BF16 = "polyhead, OpenVINO fp32", "polyhead, OpenVINO bf16"
PADDED, PACKED = (f"onnxruntime in process, {computed} graph" for computed in ("padded", "packed"))
ALONE, ALONE_BF16 = (f"OpenVINO in process, padded graph, {numbers}" for numbers in ("fp32", "bf16"))
CTRANSLATE2, CTRANSLATE2_INT8 = (f"CTranslate2 in process, {numbers}" for numbers in ("fp32", "int8"))
SENTENCE_TRANSFORMERS = "sentence-transformers in process"
"""How the names of its back ends begin."""

_ON_CPU, _ON_OPENVINO = ("--device", "cpu"), ("--device", "openvino")
SERVED: Mapping[str, tuple[str, Sequence[str]]] = {
    POLYHEAD: ("fp32", _ON_CPU),
    "polyhead, onnxruntime int8": ("int8", _ON_CPU),
    OPENVINO: ("fp32", _ON_OPENVINO),
    "polyhead, OpenVINO int8": ("int8", _ON_OPENVINO),
    BF16: ("fp32", (*_ON_OPENVINO, "--compute-precision", "bf16")),
}
"""The precision of the family, and flags of the server."""

_LEAST_COSINE = {
    "bf16": 0.999,
    f"{SENTENCE_TRANSFORMERS}, OpenVINO": 0.999,  # it computes in bf16 where it can
    "dynamic int8": 0.8,
    "int8": 0.97,
}
"""By what names hold: the first one counts."""
_LEAST_COSINE_FP32 = 0.9999
_ONE_TEXT = ["A sentence."]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a process needs before it answers."""

    first_answer_seconds: float
    """From the start of its process."""
    memory_mib: float
    """Resident after that answer."""


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """How near vectors are to those that they should be."""

    lowest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class TextLineup:
    """Servers, engines in process, and their footprints by name."""

    servers: Sequence[TextServer]
    workers: Sequence[EngineWorker]
    footprints: Mapping[str, Footprint]


def engines_in_process(files: EngineFiles, peers: Path) -> dict[str, tuple[Path, EngineModel]]:
    """Return every engine by name, each with the Python of its environment.

    Args:
        files: Of the encoder.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers.
    """
    ctranslate2, sentences = files.converted("ctranslate2"), files.converted("sentence-transformers")
    table: dict[str, tuple[str, Path, str]] = {
        PADDED: ("onnxruntime", files.padded, "padded"),
        PACKED: ("onnxruntime", files.graph(), "packed"),
        "onnxruntime in process, its dynamic int8": ("onnxruntime", files.dynamic_int8, "int8"),
        ALONE: ("openvino", files.padded, "fp32"),
        ALONE_BF16: ("openvino", files.padded, "bf16"),
        CTRANSLATE2: ("ctranslate2", ctranslate2, "float32"),
        CTRANSLATE2_INT8: ("ctranslate2", ctranslate2, "int8"),
        f"{SENTENCE_TRANSFORMERS}, torch": ("sentence-transformers", sentences, "torch"),
        f"{SENTENCE_TRANSFORMERS}, ONNX": ("sentence-transformers", sentences, "model.onnx"),
        f"{SENTENCE_TRANSFORMERS}, ONNX, optimised": ("sentence-transformers", sentences, "model_O3.onnx"),
        f"{SENTENCE_TRANSFORMERS}, OpenVINO": ("sentence-transformers", sentences, "openvino"),
    }
    tokenizer = str(files.tokenizer.absolute())
    return {
        name: (
            Path(sys.executable) if kind in {"onnxruntime", "openvino"} else peers,
            EngineModel(kind=kind, path=str(path.absolute()), tokenizer=tokenizer, variant=variant),
        )
        for name, (kind, path, variant) in table.items()
    }


@contextmanager
def start(
    files: EngineFiles,
    engines: Mapping[str, tuple[Path, EngineModel]],
    served: Sequence[str],
    *,
    rounds: int = 1,
) -> Iterator[TextLineup]:
    """Start everyone, and end them. Servers start several times, in turn: the last ones stay.

    Args:
        files: Of the encoder.
        engines: Those in process, of `engines_in_process`.
        served: Keys of `SERVED`.
        rounds: How often each server starts.
    """
    starts: dict[str, list[Footprint]] = {name: [] for name in served}
    with ExitStack() as stack:
        for order in in_turn(served, rounds - 1):
            for name in order:
                with _serving(files, name) as (_, footprint):
                    starts[name].append(footprint)
        servers = []
        for name in served:
            server, footprint = stack.enter_context(_serving(files, name))
            servers.append(server)
            starts[name].append(footprint)
        footprints = {name: _median(found) for name, found in starts.items()}
        workers = []
        for name, (python, model) in engines.items():
            began = time.perf_counter()
            worker = stack.enter_context(engine_worker(name, python, model, files.folder))
            worker.embed(_ONE_TEXT, BatchPlan(batch=16, threads=CORES))
            seconds = time.perf_counter() - began
            footprints[name] = Footprint(first_answer_seconds=seconds, memory_mib=worker.memory_mib)
            workers.append(worker)
        yield TextLineup(servers=servers, workers=workers, footprints=footprints)


@contextmanager
def _serving(files: EngineFiles, name: str) -> Iterator[tuple[TextServer, Footprint]]:
    """Start a server, and have it answer."""
    precision, flags = SERVED[name]
    began = time.perf_counter()
    flags = ["--http-port", "off", "--log-level", "warning", *flags]
    with started_server(files.repository(precision), flags) as process:
        contender = Contender(name=name, address=process.address, process=process.process)
        server = TextServer(contender=contender, model=files.encoder)
        server.embed(_ONE_TEXT)
        seconds = time.perf_counter() - began
        yield server, Footprint(first_answer_seconds=seconds, memory_mib=process.memory_mib() or 0.0)


def _median(found: Sequence[Footprint]) -> Footprint:
    return Footprint(
        first_answer_seconds=median(each.first_answer_seconds for each in found),
        memory_mib=median(each.memory_mib for each in found),
    )


def check(lineup: TextLineup, texts: Sequence[str]) -> dict[str, Cosines]:
    """Have everyone embed texts, and compare the vectors with those of the padded graph, one text a run.

    Returns:
        The cosines of each.

    Raises:
        PeerError: Vectors are not those of the same encoder.
    """
    reference = next(worker for worker in lineup.workers if worker.name == PADDED)
    expected = reference.embed(texts, BatchPlan(batch=1, threads=CORES))
    found: dict[str, Vectors] = {server.name: server.embed(texts) for server in lineup.servers}
    together = BatchPlan(batch=16, threads=CORES)
    found |= {worker.name: worker.embed(texts, together) for worker in lineup.workers}
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
