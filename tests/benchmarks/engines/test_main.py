"""What is sent, and the plans that are tried."""

import numpy as np

from benchmarks.engines.__main__ import equal_plans, sequences_of
from benchmarks.engines.comparison import FULL, LARGE, LISTS, LONE
from benchmarks.in_process import WAYS
from benchmarks.natural.engines import EngineModel


def model(kind: str) -> EngineModel:
    return EngineModel(kind=kind, path="", tokenizer="")


def test_no_lane_idles_where_lengths_are_equal() -> None:
    for traffic in (LONE, FULL, LARGE[0]):
        (plans,) = equal_plans(model("openvino"), traffic)

        assert [(plan.lanes, plan.threads) for plan in plans] == list(WAYS)
        every = traffic.per_call * traffic.in_flight
        assert all(plan.batch * plan.lanes <= max(every, plan.lanes) for plan in plans)


def test_what_runs_one_batch_at_a_time_has_one_plan() -> None:
    assert [len(group) for group in equal_plans(model("sentence-transformers"), FULL)] == [1]


def test_loads_are_token_ids_or_texts() -> None:
    assert np.shape(sequences_of(FULL, ["a"])) == (32, 64)
    assert np.shape(sequences_of(LONE, ["a"])) == (8, 16)
    assert sequences_of(LISTS, ["a", "b"]) == ["a", "b"]
