"""The kernel that computes attention in each graph, by the profiler and by onnxruntime's own messages."""

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.gpu.families import FAST, GRAPHS, feeds_of, open_graph
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number

_MESSAGE = re.compile(r"SdpaKernel=([A-Z_]+)")
# Parts of kernel names, the most specific first.
_KINDS = (
    ("cuDNN", re.compile(r"cudnn.*(sdpa|flash|attention|fprop|mha)|sdpa_sm\d", re.IGNORECASE)),
    ("FlashAttention", re.compile(r"flash_?fwd|flash::|flash_attn", re.IGNORECASE)),
    ("memory-efficient", re.compile(r"fmha_cutlass|AttentionKernel|mem_?eff", re.IGNORECASE)),
    ("TensorRT", re.compile(r"fmha_v2|fused_multihead|fmha_mhca", re.IGNORECASE)),
    ("unfused", re.compile(r"softmax", re.IGNORECASE)),
)


def run(check: Check) -> None:
    """Profile both graphs of every family."""
    # onnxruntime's attention operators print their kernel if this is set when the session is made.
    os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"] = "1"
    fused = set()
    for family in check.plan.families:
        for graph in GRAPHS:
            with check.attempt(f"kernels of {family.key}, {graph}.onnx"):
                kernel = _profile(check, family, graph)
                if graph == FAST and check.device.kind == "cuda" and family.precision != "fp32":
                    fused.add(kernel or "unknown")
    if fused:
        name = "16 bits: the fast graph's attention is fused"
        check.judge(name, not fused & {"unfused", "unknown"}, ", ".join(sorted(fused)))


def classify(kernels: Sequence[str]) -> str:
    """Return the kind of attention that kernels of these names compute, or "" if none does."""
    return next((kind for kind, words in _KINDS if any(words.search(name) for name in kernels)), "")


def _profile(check: Check, family: EncoderFamily, graph: str) -> str:
    """Run a graph, and return the kind of its attention."""
    batch, tokens = check.plan.kernel_size
    lengths = [max(1, tokens - row) for row in range(batch)]  # ragged, as served
    feeds = feeds_of(family.encoder.config, lengths, seed=1)
    with _standard_output() as printed:
        session = open_graph(check.device, family, check.models, graph)
        outputs = [value.name for value in session.get_outputs() if value.name != "output"]
        session.run(outputs, feeds)
    microseconds: dict[str, float] = {}
    if check.device.kind == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                session.run(outputs, feeds)
                torch.cuda.synchronize()
        for event in profile.key_averages():
            if (spent := float(getattr(event, "self_device_time_total", 0.0))) > 0:
                microseconds[event.key] = spent
    attention = classify(list(microseconds))
    longest = sorted(microseconds.items(), key=lambda each: -each[1])[:5]
    spelt = [f"`{name[:50]}` {spell_number(spent)}" for name, spent in longest]
    check.write(
        "row",
        cells={
            "family": family.key,
            "graph": graph,
            "B, T": f"{batch}, {tokens}",
            "attention": attention or "–",
            "onnxruntime says": ", ".join(sorted(set(_MESSAGE.findall("".join(printed))))) or "nothing",
            "longest kernels, µs": ", ".join(spelt),
        },
    )
    return attention


@contextmanager
def _standard_output() -> Iterator[list[str]]:
    """Collect the standard output of the process, that of libraries included."""
    printed: list[str] = []
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield printed
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
