"""Which replies are like the first."""

import pytest

from polyhead_load.likeness import Likeness
from polyhead_load.reply_head import Tensor


def reply(tokens: int, *, width: int = 8, attention: bool = False) -> list[Tensor]:
    found = [Tensor("output", "FP32", (1, tokens, width), 4 * tokens * width)]
    if attention:
        found.append(Tensor("attention.0", "FP16", (1, 2, tokens, tokens), 2 * 2 * tokens * tokens))
    return found


def text(tokens: int, size: int) -> list[Tensor]:
    return [*reply(tokens), Tensor("tokens", "BYTES", (1, tokens), size)]


@pytest.mark.parametrize("attention", [False, True])
def test_replies_differ_in_t_alone(attention: bool) -> None:
    likeness = Likeness()

    for number, tokens in enumerate([5, 5, 9, 1, 8]):
        for _ in range(2):
            assert likeness.fault(number, tokens, reply(tokens, attention=attention)) is None
    assert likeness.fault(4, 8, reply(9, attention=attention)) is not None


def test_a_width_that_is_t_by_chance_stays() -> None:
    likeness = Likeness()
    pooled = Tensor("pooled", "FP32", (1, 8), 32)

    for number, tokens in enumerate([8, 3, 12]):
        assert likeness.fault(number, tokens, [*reply(tokens), pooled]) is None


def test_of_texts_the_reply_says_t() -> None:
    likeness = Likeness()

    for number, (tokens, size) in enumerate([(5, 40), (7, 60), (7, 61)]):
        assert likeness.fault(number, None, text(tokens, size)) is None
    assert likeness.fault(0, None, text(5, 40)) is None
    # The same text has the same tokens.
    assert likeness.fault(0, None, text(5, 41)) is not None


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ([], "must have outputs, has none"),
        (reply(6), r"must be like output FP32 \[1, 5, 8\] \(160 bytes\), was output FP32 \[1, 6, 8\]"),
        (reply(5, width=9), "must be like"),
        (reply(5, attention=True), "must be like"),
        ([Tensor("outcome", "FP32", (1, 5, 8), 160)], "must be like"),
        ([Tensor("output", "FP16", (1, 5, 8), 80)], "must be like"),
        ([Tensor("output", "FP32", (1, 5, 8), 159)], "does not fit its shape"),
        ([Tensor("output", "FP32", (1, 5, 8), -1)], "output without contents does not fit"),
        ([Tensor("output", "FP33", (1, 5, 8), 160)], "unknown datatype 'FP33'"),
        ([Tensor("output", "FP32", (1, -5, -8), 160)], r"must have a shape, was \[1, -5, -8\]"),
        ([Tensor("output", "BYTES", (1, 5), 19)], "does not fit its shape"),
    ],
)
def test_anything_else_is_a_fault(tensors: list[Tensor], told: str) -> None:
    likeness = Likeness()
    assert likeness.fault(0, 5, reply(5)) is None

    with pytest.raises(ValueError, match=told):
        raise ValueError(likeness.fault(1, 5, tensors))
    assert likeness.fault(1, 5, reply(5)) is None


def test_one_size_for_all_is_no_answer() -> None:
    likeness = Likeness()
    assert likeness.fault(0, 5, reply(5)) is None

    assert likeness.fault(1, 9, reply(5)) is not None
