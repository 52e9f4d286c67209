"""Which GPU, driver, libraries and versions, and the rate of one large matrix product."""

import platform
import re
import shutil
import subprocess
from functools import partial
from importlib import metadata
from pathlib import Path

import onnxruntime as ort
import torch

from gpu.plan import Check

_PACKAGES = re.compile(r"polyhead|torch|triton|onnx.*|numpy|grpcio|nvidia-(cudnn|cublas|cuda-runtime).*")
_LIBRARIES = re.compile(r"/\S*lib(?:cuda|cudart|cublas|cublasLt|cudnn|nvrtc)\.so[.\d]*$", re.MULTILINE)
_PRODUCT = 8192
_QUERY = "driver_version,clocks.max.sm,clocks.sm,power.limit,memory.total"


def run(check: Check) -> None:
    """Write it down."""
    facts: dict[str, object] = {
        "device": check.device.name,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime built for CUDA": getattr(ort, "cuda_version", ""),
        "torch built for CUDA": torch.version.cuda or "",
    }
    if shutil.which("nvidia-smi"):
        with check.attempt("nvidia-smi"):
            said = subprocess.run(
                ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout
            facts |= zip(_QUERY.split(","), said.splitlines()[0].split(", "), strict=True)
    versions = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    facts |= {name: versions[name] for name in sorted(versions) if _PACKAGES.fullmatch(name)}
    check.write("machine", **facts)
    check.write("libraries", loaded=[path.name for path in loaded_libraries()])
    for name in ("float16", "bfloat16") if check.device.kind == "cuda" else ("float32",):
        with check.attempt(f"the {name} product"):
            check.write("product", dtype=name, teraflops=_teraflops(check, getattr(torch, name)))


def loaded_libraries() -> list[Path]:
    """CUDA's libraries in this process: a version that was not meant shows here."""
    maps = Path("/proc/self/maps")
    found = _LIBRARIES.findall(maps.read_text()) if maps.exists() else []
    return sorted({Path(file).resolve() for file in found})


def _teraflops(check: Check, dtype: torch.dtype) -> float:
    """The rate of a product of two random square matrices, in TFLOP/s."""
    size = _PRODUCT if check.device.kind == "cuda" else 64
    a, b = (torch.randn(size, size, device=check.device.torch).to(dtype) for _ in range(2))
    call = partial(torch.mm, a, b, out=torch.empty_like(a))
    samples = check.device.compare(
        {"product": call}, sample_ms=check.plan.sample_ms, rounds=check.plan.rounds
    )
    return 2 * size**3 / min(samples["product"]) / 1e9
