"""What is sent, the plans that are tried, and what is made of the rounds."""

import numpy as np
import pytest

from benchmarks.engines import FULL, LARGE, LISTS, LONE
from benchmarks.frame import Sample
from benchmarks.in_process import WAYS
from benchmarks.texts.comparison import Least, TextComparison, equal_plans, needs, sequences_of
from benchmarks.texts.engines import EngineModel
from benchmarks.texts.lineup import OPENVINO, POLYHEAD, Cosines, Footprint


def model(kind: str) -> EngineModel:
    return EngineModel(kind=kind, path="", tokenizer="")


def compared(**rates: float) -> TextComparison:
    """Three rounds; polyhead's rates are 90, 100 and 110."""
    every = {POLYHEAD: [90.0, 100.0, 110.0], **{name: [rate] * 3 for name, rate in rates.items()}}
    return TextComparison(
        traffic=LISTS,
        samples={name: [Sample(rate=rate, p50_ms=8.0) for rate in of] for name, of in every.items()},
        plans={OPENVINO: "1 × 2 threads, B = 32"},
    )


def test_no_lane_idles_where_lengths_are_equal() -> None:
    for traffic in (LONE, FULL, LARGE[0]):
        (plans,) = equal_plans(model("openvino"), traffic)

        assert [(plan.lanes, plan.threads) for plan in plans] == list(WAYS)
        assert all(plan.batch * plan.lanes <= max(traffic.at_once, plan.lanes) for plan in plans)


def test_what_runs_one_batch_at_a_time_has_one_plan() -> None:
    assert [len(group) for group in equal_plans(model("sentence-transformers"), FULL)] == [1]


def test_loads_are_token_ids_or_texts() -> None:
    assert np.shape(sequences_of(FULL, ["a"])) == (32, 64)
    assert np.shape(sequences_of(LONE, ["a"])) == (8, 16)
    assert sequences_of(LISTS, ["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(("strongest", "holds"), [(76.0, True), (78.0, False)])
def test_the_strongest_of_several_counts(strongest: float, holds: bool) -> None:
    rivals = {"rival, slow": 10.0, "rival, fast": strongest, "another": 500.0}

    (judged,) = compared(**rivals).judge([Least(POLYHEAD, "rival", 1.3)])

    assert judged.name == f"{LISTS.title}: {POLYHEAD} ≥ 1.3 × rival, fast"
    assert judged.holds is holds


def test_who_takes_no_part_is_not_judged() -> None:
    assert not compared().judge([Least(POLYHEAD, "rival", 1.0), Least("rival", POLYHEAD, 1.0)])


def test_everyone_has_a_row() -> None:
    shown = "\n".join(compared(**{OPENVINO: 200.0, "rival": 50.0}).lines())

    assert "### Lists of 32 texts, one call at a time" in shown
    assert f"| {OPENVINO} | 200 | 2.00 (1.82–2.22) | 8 | 1.00 (1.00–1.00) |" in shown
    assert "| 0 | 1 × 2 threads, B = 32 |" in shown
    assert f"| **{POLYHEAD}** | 100 |  | 8 |  |" in shown
    assert "| rival | 50 |" in shown


def test_a_server_that_was_not_started_here_has_no_footprint() -> None:
    footprints = {POLYHEAD: Footprint(first_answer_seconds=1.0, memory_mib=100.0)}

    shown = "\n".join(needs(footprints, dict.fromkeys((POLYHEAD, "rival"), Cosines(lowest=0.5, mean=0.75))))

    assert f"| {POLYHEAD} | 100 | 1.0 | 0.50000 | 0.75000 |" in shown
    assert "| rival |  |  | 0.50000 | 0.75000 |" in shown
