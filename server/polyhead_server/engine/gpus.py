"""Which GPUs a server is asked to use. Light: the supervisor imports it."""

import ctypes
import re
import sys
from collections.abc import Callable


def check_device(device: str) -> str:
    """Check the value of `--device`, and return it.

    Raises:
        ValueError: It is neither auto, cpu, openvino, cuda nor cuda with distinct numbers.
    """
    match = re.fullmatch(r"auto|cpu|openvino|cuda(:\d{1,4}(,\d{1,4})*)?", device)
    if match is None or len(set(named_gpus(device))) < len(named_gpus(device)):
        raise ValueError(
            f"a device must be auto, cpu, openvino, cuda or cuda:0,2 for some of the GPUs, was {device!r}"
        )
    return device


def named_gpus(device: str) -> tuple[int, ...]:
    """Return the numbers in `cuda:0,2`, or none if there are none."""
    numbers = device.partition(":")[2]
    return tuple(int(number) for number in numbers.split(",")) if numbers else ()


def count_gpus() -> int | None:
    """Count the GPUs that the NVIDIA driver shows, after CUDA_VISIBLE_DEVICES. Takes no GPU memory.

    Returns:
        None if there is no driver, or it cannot be asked this way.
    """
    if sys.platform != "linux":
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def gpu_name(gpu: int) -> str:
    """Return a GPU's model and bus address from the driver, or its number if the driver cannot be asked."""
    name, bus, device = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32), ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return f"GPU {gpu}"
    if (
        driver.cuInit(0) != 0
        or driver.cuDeviceGet(ctypes.byref(device), gpu) != 0
        or driver.cuDeviceGetName(name, len(name), device) != 0
        or driver.cuDeviceGetPCIBusId(bus, len(bus), device) != 0
    ):
        return f"GPU {gpu}"
    return f"{name.value.decode()} at {bus.value.decode()}"


def gpus_for(device: str, *, count: Callable[[], int | None] = count_gpus) -> tuple[int, ...]:
    """Return the GPUs that get workers of their own; none if a single process chooses its device.

    Args:
        device: The value of `--device`. cuda means every GPU.
        count: Counts the GPUs; replaced in tests.
    """
    if device == "cuda":
        gpus = count() or 0
        return tuple(range(gpus)) if gpus > 1 else ()
    return named_gpus(device)
