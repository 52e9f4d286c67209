"""What is measured of engines meets its targets."""

import pytest

from benchmarks.encoders import MINILM
from benchmarks.engines import FULL, LISTS, LONE, EncoderResult, sections, targets
from benchmarks.frame import Sample
from benchmarks.texts.comparison import AS_THEY_COME, TextComparison, TextTraffic
from benchmarks.texts.files import BERT
from benchmarks.texts.lineup import (
    ALONE_BF16,
    BF16,
    CTRANSLATE2_INT8,
    OPENVINO,
    POLYHEAD,
    Cosines,
    Footprint,
)


def compared(traffic: TextTraffic, rates: dict[str, float]) -> TextComparison:
    return TextComparison(
        traffic=traffic,
        samples={name: [Sample(rate=rate, p50_ms=8.0)] * 3 for name, rate in rates.items()},
    )


def measured(
    *comparisons: TextComparison, encoder: str = MINILM, seconds: float = 1.0, memory: float = 100.0
) -> EncoderResult:
    own = Footprint(first_answer_seconds=seconds, memory_mib=memory)
    names = {name for each in comparisons for name in each.samples} | {POLYHEAD}
    return EncoderResult(
        encoder=encoder,
        footprints=dict.fromkeys(names, own)
        | {POLYHEAD: Footprint(first_answer_seconds=1.0, memory_mib=100.0)},
        cosines=dict.fromkeys(names, Cosines(lowest=0.5, mean=0.75)),
        comparisons=comparisons,
    )


def held(result: EncoderResult) -> dict[str, bool]:
    return {each.name: each.holds for each in targets([result])}


@pytest.mark.parametrize(("rate", "holds"), [(190.0, True), (180.0, False)])
def test_bf16_is_compared_with_onnxruntime_served(rate: float, holds: bool) -> None:
    found = held(measured(compared(FULL, {POLYHEAD: 100.0, BF16: rate, ALONE_BF16: 100.0})))

    assert found[f"{FULL.title}: {BF16} ≥ 1.9 × {POLYHEAD}"] is holds
    assert found[f"{FULL.title}: {BF16} ≥ 0.92 × {ALONE_BF16}"]


def test_lists_are_compared_with_padded_batches_and_engines_of_lists() -> None:
    rates = {POLYHEAD: 1.0, BF16: 100.0, AS_THEY_COME: 20.0, ALONE_BF16: 80.0, CTRANSLATE2_INT8: 101.0}

    found = held(measured(compared(LISTS, rates)))

    assert {name.split(" ≥ ")[1]: holds for name, holds in found.items() if " ≥ " in name} == {
        f"4.5 × {AS_THEY_COME}": True,
        f"1.3 × {ALONE_BF16}": False,
        f"1 × {CTRANSLATE2_INT8}": False,
    }


@pytest.mark.parametrize(("seconds", "memory"), [(1.4, 160.0), (1.6, 140.0)])
def test_footprints_are_judged(seconds: float, memory: float) -> None:
    result = measured(compared(LONE, {POLYHEAD: 1.0, OPENVINO: 2.0}), seconds=seconds, memory=memory)

    assert list(held(result).values()) == [True, seconds <= 1.5, memory <= 150]


def test_the_large_encoder_is_shown_and_not_judged() -> None:
    large = measured(compared(FULL, {POLYHEAD: 1.0, BF16: 0.1}), encoder=BERT)

    assert not targets([large])
    assert "## BERT-base's size" in "\n".join(sections([large]))
