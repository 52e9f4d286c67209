"""Where and with what a sweep was measured."""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

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
    """Return machine, versions and the exact command; what cannot be found out is left out.

    Args:
        command: What started the sweep.
    """
    facts = {
        "command": " ".join(command),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "cores": _cores(),
        "clock": _clock(),
        "governor": _governor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "load before": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else None,
        "GPU": _run("nvidia-smi", f"--query-gpu={_GPU}", "--format=csv,noheader"),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "protobuf's parser": _protobuf(),
        "commit": _commit(),
    }
    facts |= {name: _version(name) for name in _DISTRIBUTIONS}
    return {name: value for name, value in facts.items() if value}


def hashes(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return family → file → SHA-256 of what was served."""
    return {
        family: {name: record["sha256"] for name, record in manifest.get("files", {}).items()}
        for family, manifest in manifests.items()
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cores() -> str:
    there = psutil.cpu_count() or 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    return str(there) if usable == there else f"{usable} of {there}"


def _clock() -> str | None:
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return f"{frequency.current:.0f} MHz" if frequency else None


def _governor() -> str | None:
    """Return how the processor chooses its clock."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


def _protobuf() -> str:
    from google.protobuf.internal import api_implementation

    return str(api_implementation.Type())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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
