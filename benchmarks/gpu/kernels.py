"""Which kernel computes attention, for every form of operator and mask, in each precision; and how fast.

Two witnesses: onnxruntime says which kernel its own operators take, and the profiler names what ran on the
card for any operator.
"""

import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import onnxruntime as ort
import torch
from torch import Tensor

from gpu.form_data import by_token, expected, form_inputs
from gpu.forms import FORMS, Form, build_form
from gpu.graph import BoundGraph, open_session, placed
from gpu.part import Bench, Pace, reason
from gpu.plan import Precision
from gpu.timing import compare

_SAY = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
_CUDNN = "ORT_ENABLE_CUDNN_FLASH_ATTENTION"
_SPEAKING = frozenset({"MultiHeadAttention", "contrib Attention"})
"""Onnxruntime's own operators, which say what they take; others never do."""
_SAID = re.compile(r"SdpaKernel=([A-Z_]+)")

# What the names of kernels hold, the most telling first.
_KINDS = (
    ("cuDNN", re.compile(r"cudnn.*(sdpa|flash|attention|fprop|mha)|sdpa_sm\d", re.IGNORECASE)),
    ("FlashAttention", re.compile(r"flash_?fwd|flash::|flash_attn", re.IGNORECASE)),
    ("memory-efficient", re.compile(r"fmha_cutlass|AttentionKernel|mem_?eff", re.IGNORECASE)),
    ("TensorRT", re.compile(r"fmha_v2|fused_multihead|fmha_mhca", re.IGNORECASE)),
    ("unfused", re.compile(r"softmax", re.IGNORECASE)),
)


def classify(kernels: Sequence[str]) -> str:
    """The kind of attention that kernels of these names compute; "" where none of them does."""
    for kind, pattern in _KINDS:
        if any(pattern.search(name) for name in kernels):
            return kind
    return ""


def kernels_said(text: str) -> str:
    """What onnxruntime's operators have said in it: every kernel once, or that they said nothing."""
    return ", ".join(dict.fromkeys(_SAID.findall(text))) or "nothing"


def run(bench: Bench) -> None:
    """Tries form after form; in 16 bits also with cuDNN's kernel switched off."""
    pace = Pace(first_seconds=2.0)
    precisions = sorted(bench.plan.precisions, key=("fp16", "bf16", "fp32").index)
    switches = (None, "0") if bench.card.kind == "cuda" else (None,)
    for precision in precisions:
        for cudnn in switches if precision != "fp32" else (None,):
            for form in FORMS:
                if cudnn is not None and form.mask != "lengths":
                    continue
                what = f"{form.name}, {precision}"
                if bench.fits(what, pace.expected):
                    with bench.attempt(what), pace.measured(), _environment(_CUDNN, cudnn):
                        bench.row("form", **_look_at(bench, form, precision), cudnn_off=cudnn == "0")


def _look_at(bench: Bench, form: Form, precision: Precision) -> dict[str, Any]:
    card, (batch, tokens), (heads, width) = bench.card, bench.plan.mask_size, bench.plan.mask_heads
    facts: dict[str, Any] = {
        "form": form.name,
        "operator": form.operator,
        "layout": form.layout,
        "mask": form.mask,
        "precision": precision,
        "size": [batch, tokens, heads, width],
    }
    model = build_form(form, precision, heads, width)
    inputs, lengths = form_inputs(form, precision, (batch, tokens, heads, width), seed=1)
    on_card = {name: tensor.to(card.device) for name, tensor in inputs.items()}
    try:
        # Kernels read the switch when they are made: one session that says, one that is timed.
        with _environment(_SAY, "1"), _file_of_stdout() as said:
            talking, _ = _bind(bench, form, open_session(card, model), on_card)
            talking()
            card.synchronise()
        session = open_session(card, model)
        quiet, out = _bind(bench, form, session, on_card)
    except Exception as error:
        return facts | {"problem": reason(error)}
    facts["said"] = kernels_said("".join(said)) if form.operator in _SPEAKING else None
    kernels = _profiled(bench, quiet)
    facts["kernels"] = kernels
    facts["ran"] = classify(list(kernels))
    facts["ms"] = median(
        compare(card, {"form": quiet}, sample_ms=bench.plan.sample_ms / 2, rounds=bench.plan.rounds)["form"]
    )
    facts["operators"] = placed(session)
    return facts | _check(form, out, on_card, lengths, heads)


def _bind(
    bench: Bench, form: Form, session: ort.InferenceSession, inputs: Mapping[str, Tensor]
) -> tuple[Callable[[], None], Tensor]:
    batch, tokens = bench.plan.mask_size
    heads, width = bench.plan.mask_heads
    shape = (batch, heads, tokens, width) if form.layout == "heads" else (batch, tokens, heads * width)
    some = next(iter(inputs.values()))
    out = torch.empty(shape, dtype=some.dtype, device=bench.card.device)
    return BoundGraph(bench.card, session, inputs, {"out": out}), out


def _check(
    form: Form, out: Tensor, inputs: Mapping[str, Tensor], lengths: Tensor, heads: int
) -> dict[str, Any]:
    """How far the result is from the equation where there are tokens, and whether padding is finite."""
    got = by_token(form, out.float(), heads).cpu()
    want = expected(form, inputs, lengths, heads).cpu()
    tokens = torch.arange(got.shape[1]) < lengths[:, None]
    return {
        "difference": float((got - want)[tokens].abs().max()),
        "padding_finite": bool(got[~tokens].isfinite().all()),
    }


def _profiled(bench: Bench, call: Callable[[], object]) -> dict[str, float]:
    """The kernels that a run starts on the card, with the microseconds of each, longest first."""
    if bench.card.kind == "cpu":
        return {}
    runs = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(runs):
                call()
            bench.card.synchronise()
    spent: dict[str, float] = {}
    for event in profile.key_averages():
        microseconds = float(getattr(event, "self_device_time_total", 0.0))
        on_the_host = str(getattr(event, "device_type", "")).endswith("CPU")
        if microseconds > 0 and not on_the_host:
            spent[event.key] = round(microseconds / runs, 2)
    return dict(sorted(spent.items(), key=lambda item: -item[1])[:8])


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Sets a variable for onnxruntime, which reads the process's own."""
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _file_of_stdout() -> Iterator[list[str]]:
    """Collects what is written to the process's standard output, by libraries as well."""
    said: list[str] = []
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield said
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
