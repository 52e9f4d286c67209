"""What `encode` refuses before anything is sent, and how it says so."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from polyhead_client import InvalidRequest
from polyhead_client.inputs import prepare

X = np.zeros((2, 3, 4), np.float32)
IDS = np.zeros((2, 3), np.int64)
RAGGED = [[1, 2, 3], [4]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "inputs must hold at least one sequence, was empty"),
        (b"text", "inputs must be texts, token ids or vectors, was bytes: decode them first"),
        (
            {"input_ids": [1]},
            "was a mapping: pass its input_ids, and attention_mask and token_type_ids by name",
        ),
        (["a", 1], "inputs[1] must be a text as others are, was int"),
        (["a", "private \ud800"], "text[1] must be valid Unicode, was U+D800 at character 8"),
        (
            np.zeros(3),
            "inputs must be floats [B, T, D] or [T, D], integers [B, T] or [T], or texts, was float64 [3]",
        ),
        (np.zeros((0, 3, 4)), "was float64 [0, 3, 4]"),
        (np.zeros((2, 2), np.bool_), "was bool [2, 2]"),
        (7, "inputs must be texts, token ids or vectors, was int"),
        ((text for text in "ab"), "was generator: make a list of it"),
        (
            [np.zeros((2, 4)), np.zeros((2, 5))],
            "inputs[1] must be as inputs[0] in all but T: float64 [2, 5], float64 [2, 4]",
        ),
        ([[0.5, 1.5]], "inputs[0] must be floats [T, D] or integers [T], was float64 [2]"),
        ([True, False], "inputs[0] must be floats [T, D] or integers [T], was bool []"),
        ([[[1.0], [1.0, 2.0]]], "inputs[0] cannot be read as an array"),
        (np.full((1, 1, 4), 1e300), "x must fit FP32, a value was too large"),
        (np.array([1, 2**63 + 1], np.uint64), "input_ids must fit INT64, a value was too large"),
        ([1, 2**70], "input_ids must fit INT64, a value was too large"),
        (np.array([np.zeros(2), np.zeros(3)], np.object_), "or texts, was object [2]"),
    ],
)
def test_inputs_of_other_kinds_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)) as caught:
        prepare(inputs)
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "extras", "message"),
    [
        (["a"], {"attention_mask": [[1]]}, "attention_mask goes with token ids or vectors"),
        (
            X,
            {"lengths": [1, 2], "attention_mask": IDS},
            "lengths and attention_mask say the same: give one of them",
        ),
        (X, {"lengths": [1]}, "lengths must be integers [2], was int64 [1]"),
        (X, {"lengths": [1.0, 2.0]}, "lengths must be integers [2], was float64 [2]"),
        (X, {"lengths": [3, -1]}, "lengths[1] must be between 0 and T (3), was -1"),
        (X, {"lengths": [4, 0]}, "lengths[0] must be between 0 and T (3), was 4"),
        (
            RAGGED,
            {"lengths": [3, 1]},
            "lengths goes with one array; the items of a list have lengths of their own",
        ),
        (IDS, {"attention_mask": [[1, 1, 1]]}, "attention_mask must be integers [2, 3], was int64 [1, 3]"),
        (IDS, {"attention_mask": [[1, 1, 2], [1, 1, 1]]}, "attention_mask must hold 0 and 1 only"),
        (IDS, {"attention_mask": [[1, 1, 0], [0, 1, 1]]}, "row 1 has a 0 before a 1: left padding or a hole"),
        (
            RAGGED,
            {"attention_mask": [[1, 1, 1]]},
            "attention_mask must be a list of 2 items as the inputs are, was 1 items",
        ),
        (
            RAGGED,
            {"attention_mask": IDS},
            "attention_mask must be a list of 2 items as the inputs are, was ndarray",
        ),
        (
            RAGGED,
            {"token_type_ids": [[0, 0, 0], [0, 0]]},
            "token_type_ids[1] must be integers [1], was int64 [2]",
        ),
        (
            IDS,
            {"token_type_ids": np.zeros((2, 3))},
            "token_type_ids must be integers [2, 3], was float64 [2, 3]",
        ),
        (
            X,
            {"mask": np.zeros((3, 3))},
            "mask must be bool [3, 3] or [1, 3, 3] or [2, 3, 3] (True = may attend)",
        ),
        (X, {"mask": np.ones((2, 3), np.bool_)}, "was bool [2, 3]"),
        (
            [[1, 2]],
            {"mask": [np.ones((1, 2), np.bool_)]},
            "mask[0] must be bool [2, 2] (True = may attend), was bool [1, 2]",
        ),
    ],
)
def test_what_does_not_fit_the_inputs_is_refused(
    inputs: Any, extras: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        prepare(inputs, **extras)


def test_big_endian_and_strided_arrays_arrive_as_little_endian_rows() -> None:
    x = np.arange(24, dtype=">f4").reshape(4, 3, 2).transpose(2, 1, 0)

    (_, _, shape), raw = prepare(x).fields[0].encoded()

    np.testing.assert_array_equal(np.frombuffer(raw, "<f4").reshape(shape), x)


def test_padding_need_not_be_given_where_there_is_none() -> None:
    assert [field.name for field in prepare(X, lengths=[3, 3]).fields] == ["x"]
    assert [field.name for field in prepare(X, lengths=[3, 2]).fields] == ["x", "lengths"]


def test_arrays_of_other_libraries_are_read() -> None:
    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return X

    assert prepare(Foreign()).fields[0].encoded()[0] == ("x", "FP32", (2, 3, 4))  # type: ignore[arg-type]


def test_arrays_that_cannot_be_read_are_refused() -> None:
    class OnTheGpu:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(InvalidRequest, match="inputs cannot be read as an array: can't convert cuda:0"):
        prepare(OnTheGpu())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "text_pair", "message"),
    [
        ("a", ["b"], "text_pair must be a text, as the inputs are, was 1 texts"),
        (["a"], "b", "text_pair must be a list of 1 texts, as the inputs are, was str"),
        (["a", "b"], ["c"], "text_pair must be a list of 2 texts, as the inputs are, was 1 texts"),
        (["a"], ["b\udfff"], "text_pair[0] must be valid Unicode, was U+DFFF at character 1"),
        ([[1, 2]], ["c"], "text_pair goes with texts; with token ids, give token_type_ids"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(inputs: Any, text_pair: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        prepare(inputs, text_pair=text_pair)


def test_arrays_of_strings_are_texts() -> None:
    assert prepare(np.array(["a", "b"])).kind == "text"


def test_columns_of_strings_are_texts() -> None:
    class Column:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array(["a", "b"], np.object_)

    batch = prepare(Column(), text_pair=Column())  # type: ignore[arg-type]

    assert [field.rows for field in batch.fields] == [[b"a", b"b"]] * 2
