"""The GPU, driver, libraries and versions, and the rate of one large matrix product."""

import re
from functools import partial
from importlib import metadata
from pathlib import Path

import onnxruntime as ort
import torch

from benchmarks.gpu.plan import Check
from benchmarks.rounds import spell_number

_PACKAGES = re.compile(r"torch|triton|onnx.*|nvidia-(cudnn|cublas|cuda-runtime).*")
_LIBRARIES = re.compile(r"/\S*lib(?:cuda|cudart|cublas|cublasLt|cudnn|nvrtc)\.so[.\d]*$", re.MULTILINE)
_PRODUCT = 8192


def run(check: Check) -> None:
    """Store the facts, and time the product."""
    facts = {
        "device": check.device.name,
        "onnxruntime built for CUDA": getattr(ort, "cuda_version", ""),
        "torch built for CUDA": torch.version.cuda or "",
    }
    versions = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    facts |= {name: versions[name] for name in sorted(versions) if _PACKAGES.fullmatch(name)}
    check.write("device", name=check.device.name)
    for name, value in facts.items():
        check.write("row", cells={"fact": name, "value": value})
    loaded = ", ".join(path.name for path in loaded_libraries()) or "none of CUDA"
    check.write("line", text=f"Libraries in the process: {loaded}.")
    for name in ("float16", "bfloat16") if check.device.kind == "cuda" else ("float32",):
        with check.attempt(f"the {name} product"):
            rate = spell_number(_teraflops(check, getattr(torch, name)))
            check.write("line", text=f"A large matrix product: {rate} TFLOP/s in {name}.")


def loaded_libraries() -> list[Path]:
    """Return the CUDA libraries that this process has loaded: an unexpected version shows here."""
    maps = Path("/proc/self/maps")
    found = _LIBRARIES.findall(maps.read_text()) if maps.exists() else []
    return sorted({Path(file).resolve() for file in found})


def _teraflops(check: Check, dtype: torch.dtype) -> float:
    """Return the rate of a product of two square matrices, in TFLOP/s."""
    size = _PRODUCT if check.device.kind == "cuda" else 64
    a, b = (torch.randn(size, size, device=check.device.torch).to(dtype) for _ in range(2))
    call = partial(torch.mm, a, b, out=torch.empty_like(a))
    samples = check.device.compare({"product": call}, sample_ms=check.plan.sample_ms, rounds=check.rounds)
    return 2 * size**3 / min(samples["product"]) / 1e9
