"""Load CUDA's libraries from where pip has installed them.

onnxruntime looks beside itself and where the system's loader does. In a virtual environment on top of another
one, or with packages on PYTHONPATH, NVIDIA's wheels are elsewhere on Python's path.
"""

import contextlib
import ctypes
import io
import re
import sys
from pathlib import Path

import onnxruntime as ort


def cuda_version() -> str | None:
    """Return the CUDA version that onnxruntime was built for, or None if it was built without CUDA."""
    return getattr(ort, "cuda_version", None) or None


def preload() -> list[str]:
    """Load the libraries of onnxruntime's CUDA provider, printing nothing.

    Returns:
        The names of the libraries that cannot be loaded.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ort.preload_dlls()
    for name in _used():
        load(name)
    # onnxruntime prints the path or the name of each library that it could not load.
    failed = re.findall(r"^Failed to load (.+?): ", printed.getvalue(), re.MULTILINE)
    return [name for name in dict.fromkeys(Path(path).name for path in failed) if not load(name)]


def load(name: str) -> bool:
    """Load a library as the loader would, or from one of NVIDIA's wheels anywhere on Python's path."""
    return _loads(name) or any(
        _loads(str(file))
        for entry in sys.path
        for file in sorted(Path(entry, "nvidia").glob(f"*/lib/{name}"))
    )


def _used() -> tuple[str, ...]:
    """Return the libraries, each after those that it needs."""
    if (version := cuda_version()) is None:
        return ()
    major = version.partition(".")[0]
    cuda = ("cudart", "nvrtc", "cublasLt", "cublas")
    return (*(f"lib{name}.so.{major}" for name in cuda), "libcurand.so.10", "libcudnn.so.9")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
