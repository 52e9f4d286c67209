"""What serving adds on a card: workers, several processes of callers, and attention in the reply."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import onnxruntime as ort

from gpu.answers import Feeds, Question, feeds_of
from gpu.crowd import Crowd, crowd
from gpu.environment import library_folders
from gpu.families import graph_file, repository_of
from gpu.generator import Order
from gpu.graph import open_session
from gpu.part import Bench, Pace
from gpu.plan import Family, Server
from polyhead_model import EncoderConfig

_SEVERAL = 8
"""Sequences of a call that has several."""
_BATCHES = (1, 8, 32, 64, 128)
"""B of onnxruntime alone."""
_TUNING_SECONDS = "0.5"
"""For a server to look at what its runs cost: the default takes what the loads need."""


def run(bench: Bench) -> None:
    """Measures onnxruntime alone, then servers with more and more workers."""
    family = bench.plan.served
    if family.config is None or family.config.vocabulary is None:
        raise ValueError(f"{family.key} must take token ids")
    session = open_session(bench.card, graph_file(family, bench.models, "model.onnx"))
    question = Question(session, model=family.key, config=family.config, tokens=bench.plan.served_tokens)
    _measure_alone(bench, session, family.config)
    del session  # its memory is not the servers'
    pace = Pace(first_seconds=20.0 if bench.card.kind == "cuda" else 1.0)
    with crowd(bench.plan.generators) as callers:
        for number, server in enumerate(bench.plan.servers):
            if bench.fits(server.name, pace.expected):
                with bench.attempt(server.name), pace.measured():
                    load = _Load(bench=bench, family=family, callers=callers, everything=number == 0)
                    load.measure(server, question)


def _measure_alone(bench: Bench, session: ort.InferenceSession, config: EncoderConfig) -> None:
    """Batch after batch through one session, from the host's memory to the host's memory."""
    seconds = bench.plan.served_seconds / 4
    for batch in _BATCHES[: None if bench.card.kind == "cuda" else 2]:
        feeds = feeds_of(config, [bench.plan.served_tokens] * batch, seed=batch)
        with bench.attempt(f"onnxruntime alone, B = {batch}"):
            rate = _rate(session, feeds, batch, seconds)
            bench.row("alone", batch=batch, tokens=bench.plan.served_tokens, sequences_per_second=rate)


def _rate(session: ort.InferenceSession, feeds: Feeds, batch: int, seconds: float) -> float:
    for _ in range(3):
        session.run(["pooled"], dict(feeds))
    runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        session.run(["pooled"], dict(feeds))
        runs += 1
    return runs * batch / (time.perf_counter() - start)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What is sent to a server."""

    bench: Bench
    family: Family
    callers: Crowd
    everything: bool
    """Also what does not change with the number of workers."""

    def measure(self, server: Server, question: Question) -> None:
        """Starts the server, looks at one answer, and sends one kind of traffic after the other."""
        bench = self.bench
        before, start = bench.card.used_bytes(), time.monotonic()
        with _running(bench, self.family, server) as address:
            bench.row(
                "server",
                server=server.name,
                ready_seconds=time.monotonic() - start,
                # Of the card: other processes' memory counts there.
                gpu_bytes=bench.card.used_bytes() - before if bench.card.kind == "cuda" else None,
                difference=question.difference(address),
            )
            for name, order in self._traffic(address).items():
                with bench.attempt(f"{server.name}, {name}"):
                    measured = self.callers.load(order)
                    bench.row(
                        "load",
                        server=server.name,
                        traffic=name,
                        batch=order.batch,
                        tokens=order.tokens,
                        in_flight=order.in_flight,
                        **asdict(measured),
                    )

    def _traffic(self, address: str) -> dict[str, Order]:
        plan, config = self.bench.plan, self.family.config
        if config is None:
            raise ValueError(f"{self.family.key} has no configuration")
        plain = Order(
            address=address,
            model=self.family.key,
            vocabulary=config.vocabulary or 0,
            types=config.types > 0,
            batch=1,
            tokens=plan.served_tokens,
            outputs=("pooled",),
            in_flight=plan.in_flight,
            seconds=plan.served_seconds,
        )
        several = max(1, plan.in_flight // _SEVERAL)
        traffic = {
            "one sequence a call": plain,
            f"{_SEVERAL} sequences a call": replace(plain, batch=_SEVERAL, in_flight=several),
        }
        if self.everything:
            alone = replace(plain, in_flight=1, seconds=plan.served_seconds / 2)
            traffic |= {
                "every token's vector": replace(plain, outputs=("output",), in_flight=several),
                "one in flight": alone,
                **_with_attention(alone, config),
            }
        return traffic


def _with_attention(alone: Order, config: EncoderConfig) -> dict[str, Order]:
    """One call in flight, with attention in its reply."""
    every = tuple(f"attention.{layer}" for layer in range(config.layers))
    asked = {
        "one layer's attention": (every[:1], None),
        "all attention": (every, None),
        "all attention, UINT8": (every, "UINT8"),
    }
    return {
        name: replace(alone, model=f"{alone.model}.attention", outputs=("pooled", *outputs), dtype=dtype)
        for name, (outputs, dtype) in asked.items()
    }


def _libraries_found() -> dict[str, str]:
    """Has a server look for CUDA's libraries where this process has found them, first of all."""
    folders = [*library_folders(), os.environ.get("LD_LIBRARY_PATH")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


@contextmanager
def _running(bench: Bench, family: Family, server: Server) -> Iterator[str]:
    """`polyhead serve` with this family alone; its address."""
    from servers import polyhead_server  # needs all that a server needs: other parts do without

    arguments = ["--device", bench.card.kind, "--workers", str(server.workers)]
    arguments += ["--cache-dir", str(bench.models / "costs"), "--max-queued-tokens", str(2**20)]
    arguments += [*server.arguments, *bench.serve_arguments]
    if not any(argument.startswith("--tuning-seconds") for argument in arguments):
        arguments += ["--tuning-seconds", _TUNING_SECONDS]
    found = _libraries_found() if bench.card.kind == "cuda" else {}
    with polyhead_server(
        repository_of(family, bench.models), arguments, workers=server.workers, environment=found
    ) as served:
        yield served.address
