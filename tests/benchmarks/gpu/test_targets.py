"""When a target counts as met."""

from typing import Any

import pytest

from gpu.journal import Found
from gpu.plan import full
from gpu.targets import Target, judge

PLAN = full("cuda")


def size(family: str, batch: int, tokens: int, **facts: Any) -> dict[str, Any]:
    shape = {"base": {"d_model": 768, "heads": 12}, "large": {"d_model": 1024, "heads": 16}}[family]
    common = {"kind": "size", "family": family, "batch": batch, "tokens": tokens, **shape}
    measured: dict[str, Any] = {
        "against_compiled": 1.2,
        "attention_costs": 1.8,
        "share_of_peak": {"fast": 0.55, "attention": 0.3},
        "sequences_per_second": {},
    }
    return common | measured | facts


def sizes(**changed: Any) -> list[dict[str, Any]]:
    """Every size of the table; `changed` is of 1024/16 at B = 32, T = 512."""
    return [
        size(family, batch, tokens, **(changed if (family, batch, tokens) == ("large", 32, 512) else {}))
        for family in ("base", "large")
        for tokens in (128, 512)
        for batch in (1, 8, 32, 128)
    ]


def graph(precision: str, name: str, **facts: Any) -> dict[str, Any]:
    row = {"kind": "graph", "family": "minilm", "precision": precision, "graph": name}
    measured: dict[str, Any] = {
        "output": 1e-6,
        "pooled": 1e-6,
        "attention": None,
        "operators": {},
        "drift_limit": None,
    }
    return row | measured | facts


def judged(part: str, rows: list[dict[str, Any]], words: str) -> Target:
    (target,) = (one for one in judge({part: Found(rows=rows)}, PLAN) if words in one.name)
    return target


def test_nothing_measured_meets_nothing() -> None:
    assert [target.met for target in judge({}, PLAN)] == [None] * 12


def test_all_sizes_must_reach_the_compiled_encoder() -> None:
    assert judged("table", sizes(), "torch.compile").met is True

    slow = judged("table", sizes(against_compiled=0.97), "torch.compile")
    assert (slow.met, slow.seen) == (False, "0.97 (1024/16, B = 32, T = 512)")


def test_what_is_missing_leaves_it_open_but_not_what_fails() -> None:
    part_of_it = judged("table", sizes()[:5], "torch.compile")
    assert (part_of_it.met, part_of_it.seen.split("; ")[1]) == (None, "5 of 16 measured")
    assert judged("table", sizes(against_compiled=None), "torch.compile").met is None

    slow = [size("base", 1, 128, against_compiled=0.5)]
    assert judged("table", slow, "torch.compile").met is False


def test_the_share_of_the_peak_is_that_of_one_size() -> None:
    assert judged("table", sizes(), "peak").met is True
    assert judged("table", sizes(share_of_peak={"fast": 0.4, "fast, CUDA graph": 0.51}), "peak").met is True
    assert judged("table", sizes(share_of_peak={"fast": 0.4, "attention": 0.9}), "peak").met is False
    assert judged("table", sizes(share_of_peak={"torch eager": 0.9}), "peak").met is None


def test_attention_counts_at_the_longest_only() -> None:
    rows = sizes()
    for row in rows:
        if row["tokens"] == 128:
            row["attention_costs"] = 1.1
    assert judged("table", rows, "attention graph").met is True


def served(rate: float, *, on_card: float | None = 900.0, errors: int = 0) -> Target:
    load = {"kind": "load", "server": "4 workers", "in_flight": 512, "errors": 0}
    rows = [
        {"kind": "alone", "sequences_per_second": 400.0},
        {"kind": "alone", "sequences_per_second": 1000.0},
        load | {"traffic": "one sequence a call", "sequences_per_second": rate},
        load | {"traffic": "8 sequences a call", "sequences_per_second": 500.0, "errors": errors},
        load | {"traffic": "every token's vector", "sequences_per_second": 5000.0},
    ]
    rates = {"fast": 100.0, "fast, CUDA graph": on_card, "attention": 9000.0}
    table = [
        size("base", 8, 128, sequences_per_second=rates),
        size("base", 8, 512, sequences_per_second={"fast": 9000.0}),
        size("large", 8, 128, sequences_per_second={"fast": 9000.0}),
    ]
    found = {"served": Found(rows=rows), "table": Found(rows=table if on_card else [])}
    (target,) = (one for one in judge(found, PLAN) if "served ≥" in one.name)
    return target


def test_serving_is_held_against_the_best_batch() -> None:
    fine = served(950.0)
    assert (fine.met, fine.seen) == (
        True,
        "0.95 of the host's, 1.06 of the card's (4 workers, one sequence a call)",
    )
    assert served(850.0).met is False


def test_serving_is_held_against_runs_on_the_card_as_well() -> None:
    slow = served(950.0, on_card=2000.0)
    assert (slow.met, slow.seen[:40]) == (False, "0.95 of the host's, 0.47 of the card's (")
    assert served(950.0, on_card=None).met is None
    assert served(850.0, on_card=None).met is False


def test_errors_of_a_server_are_a_failure() -> None:
    target = served(950.0, errors=3)

    assert (target.met, target.seen) == (False, "3 errors (4 workers, 8 sequences a call)")


def test_the_engine_is_held_against_the_graph_in_every_way() -> None:
    row = {"kind": "engine", "graph": "fast", "cuda_graphs": True, "check": "two threads"}
    fine = [row | {"pooled": 1e-4, "rest": 5e-3}] * PLAN.engine_checks

    assert judged("engine", fine, "engine's pooled").met is True
    assert judged("engine", fine, "engine's every").met is True
    assert judged("engine", fine[1:], "engine's every").met is None
    late = judged("engine", [*fine, row | {"pooled": 1e-4, "rest": 1.5}], "engine's every")
    assert (late.met, late.seen) == (False, "1.50 (fast, CUDA graphs, two threads)")
    missed = [*fine[1:], row | {"problem": "it ran"}]
    assert judged("engine", missed, "engine's pooled").met is False


def test_served_answers_are_judged() -> None:
    rows = [{"kind": "server", "server": server.name, "difference": 2e-4} for server in PLAN.servers]

    assert judged("served", rows, "answers").met is True
    assert judged("served", rows[:-1], "answers").met is None
    rows[2]["difference"] = "nan"
    assert judged("served", rows, "answers").met is False


def test_precisions_are_judged_by_their_own_limits() -> None:
    rows = [
        graph("fp32", "fast"),
        graph("fp32", "attention", attention=2e-5),
        graph("fp16", "fast", output=2e-2, pooled=4e-4),
        graph("fp16", "attention", output=2e-2, pooled=9e-4),
        graph("bf16", "fast", pooled=0.5),
    ]

    assert judged("parity", rows, "fp16").met is True
    fp32 = judged("parity", rows, "fp32: every")
    assert (fp32.met, fp32.seen) == (False, "2e-05 (minilm, attention)")
    rows[2]["pooled"] = "inf"
    assert judged("parity", rows, "fp16").met is False


def test_16_bits_may_drift_as_far_as_the_export_says() -> None:
    keys = [(family.name, family.precision) for family in PLAN.compared if family.precision != "fp32"]
    limits = {"fp16": 5e-2, "bf16": 4e-1}
    rows = [
        graph(precision, name, family=family, output=2e-2, drift_limit=limits[precision])
        for family, precision in keys
        for name in ("fast", "attention")
    ]

    fine = judged("parity", rows, "16 bits")
    assert (fine.met, fine.seen) == (True, "0.40 of the limit (minilm-fp16, fast)")
    assert judged("parity", rows[1:], "16 bits").met is None
    rows[1]["attention"] = "inf"
    assert judged("parity", rows, "16 bits").met is False


def form(precision: str, **facts: Any) -> dict[str, Any]:
    measured = {"difference": 2e-3, "padding_finite": True, "ran": "cuDNN", "cudnn_off": False}
    which = {"operator": "contrib Attention", "layout": "projected", "mask": "lengths"}
    return {"kind": "form", "precision": precision} | which | measured | facts


@pytest.mark.parametrize(
    ("facts", "met", "seen"),
    [
        ({}, True, "fp16 cuDNN, bf16 cuDNN"),
        ({"ran": "FlashAttention"}, True, "fp16 cuDNN, bf16 FlashAttention"),
        ({"ran": ""}, None, "fp16 cuDNN, bf16 unknown"),
        ({"ran": "unfused"}, False, "bf16: computed by unfused"),
        ({"difference": 0.5}, False, "bf16: differs by 0.5"),
        ({"difference": "nan"}, False, "bf16: differs by nan"),
        ({"padding_finite": False}, False, "bf16: padding is not finite"),
        ({"problem": "RuntimeError: no"}, False, "bf16: does not run: RuntimeError: no"),
        ({"cudnn_off": True}, None, "fp16 cuDNN"),
    ],
)
def test_the_served_attention_is_right_and_fast(facts: dict[str, Any], met: bool | None, seen: str) -> None:
    target = judged("kernels", [form("fp16"), form("bf16", **facts)], "attention: right")

    assert (target.met, target.seen) == (met, seen)


def test_what_is_left_to_the_cpu_is_named() -> None:
    cuda = {"CUDAExecutionProvider": {"MatMul": 70}}
    fine = graph("fp16", "fast", operators=cuda | {"CPUExecutionProvider": {"Shape": 3, "Concat": 1}})
    left = graph("fp16", "attention", operators=cuda | {"CPUExecutionProvider": {"Erf": 2}})
    every = [fine] * (2 * len(PLAN.compared))

    assert judged("parity", every, "left to the CPU").met is True
    assert judged("parity", every[1:], "left to the CPU").met is None
    assert judged("parity", [graph("fp16", "fast")], "left to the CPU").met is None
    target = judged("parity", [*every, left], "left to the CPU")
    assert (target.met, target.seen) == (False, "minilm-fp16, attention: 2 Erf")


def test_a_graph_that_is_wholly_on_the_cpu_is_not_met() -> None:
    row = graph("fp16", "fast", operators={"CPUExecutionProvider": {"MatMul": 70, "Shape": 3}})

    target = judged("parity", [row], "left to the CPU")

    assert (target.met, target.seen) == (False, "minilm-fp16, fast: 70 MatMul")
