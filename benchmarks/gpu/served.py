"""Texts and lists of them, served by one worker, and the memory that it takes."""

import asyncio
from functools import partial

import torch

from benchmarks.contenders import polyhead
from benchmarks.encoders import infer_request, text_request
from benchmarks.generator import closed_loop, unary_calls
from benchmarks.gpu.plan import FAST, LONG, TEXTS, Check
from benchmarks.sentences import natural_texts
from polyhead_load.sweep.server import memory_of

_LOADS = ((1, 256), (1, 256), (1, 1), (1, 8), (32, 64), (128, 32))
"""Texts of a call, and calls in flight; the first ones meet a server that has just become ready."""
_MANY = 8
"""Sequences of a call to the larger family."""


def run(check: Check) -> None:
    """Send at full speed."""
    family, large = check.family(TEXTS), check.family(LONG)
    texts = natural_texts(128 if check.tiny else 512)
    loads = []
    for many, flying in _LOADS:
        lists = [texts[start : start + many] for start in range(0, len(texts), many)]
        loads.append((family, many, flying, [text_request(family.encoder.name, each) for each in lists]))
    if large.folder.exists():
        feeds = large.feeds(FAST, [8 if check.tiny else 128] * _MANY)
        loads.append((large, _MANY, 32, [infer_request(large.encoder.name, feeds, ["pooled"])]))
    free = _free(check)
    with polyhead(
        family.repository, ["--device", check.device.name, "--max-queued-tokens", "2097152"]
    ) as server:
        for number, (served, many, flying, requests) in enumerate(loads):
            with check.attempt(f"{flying} calls of {many}"):
                send = partial(closed_loop, partial(unary_calls, server.address), requests)
                seconds = check.seconds / 2 if number else min(1.0, check.seconds)
                sample = asyncio.run(send(in_flight=flying, seconds=seconds)).sample(many)
                cells = {"sequences/s": sample.rate, "p50 ms": sample.p50_ms, "p99 ms": sample.p99_ms}
                cells |= {
                    "server's MB": memory_of(server.process) / 1e6,
                    "GPU's MB": (free - _free(check)) / 1e6,
                }
                check.row(family=str(served), a_call=many, in_flight=flying, **cells)
                if number == 0:
                    check.judge("served", sample.rate)
                check.judge("errors", sample.errors)


def _free(check: Check) -> int:
    """Return the bytes of the GPU that no process has."""
    return torch.cuda.mem_get_info()[0] if not check.device.host_memory else 0
