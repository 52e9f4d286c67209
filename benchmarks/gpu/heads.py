"""What the number of heads costs at one width: the same products, other attention."""

from collections.abc import Callable
from statistics import median

from gpu.families import graph_file
from gpu.graph import BoundGraph, empty_outputs, full_inputs, open_session
from gpu.part import Bench, Pace, reason
from gpu.plan import Family
from gpu.timing import compare, ratio
from polyhead_model import EncoderConfig

_FILES = {"fast": "model.onnx", "attention": "attention.onnx"}


def run(bench: Bench) -> None:
    """Sweeps the head counts."""
    pace = Pace(first_seconds=1.0)
    for heads, family in bench.plan.head_families().items():
        what = f"H = {heads}"
        if family.config is not None and bench.fits(what, pace.expected):
            with bench.attempt(what), pace.measured():
                _measure(bench, family, family.config)


def _measure(bench: Bench, family: Family, config: EncoderConfig) -> None:
    graph_file(family, bench.models, "model.onnx")  # says so where it was not exported
    sessions, problems = {}, dict[str, str]()
    for name, file in _FILES.items():
        try:
            sessions[name] = open_session(bench.card, graph_file(family, bench.models, file))
        except Exception as error:
            problems[name] = reason(error)
    for batch, tokens in bench.plan.heads_sizes:
        inputs = full_inputs(bench.card, config, batch, tokens)
        calls: dict[str, Callable[[], object]] = {}
        failed = dict(problems)
        for name, session in sessions.items():
            try:
                outputs = empty_outputs(bench.card, config, batch, tokens, attention=name == "attention")
                calls[name] = BoundGraph(bench.card, session, inputs, outputs)
                bench.card.milliseconds(calls[name], 1)
            except Exception as error:
                calls.pop(name, None)
                failed[name] = reason(error)
        samples = compare(bench.card, calls, sample_ms=bench.plan.sample_ms / 2, rounds=bench.plan.rounds)
        bench.row(
            "heads",
            heads=config.heads,
            head_width=config.head_size,
            d_model=config.d_model,
            layers=config.layers,
            precision=family.precision,
            batch=batch,
            tokens=tokens,
            layer_us={name: 1e3 * median(each) / config.layers for name, each in samples.items()},
            attention_costs=ratio(samples, "attention", "fast"),
            problems=failed,
        )
