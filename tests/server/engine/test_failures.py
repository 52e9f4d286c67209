"""What onnxruntime's and CUDA's words mean."""

import pytest

from polyhead_server.engine.failures import translate
from polyhead_server.errors import DeviceLostError, EngineError, TooLargeError

CUDA_ERROR = "{}:{} ; GPU=0 ; hostname=h ; file=cuda_call.cc ; line=126 ; expr=cudaStreamSynchronize(stream)"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError(CUDA_ERROR.format("CUDA failure 2", " out of memory")),
        RuntimeError("bfc_arena.cc Failed to allocate memory for requested buffer of size 1073741824"),
        RuntimeError("Available memory of 0 is smaller than requested bytes of 2359296"),
        RuntimeError("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0"),
    ],
)
def test_memory(error: Exception) -> None:
    failure = translate(error, "tiny")

    assert isinstance(failure, TooLargeError)
    assert "fewer or shorter sequences" in str(failure)


@pytest.mark.parametrize(
    "words",
    [
        CUDA_ERROR.format("CUDA failure 700", " an illegal memory access was encountered"),
        CUDA_ERROR.format("CUDA failure 719", " unspecified launch failure"),
        CUDA_ERROR.format("CUDA failure 999", " unknown error"),
        CUDA_ERROR.format("CUDA failure 214", " uncorrectable ECC error encountered"),
        "CUDA error 710: device-side assert triggered",
    ],
)
def test_a_device_that_is_lost(words: str) -> None:
    failure = translate(RuntimeError(f"Non-zero status code returned while running MatMul: {words}"), "tiny")

    assert isinstance(failure, DeviceLostError)
    assert failure.retry_after_ms
    assert "CUDA" not in str(failure)


@pytest.mark.parametrize(
    "words",
    ["INVALID_ARGUMENT: dimension mismatch", "CUDA failure 1: invalid argument", "CUDA failure 7001: new"],
)
def test_anything_else_is_the_models_fault_or_ours(words: str) -> None:
    failure = translate(RuntimeError(words), "tiny")

    assert isinstance(failure, EngineError)
    assert str(failure).startswith("tiny failed")


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_ALLOC_FAILED"])
def test_what_the_device_itself_reports_counts_for_more(words: str) -> None:
    def report(code: int) -> None:
        raise RuntimeError(f"CUDA failure {code}: in other words")

    error = RuntimeError(words)

    assert isinstance(translate(error, "tiny", lambda: report(700)), DeviceLostError)
    assert not isinstance(translate(error, "tiny", lambda: report(1)), DeviceLostError)
