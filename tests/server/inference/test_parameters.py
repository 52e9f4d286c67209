"""Selectors: indices as requests write them."""

import pytest

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.parameters import Selector, read_output_parameters


def parse(text: str) -> Selector:
    """The selector of the parameter `heads` of an output `a`."""
    parameters = {"heads": pb.InferParameter(string_param=text)}
    return read_output_parameters(parameters, "a", text=False).selectors["heads"]


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("0,3", [0, 3]),
        ("3,0", [3, 0]),
        ("1:4", [1, 2, 3]),
        ("3,0:2", [3, 0, 1]),
        (" 2 , 0 : 2 ", [2, 0, 1]),
        ("0:4", [0, 1, 2, 3]),
    ],
)
def test_indices_and_ranges_are_read_in_their_order(text: str, indices: list[int]) -> None:
    assert list(parse(text).resolve(4, "H")) == indices


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "a", "-1", "1:", ":2", "2:2", "3:1", "1:2:3", "1.0", "٣", "0;1"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="parameter heads of output a must be indices such as '0,3' or '0:4'"
    ):
        parse(text)


@pytest.mark.parametrize("text", ["4", "0:5", "0,999999999", "3,4"])
def test_what_is_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be between 0 and H-1 \(3\), was"):
        parse(text).resolve(4, "H")


def test_a_selector_as_long_as_a_book_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 65536 characters"):
        parse("0," * 50_000 + "0")
