"""`polyhead serve` under load, against onnxruntime in process at its best batch size."""

import asyncio
import os
from collections.abc import Mapping
from functools import partial

import numpy as np
import onnxruntime as ort

from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import infer_request
from benchmarks.generator import closed_loop, unary_calls
from benchmarks.gpu.families import FAST, feeds_of, open_graph
from benchmarks.gpu.machine import loaded_libraries
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number

_REQUESTS = 16
"""Different requests."""
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
                rates.append(_load(check, server, batch, cells))
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
    call = partial(session.run, ["pooled"], feeds)
    samples = check.device.compare({"run": call}, sample_ms=1e3 * check.seconds / 4, rounds=1)
    return 1e3 * batch / samples["run"][0]


def _load(check: Check, server: Contender, batch: int, cells: Mapping[str, str]) -> float:
    """Keep requests in flight; return the sequences per second, 0 with errors."""
    plan, in_flight = check.plan, max(1, check.plan.in_flight // batch)
    requests = [_request(plan.timed[0], [plan.served_tokens] * batch, seed=seed) for seed in range(_REQUESTS)]
    send = partial(closed_loop, partial(unary_calls, server.address), requests, in_flight=in_flight)
    sample = server.load(send, check.seconds, batch)
    check.write(
        "row",
        cells={
            **cells,
            "B of a call": batch,
            "in flight": in_flight,
            "sequences/s": spell_number(sample.rate),
            "p50 / p99 ms": f"{spell_number(sample.p50_ms)} / {spell_number(sample.p99_ms)}",
            "errors": sample.errors,
            "caller's cores": spell_number(sample.client_cores),
        },
    )
    return 0.0 if sample.errors else sample.rate
