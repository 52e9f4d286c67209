"""What the machine says when it is asked: the one place where the doctor touches it."""

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Sequence
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Protocol

import onnxruntime as ort

from polyhead_server.doctor.memory import read_memory
from polyhead_server.doctor.report import Card, Memory, Processors, Runtime
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.cuda_libraries import load, preload
from polyhead_server.engine.devices import cuda_problem, cuda_version, on_cpu

_MAJOR, _MINOR = 75, 76
"""CUDA's numbers for the two parts of a card's compute capability."""


class Machine(Protocol):
    """What the doctor asks; tests have a machine of their own."""

    def processors(self) -> Processors:
        """The CPU."""

    def memory(self) -> Memory:
        """Its memory."""

    def runtime(self) -> Runtime:
        """The installed onnxruntime."""

    def driver(self) -> str | None:
        """The NVIDIA driver's version."""

    def versions(self) -> dict[str, str | None]:
        """Versions of `driver_cuda`, `cudart`, `nvrtc`, `cublas` and `cudnn`, as they say themselves."""

    def cards(self) -> Sequence[Card]:
        """The GPUs that the driver shows."""

    def library(self, name: str) -> str | None:
        """Loads a library, and says from where."""

    def cuda_problem(self) -> str | None:
        """What keeps CUDA from working."""


class ThisMachine:
    """The machine that this process runs on."""

    def processors(self) -> Processors:
        """The CPU."""
        every = os.cpu_count() or 1
        usable = available_cpus()
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
        return Processors(
            in_machine=every,
            affinity=affinity,
            usable=usable,
            concurrent_runs=on_cpu("").default_runs(usable),
        )

    def memory(self) -> Memory:
        """Its memory."""
        return read_memory()

    def runtime(self) -> Runtime:
        """The installed onnxruntime."""
        return Runtime(
            version=ort.__version__,
            packages=tuple(sorted(set(metadata.packages_distributions().get("onnxruntime", ())))),
            cuda=cuda_version(),
            build=ort.get_build_info(),
            providers=tuple(ort.get_available_providers()),
        )

    def driver(self) -> str | None:
        """The NVIDIA driver's version, from its management library or the kernel."""
        if self._management is not None:
            text = ctypes.create_string_buffer(96)
            if self._management.nvmlSystemGetDriverVersion(text, len(text)) == 0:
                return text.value.decode()
        with contextlib.suppress(OSError):
            said = Path("/proc/driver/nvidia/version").read_text()
            if match := re.search(r"\b\d+\.\d+(\.\d+)?\b", said):
                return match[0]
        return None

    def versions(self) -> dict[str, str | None]:
        """What the libraries say of themselves."""
        driver = _dotted(_number(self._driver, "cuDriverGetVersion"))
        runtime = compiler = cublas = None
        if found := self._loaded("cudart"):
            runtime = _dotted(_number(found, "cudaRuntimeGetVersion"))
        if found := self._loaded("nvrtc"):
            major, minor = ctypes.c_int(0), ctypes.c_int(0)
            if found.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
                compiler = f"{major.value}.{minor.value}"
        if found := self._loaded("cublas"):
            parts = [ctypes.c_int(0) for _ in range(3)]
            if all(
                found.cublasGetProperty(index, ctypes.byref(part)) == 0 for index, part in enumerate(parts)
            ):
                cublas = ".".join(str(part.value) for part in parts)
        return {
            "driver_cuda": driver,
            "cudart": runtime,
            "nvrtc": compiler,
            "cublas": cublas,
            "cudnn": self._cudnn(),
        }

    def cards(self) -> Sequence[Card]:
        """The GPUs that the driver shows."""
        driver = self._driver
        count = ctypes.c_int(0)
        if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return ()
        return tuple(self._card(driver, index) for index in range(count.value))

    def library(self, name: str) -> str | None:
        """Loads a library, and says from where."""
        _preload()  # where pip has put libraries, the loader does not look
        if not load(name):
            return None
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                path = line.partition("/")[2]
                if path.rpartition("/")[2].startswith(name):
                    return f"/{path}"
        return name

    def cuda_problem(self) -> str | None:
        """What keeps CUDA from working."""
        return cuda_problem()

    @cached_property
    def _driver(self) -> ctypes.CDLL | None:
        return _open("libcuda.so.1")

    @cached_property
    def _management(self) -> ctypes.CDLL | None:
        library = _open("libnvidia-ml.so.1")
        return library if library is not None and library.nvmlInit_v2() == 0 else None

    def _loaded(self, library: str) -> ctypes.CDLL | None:
        cuda = self.runtime().cuda
        _preload()
        return None if cuda is None else _open(f"lib{library}.so.{cuda.partition('.')[0]}")

    def _cudnn(self) -> str | None:
        _preload()
        library = _open("libcudnn.so.9")
        if library is None:
            return None
        library.cudnnGetVersion.restype = ctypes.c_size_t
        version = int(library.cudnnGetVersion())
        return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"

    def _card(self, driver: ctypes.CDLL, index: int) -> Card:
        device, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        name, bus = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        driver.cuDeviceGetPCIBusId(bus, len(bus), device)
        for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        return Card(
            name=name.value.decode(),
            capability=f"{major.value}.{minor.value}",
            memory=memory.value,
            free=self._free(bus.value),
        )

    def _free(self, bus: bytes) -> int | None:
        """A card's free memory."""
        management, handle = self._management, ctypes.c_void_p()
        if management is None or management.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) != 0:
            return None
        total_free_used = (ctypes.c_ulonglong * 3)()
        if management.nvmlDeviceGetMemoryInfo(handle, total_free_used) != 0:
            return None
        return int(total_free_used[1])


def system_name() -> str:
    """The operating system and the processor."""
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


_preload = cache(preload)
"""Once: what it says of the rest is said by `library`."""


def _open(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _number(library: ctypes.CDLL | None, function: str) -> int:
    """What `function(int *)` gives; 0 where it cannot be asked."""
    number = ctypes.c_int(0)
    if library is None or getattr(library, function)(ctypes.byref(number)) != 0:
        return 0
    return number.value


def _dotted(version: int) -> str | None:
    """CUDA's way of writing 13.0 is 13000."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None
