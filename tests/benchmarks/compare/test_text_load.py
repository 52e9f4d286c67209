"""What is sent under each load, and the plans that are tried."""

import numpy as np

from benchmarks.compare.text_load import TextTraffic
from benchmarks.engines.kinds import EngineModel
from benchmarks.engines.processes import CORES

LONE, FULL = (
    TextTraffic(per_call=1, in_flight=1, tokens=16),
    TextTraffic(per_call=8, in_flight=4, tokens=64),
)
LISTS = TextTraffic(per_call=32, in_flight=1)
OWN, SORTS = (EngineModel(kind=kind, path="") for kind in ("openvino", "sentence-transformers"))


def test_loads_are_token_ids_or_texts() -> None:
    assert np.shape(FULL.sequences(["a"])) == (32, 64)
    assert np.shape(LONE.sequences(["a"])) == (8, 16)
    assert LISTS.sequences(["a", "b"]) == ["a", "b"]
    assert [str(each) for each in (FULL, LISTS, TextTraffic(per_call=1, in_flight=8))] == [
        "B × T = 8 × 64, 4 calls in flight",
        "lists of 32 texts, one call at a time",
        "single texts, 8 calls in flight",
    ]


def test_what_sorts_by_itself_is_not_sorted_and_runs_one_batch_at_a_time() -> None:
    own, sorts = (LISTS.plans(model, 32) for model in (OWN, SORTS))

    assert {plan.by_length for group in own for plan in group} == {False, True}
    assert {(plan.by_length, plan.threads) for group in sorts for plan in group} == {(False, CORES)}
    assert max(plan.batch for group in (*own, *sorts) for plan in group) == 32
