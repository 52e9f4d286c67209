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
    return [name for name in dict.fromkeys(re.split(r"[/\\]", path)[-1] for path in failed) if not load(name)]


def load(name: str) -> bool:
    """Load a library as the loader would, or from one of NVIDIA's wheels anywhere on Python's path."""
    return _loads(name) or any(
        _loads(str(file))
        for entry in sys.path
        for file in sorted(Path(entry, "nvidia").glob(f"*/lib/{name}"))
    )


def _used() -> tuple[str, ...]:
    """Return the libraries, each after those that it needs."""
    major = str(getattr(ort, "cuda_version", "") or "").partition(".")[0]
    if not major or sys.platform == "win32":
        return ()
    cuda = ("cudart", "nvrtc", "cublasLt", "cublas")
    return (*(f"lib{name}.so.{major}" for name in cuda), "libcurand.so.10", "libcudnn.so.9")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
