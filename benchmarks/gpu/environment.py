"""Which card, driver, libraries and versions, and what the card can do at best."""

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from gpu.card import DTYPES, Card, NoCardError
from gpu.graph import open_session
from gpu.part import Bench, reason
from gpu.timing import compare

_PACKAGES = (
    *(
        "polyhead",
        "torch",
        "triton",
        "onnxruntime-gpu",
        "onnxruntime",
        "onnx",
        "onnxscript",
        "numpy",
        "grpcio",
    ),
    *("nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cuda-runtime"),
)
_LIBRARIES = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|curand|nvrtc)\.so[.\d]*$")
_MAPS = Path("/proc/self/maps")
_COPIED_BYTES = 256 * 2**20
_QUERY = "driver_version,clocks.max.sm,clocks.sm,power.limit,memory.total"


def run(bench: Bench) -> None:
    """Writes it down.

    Raises:
        NoCardError: onnxruntime cannot use the card.
    """
    card = bench.card
    _try_onnxruntime(card)  # before anything else: without it there is nothing to measure
    bench.row(
        "machine",
        card=card.name,
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        **_card_facts(card),
    )
    bench.row("versions", **_versions())
    with bench.attempt("the driver's own words"):
        bench.row("driver", **_driver())
    bench.row("libraries", loaded=_loaded())
    for precision, teraflops in measure_peak(bench).items():
        bench.row("peak", precision=precision, teraflops=teraflops, size=bench.plan.peak_size)
    if card.kind == "cuda":
        with bench.attempt("copies"):
            bench.row("copies", **_copies(bench))


def measure_peak(bench: Bench) -> dict[str, float]:
    """The rate of a large product of random matrices, in TFLOP/s, by precision."""
    card, size = bench.card, bench.plan.peak_size
    precisions = {"fp16": DTYPES["fp16"], "bf16": DTYPES["bf16"]} if card.kind == "cuda" else {}
    peaks = {}
    for precision, dtype in (precisions or {"fp32": DTYPES["fp32"]}).items():
        a, b = (torch.randn(size, size, device=card.device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        samples = compare(
            card,
            {"product": partial(torch.mm, a, b, out=out)},
            sample_ms=2 * bench.plan.sample_ms,
            rounds=bench.plan.rounds,
        )
        peaks[precision] = 2 * size**3 / min(samples["product"]) / 1e9
    return peaks


def _card_facts(card: Card) -> dict[str, object]:
    if card.kind == "cpu":
        return {}
    facts = torch.cuda.get_device_properties(card.device)
    return {
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "cards": torch.cuda.device_count(),
        "mps": "runs" if mps_runs() else "does not run: several workers on one card take turns",
        "torch_cuda": torch.version.cuda,
        "torch_cudnn": torch.backends.cudnn.version(),
    }


def _versions() -> dict[str, str]:
    versions = {"onnxruntime module": str(ort.__version__)}
    if built_for := getattr(ort, "cuda_version", ""):
        versions["onnxruntime built for CUDA"] = str(built_for)
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _driver() -> dict[str, str]:
    program = shutil.which("nvidia-smi")
    if program is None or not torch.cuda.is_available():
        return {}
    card = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    which = "0" if card is None else f"GPU-{card}"
    command = [program, f"--id={which}", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
    return dict(zip(_QUERY.split(","), (each.strip() for each in done.stdout.split(",")), strict=True))


def _try_onnxruntime(card: Card) -> None:
    """Has onnxruntime multiply two matrices on the card, with the libraries that it needs for that.

    Raises:
        NoCardError: It cannot.
    """
    import onnx

    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    try:
        open_session(card, model.SerializeToString()).run(None, {"x": np.eye(2, dtype=np.float32)})
    except Exception as error:
        raise NoCardError(
            f"onnxruntime {ort.__version__} does not run on {card.name}: {reason(error)}; "
            "`polyhead doctor --device cuda` says what is missing"
        ) from error


def _loaded() -> list[str]:
    """CUDA's libraries in this process, by file name: a version that was not meant shows here."""
    return sorted({path.resolve().name for path in _library_files()})


def library_folders(maps: Path = _MAPS) -> list[str]:
    """Where CUDA's libraries in this process lie, the driver's own left out.

    Args:
        maps: What the process has in memory, as Linux spells it.
    """
    files = _library_files(maps)
    return sorted({str(path.parent) for path in files if not path.name.startswith("libcuda.so")})


def _library_files(maps: Path = _MAPS) -> list[Path]:
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = {line[line.index("/") :] for line in lines if "/" in line}
    return [Path(file) for file in files if _LIBRARIES.search(file)]


def mps_runs() -> bool:
    """Whether CUDA's multi-process service runs: without it, processes on one card take turns."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return (folder / "control").exists()


def _copies(bench: Bench) -> dict[str, float]:
    """Gigabytes a second between the host's pinned memory and the card, and within the card."""
    card = bench.card
    host = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    one, other = (torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=card.device) for _ in range(2))
    ways: Sequence[tuple[str, torch.Tensor, torch.Tensor, int]] = (
        ("to the card", one, host, 1),
        ("from the card", host, one, 1),
        ("within the card, read and written", one, other, 2),
    )
    samples = compare(
        card,
        {name: partial(to.copy_, of, non_blocking=True) for name, to, of, _ in ways},
        sample_ms=bench.plan.sample_ms,
        rounds=bench.plan.rounds,
    )
    return {name: times * _COPIED_BYTES / min(samples[name]) / 1e6 for name, _, _, times in ways}
