"""Who takes part: servers of each engine and precision, and engines in process."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.engines.encoders import EngineFiles
from benchmarks.frame import in_turn
from benchmarks.in_process import CORES
from benchmarks.natural.batches import BatchPlan
from benchmarks.natural.comparison import CTRANSLATE2, INT8, PACKED, PADDED, SENTENCE_TRANSFORMERS
from benchmarks.natural.engines import EngineModel
from benchmarks.natural.lineup import CONVERTED, peer_engines
from benchmarks.natural.served import TextServer
from benchmarks.natural.workers import EngineWorker, engine_worker
from benchmarks.peers.contenders import Contender
from polyhead_load.sweep.server import OwnServer, started_server

ONNXRUNTIME = "polyhead, onnxruntime fp32"
"""What the others are compared with."""
OPENVINO = "polyhead, OpenVINO fp32"
BF16 = "polyhead, OpenVINO bf16"
ALONE = "OpenVINO in process, padded graph"
ALONE_BF16 = f"{ALONE}, bf16"
ATTENTION_BF16 = "OpenVINO in process, attention graph, bf16"
DYNAMIC = f"onnxruntime in process, its dynamic {INT8}"
CTRANSLATE2_INT8 = f"{CTRANSLATE2.removesuffix('fp32')}{INT8}"

_ONE_TEXT = ["A sentence."]


@dataclass(frozen=True, kw_only=True)
class ServedEngine:
    """A way to serve."""

    precision: str
    """Of the family."""
    flags: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a process needs before it answers."""

    first_answer_seconds: float
    """From the start of its process."""
    memory_mib: float
    """Resident after that answer."""


@dataclass(frozen=True, kw_only=True)
class EngineLineup:
    """Servers, engines in process, and their footprints by name."""

    servers: Sequence[TextServer]
    workers: Sequence[EngineWorker]
    footprints: Mapping[str, Footprint]


def served_engines(*, bf16: bool) -> dict[str, ServedEngine]:
    """Return the ways to serve by name; `bf16` says whether the processor has it."""
    openvino = ("--device", "openvino")
    found = {
        ONNXRUNTIME: ServedEngine(precision="fp32", flags=("--device", "cpu")),
        f"polyhead, onnxruntime {INT8}": ServedEngine(precision="int8", flags=("--device", "cpu")),
        OPENVINO: ServedEngine(precision="fp32", flags=openvino),
        f"polyhead, OpenVINO {INT8}": ServedEngine(precision="int8", flags=openvino),
    }
    if bf16:
        found[BF16] = ServedEngine(precision="fp32", flags=(*openvino, "--compute-precision", "bf16"))
    return found


def engines_in_process(files: EngineFiles, peers: Path, *, bf16: bool) -> dict[str, tuple[Path, EngineModel]]:
    """Return engines by name, each with the Python of its environment."""
    own, tokenizer = Path(sys.executable), files.tokenizer

    def model(kind: str, path: Path, variant: str, *, attention: bool = False) -> tuple[Path, EngineModel]:
        return own, EngineModel(
            kind=kind, path=str(path.absolute()), tokenizer=tokenizer, variant=variant, attention=attention
        )

    found = {
        PADDED: model("onnxruntime", files.padded, "padded"),
        PACKED: model("onnxruntime", files.graph(), "packed"),
        DYNAMIC: model("onnxruntime", files.dynamic_int8, "int8"),
        f"{ALONE}, fp32": model("openvino", files.padded, "fp32"),
    }
    if bf16:
        found[ALONE_BF16] = model("openvino", files.padded, "bf16")
        found[ATTENTION_BF16] = model("openvino", files.graph("attention.onnx"), "bf16", attention=True)
    found |= peer_engines(files.folder, peers, tokenizer)
    path = files.folder / CONVERTED / "sentence-transformers"
    return found | {
        # OpenVINO computes in bf16 by itself where it can.
        f"{SENTENCE_TRANSFORMERS}, OpenVINO {'bf16' if bf16 else 'fp32'}": (
            peers,
            EngineModel(
                kind="sentence-transformers", path=str(path), tokenizer=tokenizer, variant="openvino"
            ),
        )
    }


@contextmanager
def start(files: EngineFiles, peers: Path, *, bf16: bool, rounds: int) -> Iterator[EngineLineup]:
    """Start everyone, and end them. Servers start several times, in turn: the last ones stay.

    Args:
        files: Of the encoder.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers.
        bf16: Whether the processor has bf16.
        rounds: How often each server starts.
    """
    ways = served_engines(bf16=bf16)
    starts: dict[str, list[Footprint]] = {name: [] for name in ways}
    with ExitStack() as stack:
        for order in in_turn(ways, rounds - 1):
            for name in order:
                with _serving(files, name, ways[name]) as (_, footprint):
                    starts[name].append(footprint)
        servers = []
        for name, way in ways.items():
            server, footprint = stack.enter_context(_serving(files, name, way))
            servers.append(server)
            starts[name].append(footprint)
        footprints = {name: _median(found) for name, found in starts.items()}
        workers = []
        for name, (python, model) in engines_in_process(files, peers, bf16=bf16).items():
            began = time.perf_counter()
            worker = stack.enter_context(engine_worker(name, python, model, files.folder))
            worker.embed(_ONE_TEXT, BatchPlan(batch=16, threads=CORES))
            footprints[name] = Footprint(
                first_answer_seconds=time.perf_counter() - began, memory_mib=worker.memory_mib
            )
            workers.append(worker)
        yield EngineLineup(servers=servers, workers=workers, footprints=footprints)


@contextmanager
def _serving(files: EngineFiles, name: str, way: ServedEngine) -> Iterator[tuple[TextServer, Footprint]]:
    """Start a server, and have it answer."""
    began = time.perf_counter()
    flags = ["--http-port", "off", "--log-level", "warning", *way.flags]
    with started_server(files.repository(way.precision), flags) as process:
        server = _text_server(name, files.encoder, process)
        server.embed(_ONE_TEXT)
        seconds = time.perf_counter() - began
        yield (
            server,
            Footprint(first_answer_seconds=seconds, memory_mib=process.memory_mib() or 0.0),
        )


def _text_server(name: str, model: str, process: OwnServer) -> TextServer:
    return TextServer(
        contender=Contender(name=name, address=process.address, process=process.process), model=model
    )


def _median(found: Sequence[Footprint]) -> Footprint:
    return Footprint(
        first_answer_seconds=median(each.first_answer_seconds for each in found),
        memory_mib=median(each.memory_mib for each in found),
    )
