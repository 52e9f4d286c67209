"""What the machine reports: the only part of the doctor that touches it."""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

import onnxruntime as ort

from polyhead_proto.system.cgroups import THIS_PROCESS, ControlGroups
from polyhead_server.doctor.report import (
    Cuda,
    Gpu,
    Library,
    MachineReport,
    Memory,
    OnnxRuntime,
    OpenVino,
    Processors,
)
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.cuda_libraries import load, preload
from polyhead_server.engine.devices import cuda_problem, cuda_version, on_openvino
from polyhead_server.engine.openvino_session import version as openvino_version
from polyhead_server.errors import DeviceError

DRIVER = "the NVIDIA driver (in a container: the NVIDIA Container Toolkit, and `--gpus all`)"

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY = (75, 76)

_INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "BF16": {"avx512_bf16", "amx_bf16"},
    "AMX": {"amx_tile"},
}
"""By name, the kernel's flags of which one is enough."""


def this_machine() -> MachineReport:
    """Look at the machine that this process runs on."""
    runtime = onnxruntime_here()
    return MachineReport(
        processors=processors(),
        memory=memory(),
        runtime=runtime,
        openvino=openvino_here(),
        cuda=_cuda(runtime.cuda),
    )


def processors(*, cpuinfo: Path = Path("/proc/cpuinfo")) -> Processors:
    """Return the CPUs.

    Args:
        cpuinfo: The kernel's list.
    """
    every = os.cpu_count() or 1
    model, instructions = _described(cpuinfo)
    return Processors(
        in_machine=every,
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every,
        usable=available_cpus(),
        model=model,
        instructions=instructions,
    )


def memory(*, meminfo: Path = Path("/proc/meminfo"), groups: ControlGroups = THIS_PROCESS) -> Memory:
    """Return the machine's memory and the smallest limit of the control groups around this process.

    Args:
        meminfo: The kernel's table.
        groups: The control groups.
    """
    limit = min((each.limit for each in groups.memory_limits()), default=None)
    try:
        lines = [line.partition(":") for line in meminfo.read_text().splitlines()]
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(total=total, available=total, limit=limit)
    size = {name: int(value.split()[0]) * 2**10 for name, _, value in lines if value}
    available = size.get("MemAvailable", size["MemFree"])
    return Memory(total=size["MemTotal"], available=available, limit=limit)


def onnxruntime_here() -> OnnxRuntime:
    """Return the installed onnxruntime."""
    return OnnxRuntime(
        version=ort.__version__,
        packages=tuple(sorted(set(metadata.packages_distributions().get("onnxruntime", ())))),
        cuda=cuda_version(),
        providers=tuple(ort.get_available_providers()),
    )


def openvino_here() -> OpenVino:
    """Return the installed OpenVINO."""
    try:
        device = on_openvino("")
    except DeviceError as error:
        return OpenVino(version=None, computes=(), problem=str(error))
    return OpenVino(version=openvino_version(), computes=tuple(sorted(device.computes)), problem=None)


def libraries_for(cuda: str) -> tuple[Library, ...]:
    """List what the CUDA provider uses, without looking for it.

    Args:
        cuda: The CUDA version that onnxruntime was built for, such as 13.0.
    """
    major = int(cuda.partition(".")[0])
    suffix = "" if major >= 13 else f"-cu{major}"
    linked = {
        "libcuda.so.1": DRIVER,
        f"libcudart.so.{major}": f"nvidia-cuda-runtime{suffix}",
        f"libcublas.so.{major}": f"nvidia-cublas{suffix}",
        f"libcublasLt.so.{major}": f"nvidia-cublas{suffix}",
        "libcurand.so.10": f"nvidia-curand{suffix}",
    }
    # Opened when a kernel needs them. cuDNN has the fastest attention, and compiles some of it with nvrtc.
    opened = {
        "libcudnn.so.9": f"nvidia-cudnn-cu{major}",
        f"libnvrtc.so.{major}": f"nvidia-cuda-nvrtc{suffix}",
    }
    return (
        *(Library(name=name, needed="to start", path=None, brought_by=by) for name, by in linked.items()),
        *(Library(name=name, needed="for speed", path=None, brought_by=by) for name, by in opened.items()),
    )


def cuda_versions(major: str) -> tuple[str | None, str | None, str | None]:
    """Ask CUDA's libraries for the highest version that the driver runs, the runtime's, and nvrtc's.

    Args:
        major: Of the CUDA version that onnxruntime was built for; empty for none.
    """
    _preload()
    cudart, nvrtc = (_open(f"lib{name}.so.{major}") if major else None for name in ("cudart", "nvrtc"))
    return (
        _cuda_version(_integers(_open("libcuda.so.1"), "cuDriverGetVersion", 1)),
        _cuda_version(_integers(cudart, "cudaRuntimeGetVersion", 1)),
        ".".join(map(str, _integers(nvrtc, "nvrtcVersion", 2))) or None,
    )


def find_library(name: str) -> str | None:
    """Load a library, and return the path that it came from."""
    _preload()  # the loader does not look where pip has put libraries
    if not load(name):
        return None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if path.rpartition("/")[2].startswith(name):
                return f"/{path}"
    return name


def _cuda(built_for: str | None) -> Cuda:
    libraries = () if built_for is None else libraries_for(built_for)
    highest, runtime, compiler = cuda_versions((built_for or "").partition(".")[0])
    return Cuda(
        driver=_driver_version(),
        highest=highest,
        runtime=runtime,
        compiler=compiler,
        gpus=tuple(_gpus()),
        libraries=tuple(replace(library, path=find_library(library.name)) for library in libraries),
        problem=cuda_problem(),
    )


def _driver_version() -> str | None:
    """Return the NVIDIA driver's version, as the kernel knows it."""
    with contextlib.suppress(OSError):
        version = Path("/proc/driver/nvidia/version").read_text()
        if match := re.search(r"\b\d+\.\d+(\.\d+)?\b", version):
            return match[0]
    return None


def _gpus() -> Iterator[Gpu]:
    """Yield the GPUs that the driver shows."""
    driver = _open("libcuda.so.1")
    if driver is None or driver.cuInit(0) != 0:
        return
    (count,) = _integers(driver, "cuDeviceGetCount", 1) or (0,)
    for index in range(count):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(128)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        capability = []
        for attribute in _CAPABILITY:
            number = ctypes.c_int()
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(str(number.value))
        yield Gpu(name=name.value.decode(), capability=".".join(capability), memory=size.value)


def _described(cpuinfo: Path) -> tuple[str | None, Mapping[str, bool] | None]:
    """Return the processor's model and which instructions it has; None where the kernel does not say."""
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    except OSError:
        return None, None
    found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = found.get("flags")
    if flags is None:
        return found.get("model name"), None
    has = {*flags.split()}
    return found.get("model name"), {name: bool(any_of & has) for name, any_of in _INSTRUCTIONS.items()}


_preload = cache(preload)


def _open(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _integers(library: ctypes.CDLL | None, function: str, count: int, *arguments: int) -> list[int]:
    """Call `function(*arguments, int *, …)` and return its integers; none where it cannot be called."""
    numbers = [ctypes.c_int(0) for _ in range(count)]
    if library is None or getattr(library, function)(*arguments, *map(ctypes.byref, numbers)) != 0:
        return []
    return [number.value for number in numbers]


def _cuda_version(numbers: Sequence[int]) -> str | None:
    """Read CUDA's notation, in which 13000 is 13.0 and 0 is no version."""
    return f"{numbers[0] // 1000}.{numbers[0] % 1000 // 10}" if any(numbers) else None
