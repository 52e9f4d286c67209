"""The data of one input: raw contents as arrays and texts."""

from pathlib import Path
from typing import Any

import pytest

from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.inputs import RequestInput, read_inputs
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import signature_of


def read(repository: Path, family: str, raw: bytes, **given: Any) -> Any:
    """What is read of one raw input."""
    manifest = read_manifest(repository / family / "1", family=family, version=1)
    spec = signature_of(manifest, "fast").inputs[given["name"]]
    return read_inputs([RequestInput(size=None, contents=None, spec=spec, **given)], [raw], 100)


def test_bytes_that_do_not_fit_are_the_callers_fault(repository: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"x must have 12 bytes for FP32 \[3\], had 8"):
        read(repository, "tiny", bytes(8), name="x", datatype="FP32", shape=(3,))
    with pytest.raises(InvalidRequestError, match=r"text\[1\] must have 7 bytes as it says, 2 follow"):
        read(
            repository,
            "tiny-tokens",
            bytes(4) + b"\x07\x00\x00\x00ab",
            name="text",
            datatype="BYTES",
            shape=(2,),
        )


def test_only_0_and_1_are_boolean(repository: Path) -> None:
    mask: dict[str, Any] = {"name": "mask", "datatype": "BOOL", "shape": (3,)}

    arrays, texts = read(repository, "tiny-masked", b"\x00\x01\x01", **mask)

    assert arrays["mask"].tolist() == [False, True, True]
    assert texts == {}
    with pytest.raises(InvalidRequestError, match="mask must hold bytes of 0 or 1, one was 2"):
        read(repository, "tiny-masked", b"\x00\x02\x01", **mask)
