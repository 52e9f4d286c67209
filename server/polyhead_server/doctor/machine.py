"""What the machine reports: the only part of the doctor that touches it."""

import contextlib
import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import onnxruntime as ort

from polyhead_proto.cgroups import THIS_PROCESS, ControlGroups
from polyhead_server.doctor.report import CudaVersions, Gpu, Memory, OnnxRuntime, OpenVino, Processors
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.cuda_libraries import load, preload
from polyhead_server.engine.devices import cuda_problem, cuda_version, on_openvino, openvino_version
from polyhead_server.errors import DeviceError

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


class LocalMachine:
    """The machine that this process runs on. Tests replace methods."""

    def processors(self, *, cpuinfo: Path = Path("/proc/cpuinfo")) -> Processors:
        """Return the CPUs.

        Args:
            cpuinfo: The kernel's list.
        """
        every = os.cpu_count() or 1
        usable = available_cpus()
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
        model, instructions = _described(cpuinfo)
        return Processors(
            in_machine=every,
            affinity=affinity,
            usable=usable,
            model=model,
            instructions=instructions,
        )

    def memory(
        self, *, meminfo: Path = Path("/proc/meminfo"), groups: ControlGroups = THIS_PROCESS
    ) -> Memory:
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

    def runtime(self) -> OnnxRuntime:
        """Return the installed onnxruntime."""
        return OnnxRuntime(
            version=ort.__version__,
            packages=tuple(sorted(set(metadata.packages_distributions().get("onnxruntime", ())))),
            cuda=cuda_version(),
            providers=tuple(ort.get_available_providers()),
        )

    def openvino(self) -> OpenVino:
        """Return the installed OpenVINO."""
        try:
            device = on_openvino("")
        except DeviceError as error:
            return OpenVino(version=None, computes=(), problem=str(error))
        return OpenVino(version=openvino_version(), computes=tuple(sorted(device.computes)), problem=None)

    def driver(self) -> str | None:
        """Return the NVIDIA driver's version, from its management library or the kernel."""
        if self._nvml is not None:
            text = ctypes.create_string_buffer(96)
            if self._nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
                return text.value.decode()
        with contextlib.suppress(OSError):
            version = Path("/proc/driver/nvidia/version").read_text()
            if match := re.search(r"\b\d+\.\d+(\.\d+)?\b", version):
                return match[0]
        return None

    def versions(self) -> CudaVersions:
        """Ask CUDA's libraries for their versions."""
        _preload()
        major = (self.runtime().cuda or "").partition(".")[0]
        cudart, nvrtc, cublas = (
            _open(f"lib{name}.so.{major}") if major else None for name in ("cudart", "nvrtc", "cublas")
        )
        cudnn = _open("libcudnn.so.9")
        if cudnn is not None:
            cudnn.cudnnGetVersion.restype = ctypes.c_size_t
        compiler = _integers(nvrtc, "nvrtcVersion", 2)
        parts = [_integers(cublas, "cublasGetProperty", 1, index) for index in range(3)]
        number = 0 if cudnn is None else int(cudnn.cudnnGetVersion())
        return CudaVersions(
            highest=_cuda_version(_integers(self._driver, "cuDriverGetVersion", 1)),
            runtime=_cuda_version(_integers(cudart, "cudaRuntimeGetVersion", 1)),
            compiler=".".join(map(str, compiler)) or None,
            cublas=".".join(str(part[0]) for part in parts) if all(parts) else None,
            cudnn=f"{number // 10_000}.{number // 100 % 100}.{number % 100}" if number else None,
        )

    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs that the driver shows."""
        driver = self._driver
        if driver is None or driver.cuInit(0) != 0:
            return ()
        (count,) = _integers(driver, "cuDeviceGetCount", 1) or (0,)
        return tuple(self._gpu(driver, index) for index in range(count))

    def library(self, name: str) -> str | None:
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

    def cuda_problem(self) -> str | None:
        """Return what keeps CUDA from working."""
        return cuda_problem()

    @cached_property
    def _driver(self) -> ctypes.CDLL | None:
        return _open("libcuda.so.1")

    @cached_property
    def _nvml(self) -> ctypes.CDLL | None:
        library = _open("libnvidia-ml.so.1")
        return library if library is not None and library.nvmlInit_v2() == 0 else None

    def _gpu(self, driver: ctypes.CDLL, index: int) -> Gpu:
        device, memory = ctypes.c_int(), ctypes.c_size_t()
        name, bus = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        driver.cuDeviceGetPCIBusId(bus, len(bus), device)
        capability = []
        for attribute in _CAPABILITY:
            number = ctypes.c_int()
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(str(number.value))
        return Gpu(
            name=name.value.decode(),
            capability=".".join(capability),
            memory=memory.value,
            free=self._free_memory(bus.value),
        )

    def _free_memory(self, bus: bytes) -> int | None:
        nvml, handle = self._nvml, ctypes.c_void_p()
        if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) != 0:
            return None
        total_free_used = (ctypes.c_ulonglong * 3)()
        if nvml.nvmlDeviceGetMemoryInfo(handle, total_free_used) != 0:
            return None
        return int(total_free_used[1])


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
