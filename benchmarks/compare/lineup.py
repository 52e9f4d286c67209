"""Who takes part where texts are embedded: servers of each engine and precision, and engines in process."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.compare.files import EngineFiles
from benchmarks.contenders import Contender, ContenderError, polyhead
from benchmarks.encoders import infer_request, text_request
from benchmarks.engines.backends import EngineModel
from benchmarks.engines.plans import BatchPlan, Sequences, Vectors, pad
from benchmarks.engines.processes import CORES, EngineWorker, engine_worker
from benchmarks.rounds import markdown_table
from polyhead_load.sweep.server import memory_of

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

_LEAST_COSINE = {"bf16": 0.999, "int8": 0.97, "": 0.9999}
"""By what names hold: the first one counts."""
_ONE_TEXT = ["A sentence."]


@dataclass(frozen=True, kw_only=True)
class TextServer:
    """A server with one encoder of texts."""

    contender: Contender
    model: str

    @property
    def name(self) -> str:
        """What it is called."""
        return self.contender.name

    def requests(self, sequences: Sequences, per_call: int) -> list[bytes]:
        """Return requests for the vectors of so many sequences each."""
        starts = range(0, len(sequences), per_call)
        return [self._request(sequences[start : start + per_call]) for start in starts]

    def embed(self, texts: Sequences) -> Vectors:
        """Return the vectors [B, D] of texts, each asked for by a call of its own, all at once."""
        replies = asyncio.run(self.contender.answers(self.requests(texts, 1)))
        return np.stack([np.frombuffer(reply.raw_output_contents[0], np.float32) for reply in replies])

    def _request(self, sequences: Sequences) -> bytes:
        ids = [each for each in sequences if not isinstance(each, str)]
        if ids:
            return infer_request(self.model, pad(ids), ["pooled"])
        return text_request(self.model, [each for each in sequences if isinstance(each, str)])


@dataclass(frozen=True, kw_only=True)
class TextLineup:
    """Servers and engines in process."""

    servers: Sequence[TextServer]
    workers: Sequence[EngineWorker]
    memory_mib: Mapping[str, float]
    """By name; right after the first answer."""


def engines_in_process(files: EngineFiles, peers: Path | None) -> dict[str, tuple[Path, EngineModel]]:
    """Return every engine by name, each with the Python of its environment.

    Args:
        files: Of the encoder.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers, if there is one.
    """
    ctranslate2, sentences = files.converted("ctranslate2"), files.converted("sentence-transformers")
    table: dict[str, tuple[str, Path, str]] = {
        PADDED: ("onnxruntime", files.padded, "padded"),
        PACKED: ("onnxruntime", files.graph(), "packed"),
        f"{PACKED}, int8": ("onnxruntime", files.graph(precision="int8"), "int8"),
        ALONE: ("openvino", files.padded, "fp32"),
        ALONE_BF16: ("openvino", files.padded, "bf16"),
        CTRANSLATE2: ("ctranslate2", ctranslate2, "float32"),
        CTRANSLATE2_INT8: ("ctranslate2", ctranslate2, "int8"),
        f"{SENTENCE_TRANSFORMERS}, torch": ("sentence-transformers", sentences, "torch"),
        f"{SENTENCE_TRANSFORMERS}, ONNX": ("sentence-transformers", sentences, "onnx"),
    }
    tokenizer = str(files.tokenizer.absolute())
    ours = Path(sys.executable)
    return {
        name: (
            python,
            EngineModel(kind=kind, path=str(path.absolute()), tokenizer=tokenizer, variant=variant),
        )
        for name, (kind, path, variant) in table.items()
        if (python := ours if kind in {"onnxruntime", "openvino"} else peers)
    }


@contextmanager
def start(
    files: EngineFiles, engines: Mapping[str, tuple[Path, EngineModel]], served: Sequence[str]
) -> Iterator[TextLineup]:
    """Start everyone, and end them.

    Args:
        files: Of the encoder.
        engines: Those in process, of `engines_in_process`.
        served: Keys of `SERVED`.
    """
    memory: dict[str, float] = {}
    servers, workers = [], []
    with ExitStack() as stack:
        for name in served:
            precision, flags = SERVED[name]
            contender = stack.enter_context(polyhead(files.repository(precision), flags, name=name))
            servers.append(TextServer(contender=contender, model=files.encoder))
            servers[-1].embed(_ONE_TEXT)
            memory[name] = memory_of(contender.process) / 2**20
        for name, (python, model) in engines.items():
            worker = stack.enter_context(engine_worker(name, model, files.folder, python=python))
            worker.embed(_ONE_TEXT, BatchPlan(batch=16, threads=CORES))
            workers.append(worker)
            memory[name] = worker.memory_mib
        yield TextLineup(servers=servers, workers=workers, memory_mib=memory)


def check(lineup: TextLineup, texts: Sequence[str]) -> dict[str, float]:
    """Have everyone embed texts, and compare the vectors with those of the padded graph, one text a run.

    Returns:
        The lowest cosine of each.

    Raises:
        ContenderError: Vectors are not those of the same encoder.
    """
    reference = next(worker for worker in lineup.workers if worker.name == PADDED)
    expected = reference.embed(texts, BatchPlan(batch=1, threads=CORES))
    found: dict[str, Vectors] = {server.name: server.embed(texts) for server in lineup.servers}
    together = BatchPlan(batch=16, threads=CORES)
    found |= {worker.name: worker.embed(texts, together) for worker in lineup.workers}
    every = {name: lowest_cosine(vectors, expected) for name, vectors in found.items()}
    for name, cosine in every.items():
        least = next(least for numbers, least in _LEAST_COSINE.items() if numbers in name)
        if not cosine >= least:
            raise ContenderError(
                f"{name} must embed as the padded graph does, but a cosine is {cosine:.4f} < {least}"
            )
    return every


def lowest_cosine(vectors: Vectors, expected: Vectors) -> float:
    """Compare vectors [B, D], of whatever length, with those that they should be."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    return float((np.einsum("bd,bd->b", vectors, expected) / norms).min())


def needs(memory_mib: Mapping[str, float], cosines: Mapping[str, float]) -> list[str]:
    """Return the table of memory and precision, with its heading."""
    return [
        "## Memory and precision",
        "",
        *markdown_table(
            {
                "": name,
                "memory, MiB": f"{memory_mib[name]:.0f}" if name in memory_mib else "",
                "lowest cosine": f"{cosine:.5f}",
            }
            for name, cosine in cosines.items()
        ),
    ]
