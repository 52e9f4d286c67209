"""What sessions and runs take of the card's memory, step by step, in a process of their own."""

from gpu.families import graph_file
from gpu.graph import BoundGraph, empty_outputs, full_inputs, open_session
from gpu.part import Bench
from gpu.plan import Family, Size
from polyhead_model import EncoderConfig


def run(bench: Bench) -> None:
    """Adds session after session, runs larger and larger batches, and looks each time."""
    for family in bench.plan.tabled:
        if family.config is not None and bench.fits(family.key, 3.0 if bench.card.kind == "cuda" else 0.1):
            with bench.attempt(family.key):
                _Steps(bench, family, family.config).take()


class _Steps:
    def __init__(self, bench: Bench, family: Family, config: EncoderConfig) -> None:
        self._bench, self._family, self._config = bench, family, config
        bench.card.give_back()
        self._before = bench.card.used_bytes()

    def take(self) -> None:
        """All of them, in order."""
        plan, folder = self._bench.plan, self._bench.models
        weights = graph_file(self._family, folder, "weights.bin").stat().st_size
        self._bench.row(
            "weights",
            family=self._family.key,
            step="weights on disk, of both graphs",
            mib=weights / 2**20,
        )
        sizes: list[Size] = [
            (batch, tokens) for tokens in plan.tokens for batch in (plan.batches[0], plan.batches[-1])
        ]
        for graph, file in (("fast", "model.onnx"), ("attention", "attention.onnx")):
            session = open_session(self._bench.card, graph_file(self._family, folder, file))
            self._look(f"{graph} graph loaded")
            for batch, tokens in sizes[: None if graph == "fast" else 2]:
                what = f"{graph} graph, kept after a run of B = {batch}, T = {tokens}"
                with self._bench.attempt(what):
                    inputs = full_inputs(self._bench.card, self._config, batch, tokens)
                    outputs = empty_outputs(
                        self._bench.card, self._config, batch, tokens, attention=graph == "attention"
                    )
                    BoundGraph(self._bench.card, session, inputs, outputs)()
                    del inputs, outputs
                    self._look(what)

    def _look(self, step: str) -> None:
        self._bench.card.synchronise()
        self._bench.card.give_back()
        taken = self._bench.card.used_bytes() - self._before
        self._bench.row("step", family=self._family.key, step=step, mib=taken / 2**20)
