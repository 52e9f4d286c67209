"""The GPU, libraries and versions."""

import re
from importlib import metadata
from pathlib import Path

import onnxruntime as ort
import torch

from benchmarks.gpu.plan import Check

_PACKAGES = re.compile(r"torch|triton|onnx.*|nvidia-(cudnn|cublas|cuda-runtime).*")
_LIBRARIES = re.compile(r"/\S*lib(?:cuda|cudart|cublas|cublasLt|cudnn|nvrtc)\.so[.\d]*$", re.MULTILINE)


def run(check: Check) -> None:
    """Store the facts."""
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


def loaded_libraries() -> list[Path]:
    """Return the CUDA libraries that this process has loaded: an unexpected version shows here."""
    maps = Path("/proc/self/maps")
    found = _LIBRARIES.findall(maps.read_text()) if maps.exists() else []
    return sorted({Path(file).resolve() for file in found})
