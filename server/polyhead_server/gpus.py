"""Which GPUs a server is asked to use. Light: the supervisor imports it."""

import ctypes
import re
from collections.abc import Callable

DEVICES = ("auto", "cpu", "openvino", "cuda")
"""What a server can be asked to run on; cuda also with numbers, such as cuda:0,2."""


def check_device(_type: object, device: str) -> None:
    """Check the value of `--device`, for cyclopts.

    Raises:
        ValueError: It is none of `DEVICES`, nor cuda with distinct numbers.
    """
    numbered = re.fullmatch(r"cuda(:\d{1,4}(,\d{1,4})*)", device)
    if not (numbered or device in DEVICES) or len(set(named_gpus(device))) < len(named_gpus(device)):
        raise ValueError(
            f"a device must be {', '.join(DEVICES)} or cuda:0,2 for some of the GPUs, was {device!r}"
        )


def named_gpus(device: str) -> tuple[int, ...]:
    """Return the numbers in `cuda:0,2`, or none if there are none."""
    numbers = device.partition(":")[2]
    return tuple(int(number) for number in numbers.split(",")) if numbers else ()


def count_gpus() -> int | None:
    """Count the GPUs that the NVIDIA driver shows, after CUDA_VISIBLE_DEVICES. Takes no GPU memory.

    Returns:
        None if there is no driver, or it cannot be asked this way.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


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
