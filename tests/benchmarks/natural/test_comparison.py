"""What is measured on natural texts meets its targets by the median round."""

from typing import Any

import pytest

from benchmarks.frame import Sample
from benchmarks.natural.comparison import (
    CTRANSLATE2,
    INT8,
    PADDED,
    SENTENCE_TRANSFORMERS,
    TRAFFIC,
    Cosines,
    EqualLengths,
    MixedCall,
    TextComparison,
    describe_lengths,
    sections,
    targets,
)
from benchmarks.peers.comparison import POLYHEAD, TRITON

LISTS, EIGHT, THIRTY_TWO = TRAFFIC
SLOW, FAST = f"{SENTENCE_TRANSFORMERS}, torch", f"{SENTENCE_TRANSFORMERS}, ONNX"


def compared(traffic: Any, **rates: float) -> TextComparison:
    """Three rounds; polyhead's rates are 90, 100 and 110."""
    every = {POLYHEAD: [90.0, 100.0, 110.0], **{name: [rate] * 3 for name, rate in rates.items()}}
    return TextComparison(
        traffic=traffic,
        samples={name: [Sample(rate=rate, p50_ms=8.0) for rate in of] for name, of in every.items()},
        plans={CTRANSLATE2: "1 × 2 threads, B = 32"},
    )


def judged(*comparisons: TextComparison, call: float = 0.5, equal: float = 1.0) -> list[bool]:
    """What holds."""
    mixed = MixedCall(share=0.5, ratios=[call - 0.1, call, call + 0.1])
    lengths = [EqualLengths(batch=8, tokens=64, threads=1, ratios=[equal])]
    return [each.holds for each in targets(comparisons, mixed, lengths)]


@pytest.mark.parametrize(
    ("ctranslate2", "fast", "holds"), [(99, 76, [True, True]), (101, 78, [False, False])]
)
def test_lists_are_compared_with_engines_that_take_lists(
    ctranslate2: float, fast: float, holds: list[bool]
) -> None:
    lists = compared(
        LISTS, **{CTRANSLATE2: ctranslate2, CTRANSLATE2.replace("fp32", INT8): 500.0, SLOW: 10.0, FAST: fast}
    )

    assert judged(lists)[:2] == holds


@pytest.mark.parametrize(("traffic", "padded", "holds"), [(EIGHT, 99, True), (THIRTY_TWO, 99, False)])
def test_single_texts_are_compared_with_the_padded_limit_and_triton(
    traffic: Any, padded: float, holds: bool
) -> None:
    triton = {
        f"{TRITON}, 1 × 2 threads, {graph} graph": rate
        for graph, rate in (("padded", 70.0), ("packed", 90.0))
    }

    assert judged(compared(traffic, **{PADDED: padded}, **triton))[:2] == [holds, True]


@pytest.mark.parametrize(("call", "equal", "holds"), [(0.57, 1.02, [True] * 2), (0.6, 1.04, [False] * 2)])
def test_padding_and_packing_cost_little(call: float, equal: float, holds: list[bool]) -> None:
    assert judged(call=call, equal=equal) == holds


def test_the_share_of_tokens_is_shown() -> None:
    shown = "\n".join(describe_lengths([8, 24] * 16))

    assert "32 texts of 512 tokens" in shown
    assert "| batches of 32 | 0.67 |" in shown
    assert "| batches of 32, all texts sorted by length | 0.67 |" in shown


def test_everyone_has_a_row() -> None:
    lists = compared(LISTS, **{CTRANSLATE2: 50.0, SLOW: 10.0})

    shown = "\n".join(sections([lists], [8, 24], {CTRANSLATE2: Cosines(lowest=1.0, mean=1.0)}, {}, cores=2))

    assert "## Lists of 32 texts, one call at a time" in shown
    assert f"| {CTRANSLATE2} | 50 | 2.00 (1.80–2.20) | 8 | 1 × 2 threads, B = 32 | 0 |" in shown
    assert f"| **{POLYHEAD}** | 100 |  | 8 |  | 0 |" in shown
