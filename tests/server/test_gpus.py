"""Which GPUs a server is asked to use."""

import pytest

from polyhead_server.gpus import check_device, count_gpus, gpus_for, named_gpus


def never() -> int | None:
    raise AssertionError("GPUs that are named need not be counted")


@pytest.mark.parametrize("device", ["auto", "cpu", "openvino", "cuda", "cuda:0", "cuda:0,2", "cuda:11"])
def test_devices(device: str) -> None:
    check_device(str, device)


@pytest.mark.parametrize(
    "device", ["", "tpu", "openvino:0", "cuda:", "cuda:a", "cuda:0,", "cuda:0,0", "cpu:0", "cuda:-1", "gpu"]
)
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=r"a device must be auto, cpu, openvino, cuda or cuda:0,2 .*, was"):
        check_device(str, device)


def test_numbers() -> None:
    assert named_gpus("cuda:0,2") == (0, 2)
    assert named_gpus("cuda") == named_gpus("cpu") == ()


@pytest.mark.parametrize(("count", "gpus"), [(None, ()), (0, ()), (1, ()), (3, (0, 1, 2))])
def test_cuda_is_every_gpu_where_there_are_several(count: int | None, gpus: tuple[int, ...]) -> None:
    assert gpus_for("cuda", count=lambda: count) == gpus


@pytest.mark.parametrize(
    ("device", "gpus"), [("auto", ()), ("cpu", ()), ("cuda:1", (1,)), ("cuda:2,0", (2, 0))]
)
def test_named_gpus_are_taken_as_they_are(device: str, gpus: tuple[int, ...]) -> None:
    assert gpus_for(device, count=never) == gpus


def test_this_machines_gpus_can_be_counted() -> None:
    count = count_gpus()

    assert count is None or count >= 0
