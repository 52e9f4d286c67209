"""What serving adds: `polyhead serve` under load, against onnxruntime in process at its best batch size."""

import asyncio
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import numpy as np

from encoders import infer_request
from gpu.families import FAST_GRAPH, feeds_of, open_graph
from gpu.machine import loaded_libraries
from gpu.plan import Check, Family
from load import Load, channel_to, closed_loop, unary
from polyhead_proto import messages as pb
from servers import polyhead_server

_REQUESTS = 16
"""Different requests of one caller."""


def run(check: Check) -> None:
    """Measure onnxruntime in process, then servers with more and more workers."""
    family = check.plan.timed[0]
    tokens = check.plan.served_tokens
    session = open_graph(check.device, family, check.models, FAST_GRAPH)
    for batch in check.plan.batches:
        feeds = feeds_of(family.config, [tokens] * batch, seed=batch)
        with check.attempt(f"onnxruntime in process, B = {batch}"):
            check.write(
                "in_process",
                batch=batch,
                sequences_per_second=batch * _runs_per_second(check, session, feeds),
            )
    lengths = [max(1, tokens - 3), 1, max(1, tokens // 2)]
    (expected,) = session.run(["pooled"], feeds_of(family.config, lengths, seed=11))
    question = request_of(family, lengths, seed=11)
    del session  # its memory is not the servers'
    folders = {str(path.parent) for path in loaded_libraries() if not path.name.startswith("libcuda.so")}
    libraries = os.pathsep.join([*sorted(folders), os.environ.get("LD_LIBRARY_PATH", "")])
    with ProcessPoolExecutor(check.plan.callers, get_context("spawn")) as callers:
        for workers in check.plan.workers:
            arguments = ["--device", check.device.kind, "--workers", str(workers)]
            arguments += ["--max-queued-tokens", str(2**20)]
            with (
                check.attempt(f"{workers} workers"),
                polyhead_server(
                    check.models / family.key,
                    arguments,
                    workers=workers,
                    environment={"LD_LIBRARY_PATH": libraries},
                ) as server,
            ):
                answer = asyncio.run(_ask(server.address, question))
                pooled = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(expected.shape)
                check.write("answer", workers=workers, difference=float(np.abs(pooled - expected).max()))
                for batch in (1, 8):
                    _load(check, callers, family, server.address, workers=workers, batch=batch)


def request_of(family: Family, lengths: list[int], *, seed: int) -> bytes:
    """Return a request for the pooled vectors of random sequences of these lengths."""
    return infer_request(family.key, feeds_of(family.config, lengths, seed=seed), {"pooled": None})


def _runs_per_second(check: Check, session: object, feeds: object) -> float:
    run = session.run  # type: ignore[attr-defined]
    for _ in range(3):
        run(["pooled"], feeds)
    runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < check.plan.seconds / 4:
        run(["pooled"], feeds)
        runs += 1
    return runs / (time.perf_counter() - start)


def _load(
    check: Check, callers: ProcessPoolExecutor, family: Family, address: str, *, workers: int, batch: int
) -> None:
    """Keep requests in flight from all callers at once."""
    plan = check.plan
    each = max(1, plan.in_flight // plan.callers // batch)
    futures = [
        callers.submit(
            _call,
            address,
            [
                request_of(family, [plan.served_tokens] * batch, seed=_REQUESTS * caller + number)
                for number in range(_REQUESTS)
            ],
            each,
            plan.seconds,
        )
        for caller in range(plan.callers)
    ]
    loads = [future.result() for future in futures]
    check.write(
        "load",
        workers=workers,
        batch=batch,
        in_flight=each * plan.callers,
        sequences_per_second=batch * sum(load.rate for load in loads),
        p50_ms=median([load.percentile_ms(50) for load in loads]),
        p99_ms=max(load.percentile_ms(99) for load in loads),
        errors=sum(load.errors for load in loads),
        cores=sum(load.client_cpu_seconds / load.seconds for load in loads),
    )


def _call(address: str, requests: list[bytes], in_flight: int, seconds: float) -> Load:
    """Run in a caller's process."""
    return asyncio.run(closed_loop(address, requests, in_flight=in_flight, seconds=seconds))


async def _ask(address: str, request: bytes) -> pb.ModelInferResponse:
    async with channel_to(address) as channel:
        return pb.ModelInferResponse.FromString(await unary(channel)(request, timeout=60))
