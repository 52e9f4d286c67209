"""`polyhead serve` under load, against onnxruntime in process at its best batch size."""

import asyncio
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

import numpy as np
import onnxruntime as ort

from benchmarks.contenders import polyhead
from benchmarks.encoders import infer_request
from benchmarks.generator import LoadResult, closed_loop, unary_calls
from benchmarks.gpu.families import FAST, feeds_of, open_graph
from benchmarks.gpu.machine import loaded_libraries
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number

_REQUESTS = 16
"""Different requests per caller."""
_LEAST_SHARE = 0.9


def run(check: Check) -> None:
    """Measure onnxruntime in process, then servers."""
    plan, family = check.plan, check.plan.timed[0]
    session = open_graph(check.device, family, check.models, FAST)
    limits: dict[int, float] = {}
    for batch in plan.batches:
        with check.attempt(f"onnxruntime in process, B = {batch}"):
            limits[batch] = _rate(check, session, batch)
    spelt = ", ".join(f"{spell_number(rate)} at B = {batch}" for batch, rate in limits.items())
    check.write("line", text=f"onnxruntime in process, sequences/s: {spelt}.")
    rates: list[float] = []
    lengths = [max(1, plan.served_tokens - 3), 1, max(1, plan.served_tokens // 2)]
    (expected,) = session.run(["pooled"], feeds_of(family.encoder.config, lengths, seed=11))
    question = _request(family, lengths, seed=11)
    del session  # free its memory for the servers
    folders = {str(path.parent) for path in loaded_libraries() if not path.name.startswith("libcuda.so")}
    libraries = os.pathsep.join([*sorted(folders), os.environ.get("LD_LIBRARY_PATH", "")])
    with ProcessPoolExecutor(plan.callers, get_context("spawn")) as callers:
        for workers in plan.workers:
            flags = ["--device", check.device.kind, "--workers", str(workers)]
            flags += ["--max-queued-tokens", str(2**20)]
            with (
                check.attempt(f"{workers} workers"),
                polyhead(
                    check.models / family.key,
                    flags,
                    workers=workers,
                    environment={"LD_LIBRARY_PATH": libraries},
                ) as server,
            ):
                (reply,) = asyncio.run(server.answers([question]))
                pooled = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(expected.shape)
                difference = float(np.abs(pooled - expected).max())
                cells = {"workers": str(workers), "difference": spell_number(difference)}
                for batch in (1, 8):
                    rates.append(_load(check, callers, server.address, batch, cells))
    if limits and rates:
        share = max(rates) / max(limits.values())
        name = "served ≥ 0.9 × onnxruntime in process, without errors"
        check.judge(name, share >= _LEAST_SHARE, spell_number(share))


def _request(family: EncoderFamily, lengths: list[int], *, seed: int) -> bytes:
    """Return a request for the pooled vectors of random sequences."""
    return infer_request(family.encoder.name, feeds_of(family.encoder.config, lengths, seed=seed), ["pooled"])


def _rate(check: Check, session: ort.InferenceSession, batch: int) -> float:
    """Return the sequences per second of a session."""
    feeds = feeds_of(check.plan.timed[0].encoder.config, [check.plan.served_tokens] * batch, seed=batch)
    for _ in range(3):
        session.run(["pooled"], feeds)
    runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < check.seconds / 4:
        session.run(["pooled"], feeds)
        runs += 1
    return batch * runs / (time.perf_counter() - start)


def _load(
    check: Check, callers: ProcessPoolExecutor, address: str, batch: int, cells: Mapping[str, str]
) -> float:
    """Keep requests in flight from all callers at once; return the sequences per second, 0 with errors."""
    plan = check.plan
    in_flight = max(1, plan.in_flight // plan.callers // batch)
    futures = []
    for caller in range(plan.callers):
        seeds = range(_REQUESTS * caller, _REQUESTS * (caller + 1))
        requests = [_request(plan.timed[0], [plan.served_tokens] * batch, seed=seed) for seed in seeds]
        futures.append(callers.submit(_call, address, requests, in_flight, check.seconds))
    loads = [future.result() for future in futures]
    rate, errors = batch * sum(load.rate for load in loads), sum(load.errors for load in loads)
    p50, p99 = (
        median([load.percentile_ms(50) for load in loads]),
        max(load.percentile_ms(99) for load in loads),
    )
    check.write(
        "row",
        cells={
            **cells,
            "B of a call": batch,
            "in flight": in_flight * plan.callers,
            "sequences/s": spell_number(rate),
            "p50 / p99 ms": f"{spell_number(p50)} / {spell_number(p99)}",
            "errors": errors,
            "callers' cores": spell_number(sum(load.client_cores for load in loads)),
        },
    )
    return 0.0 if errors else rate


def _call(address: str, requests: list[bytes], in_flight: int, seconds: float) -> LoadResult:
    """Run in a caller's process."""
    connect = partial(unary_calls, address)
    return asyncio.run(closed_loop(connect, requests, in_flight=in_flight, seconds=seconds))
