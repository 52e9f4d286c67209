"""Which GPUs a server is asked to use. Light: the process above the workers imports it."""

import ctypes
import re
import sys
from collections.abc import Callable


def check_device(device: str) -> str:
    """Checks what `--device` says.

    Raises:
        ValueError: It is neither auto, cpu, cuda nor cuda with different numbers.
    """
    match = re.fullmatch(r"auto|cpu|cuda(:\d{1,4}(,\d{1,4})*)?", device)
    if match is None or len(set(named_gpus(device))) < len(named_gpus(device)):
        raise ValueError(
            f"a device must be auto, cpu, cuda or cuda:0,2 for some of the cards, was {device!r}"
        )
    return device


def named_gpus(device: str) -> tuple[int, ...]:
    """The numbers in `cuda:0,2`; none where a device has none."""
    numbers = device.partition(":")[2]
    return tuple(int(number) for number in numbers.split(",")) if numbers else ()


def count_gpus() -> int | None:
    """The cards that the NVIDIA driver shows, of those that CUDA_VISIBLE_DEVICES leaves; None without one.

    Also None where the driver cannot be asked this way. Takes no memory of any card.
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


def gpu_name(card: int) -> str:
    """A card's model and address, as the driver says them; its number where it cannot be asked."""
    name, bus, device = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32), ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return f"card {card}"
    if (
        driver.cuInit(0) != 0
        or driver.cuDeviceGet(ctypes.byref(device), card) != 0
        or driver.cuDeviceGetName(name, len(name), device) != 0
        or driver.cuDeviceGetPCIBusId(bus, len(bus), device) != 0
    ):
        return f"card {card}"
    return f"{name.value.decode()} at {bus.value.decode()}"


def gpus_for(device: str, *, count: Callable[[], int | None] = count_gpus) -> tuple[int, ...]:
    """The cards that have workers of their own; none where a single process chooses its device by itself.

    Args:
        device: What `--device` says. cuda is every card.
        count: Counts the cards; tests have their own.
    """
    if device == "cuda":
        cards = count() or 0
        return tuple(range(cards)) if cards > 1 else ()
    return named_gpus(device)
