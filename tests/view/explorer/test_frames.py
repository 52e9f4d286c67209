"""Frames are read here by the layout that their module documents, as the page's scripts do."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyhead_view.explorer.frames import SIDE, colours, pack, quantise, thumbnails


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    size = int.from_bytes(frame[:4], "little")
    header = json.loads(frame[4 : 4 + size])
    arrays = {}
    for name, place in header.pop("arrays").items():
        dtype, start = np.dtype(place["dtype"]).newbyteorder("<"), 4 + size + place["start"]
        assert start % 8 == 0, "typed arrays must be aligned"
        count = int(np.prod(place["shape"]))
        arrays[name] = np.frombuffer(frame, dtype, count, start).reshape(place["shape"])
    return header, arrays


def test_a_frame_holds_its_header_and_arrays() -> None:
    arrays = {
        "scores": np.array([[0.5, np.nan, 3]], ">f4"),
        "small": np.arange(5, dtype=np.uint8),
        "empty": np.zeros((0, 3), np.uint16),
        "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    }

    header, read = unpack(pack({"tokens": ["a", "<b>", "é"], "scale": 0.25}, arrays))

    assert header == {"tokens": ["a", "<b>", "é"], "scale": 0.25}
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(("signed", "dtype"), [(False, np.uint16), (True, np.int16)])
def test_quantised_values_are_within_half_a_step(signed: bool, dtype: type) -> None:
    values = np.random.default_rng(3).uniform(-signed, 1, (7, 9)).astype(np.float32)

    codes, scale = quantise(values, signed=signed)

    assert codes.dtype == dtype
    np.testing.assert_allclose(codes * scale, values, atol=0.51 * scale)


def test_zeros_and_nothing_can_be_quantised() -> None:
    for values in (np.zeros((2, 2)), np.zeros((0, 0))):
        codes, scale = quantise(values)
        assert scale > 0
        np.testing.assert_array_equal(codes, values)


def test_short_sequences_are_drawn_cell_by_cell() -> None:
    weights = np.array([[[0.5, 0, 0], [0.25, 0.25, 0], [0, 0, 0]], np.zeros((3, 3))], np.float32)

    small = thumbnails(weights)

    assert small.shape == (2, SIDE, SIDE)
    np.testing.assert_array_equal(small[0, :3, :3], [[255, 0, 0], [128, 128, 0], [0, 0, 0]])
    assert not small[:, 3:].any()
    assert not small[:, :, 3:].any()
    assert not small[1].any()


@pytest.mark.parametrize("tokens", [33, 64, 100, 512])
def test_long_sequences_are_drawn_in_blocks(tokens: int) -> None:
    weights = np.eye(tokens, dtype=np.float32)[None]

    small = thumbnails(weights)[0]

    assert (small.diagonal() > 100).all()
    assert small.max() == 255
    assert small[0, -1] == small[-1, 0] == 0


def test_two_scales_of_256_colours() -> None:
    table = np.frombuffer(colours(), np.uint8).reshape(2, 256, 3)

    light = table @ [0.299, 0.587, 0.114]
    assert (np.diff(light[0]) > -1).all(), "the first can be read in grey"
    assert abs(int(light[1, 127]) - int(light[1].max())) < 3, "the middle of the second is the lightest"
