"""Which kernel computes attention in the graphs that are served, by the profiler and by onnxruntime."""

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gpu.families import GRAPHS, feeds_of, open_graph
from gpu.plan import Check, Family

_SAID = re.compile(r"SdpaKernel=([A-Z_]+)")
# What the names of kernels hold, the most telling first.
_KINDS = (
    ("cuDNN", re.compile(r"cudnn.*(sdpa|flash|attention|fprop|mha)|sdpa_sm\d", re.IGNORECASE)),
    ("FlashAttention", re.compile(r"flash_?fwd|flash::|flash_attn", re.IGNORECASE)),
    ("memory-efficient", re.compile(r"fmha_cutlass|AttentionKernel|mem_?eff", re.IGNORECASE)),
    ("TensorRT", re.compile(r"fmha_v2|fused_multihead|fmha_mhca", re.IGNORECASE)),
    ("unfused", re.compile(r"softmax", re.IGNORECASE)),
)


def run(check: Check) -> None:
    """Look at both graphs of every family."""
    # onnxruntime's own attention operators print which kernel they take when this is set at load.
    os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"] = "1"
    for family in check.plan.families:
        for graph in GRAPHS:
            with check.attempt(f"kernels of {family.key}, {graph}.onnx"):
                _look_at(check, family, graph)


def classify(kernels: Sequence[str]) -> str:
    """Return the kind of attention that kernels of these names compute, or "" where none of them does."""
    return next((kind for kind, words in _KINDS if any(words.search(name) for name in kernels)), "")


def _look_at(check: Check, family: Family, graph: str) -> None:
    batch, tokens = check.plan.kernel_size
    lengths = [max(1, tokens - row) for row in range(batch)]  # ragged, as served
    feeds = feeds_of(family.config, lengths, seed=1)
    with _standard_output() as said:
        session = open_graph(check.device, family, check.models, graph)
        outputs = [value.name for value in session.get_outputs() if value.name != "output"]
        session.run(outputs, feeds)
    spent: dict[str, float] = {}
    if check.device.kind == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                session.run(outputs, feeds)
                check.device.synchronise()
        for event in profile.key_averages():
            if (microseconds := float(getattr(event, "self_device_time_total", 0.0))) > 0:
                spent[event.key] = microseconds
    check.write(
        "kernels",
        family=family.key,
        graph=graph,
        size=[batch, tokens],
        said=sorted(set(_SAID.findall("".join(said)))),
        attention=classify(list(spent)),
        longest=dict(sorted(spent.items(), key=lambda each: -each[1])[:5]),
    )


@contextmanager
def _standard_output() -> Iterator[list[str]]:
    """Collect what is written to the process's standard output, by libraries as well."""
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
