"""Describe the machine and the versions with which something was measured."""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from google.protobuf.internal import api_implementation

_DISTRIBUTIONS = (
    "polyhead",
    "onnxruntime",
    "onnxruntime-gpu",
    "grpcio",
    "protobuf",
    "numpy",
    "locust",
    "gevent",
)
_GPU = "name,driver_version,clocks.max.sm,power.limit"


def fingerprint(command: Sequence[str]) -> dict[str, Any]:
    """Return machine, versions and the exact command, without what is unknown."""
    facts = {
        "command": " ".join(command),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "cores": _cores(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "load before": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else None,
        "GPU": _run("nvidia-smi", f"--query-gpu={_GPU}", "--format=csv,noheader"),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "protobuf's parser": str(api_implementation.Type()),
        "commit": _commit(),
    }
    for name in _DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return {name: value for name, value in facts.items() if value}


def cpu_facts(name: str) -> str:
    """Return what the system says of the first processor, such as its `flags`; nothing where it does not."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _processor() -> str:
    return cpu_facts("model name") or platform.processor() or platform.machine()


def _cores() -> str:
    present = psutil.cpu_count() or 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    return str(present) if usable == present else f"{usable} of {present}"


def _commit() -> str | None:
    """Return the commit of the checkout that this file is in, if it is in one."""
    here = Path(__file__).resolve()
    root = next((folder for folder in here.parents if (folder / ".git").exists()), None)
    if root is None or "site-packages" in here.parts:
        return None
    return _run("git", "-C", str(root), "describe", "--always", "--dirty")


def _run(program: str, *arguments: str) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - fixed programs
            [path, *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
