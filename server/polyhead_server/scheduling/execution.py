"""Run batches, in threads of their own: join requests, call the engine, split its outputs."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Protocol

from polyhead_server.engine.engine import Arrays, Runner
from polyhead_server.errors import DeviceLostError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Execution
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.admission import Entry, RunningBatch, broken
from polyhead_server.scheduling.batch import JointWork
from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.dispatch import Lanes, Planner

_MOST_ASKED = 2**25
"""The bytes of what several requests may ask of their sequences in one run, padding included."""


@dataclass(kw_only=True, slots=True, eq=False)
class Result:
    """The result of one run."""

    outputs: list[Arrays]
    """By request."""
    started_ns: int
    execution: Execution


def run_batch(
    session: Lanes,
    entries: list[Entry],
    size: Size,
    *,
    signature: Signature,
    planner: Planner,
    wanted: Callable[[list[Entry]], list[Entry]],
    send: Callable[[list[Entry], Result | Exception], None],
) -> None:
    """Run requests together, and learn what that costs.

    A run that fails is repeated with each half of its requests, until only the requests that cause the
    failure fail: at most 2n - 1 runs for n requests. This helps against a lack of memory, too. Requests are
    also halved where they ask too much of their sequences together, or what one asks is padding in others.

    Args:
        session: Runs the batch.
        entries: The requests, at least one.
        size: That of their run.
        signature: What the graph takes and gives.
        planner: Knows the sizes of runs.
        wanted: Returns those whose callers still wait, before they are run again.
        send: Gets requests and the result of their run: every request once, but for those that `wanted`
            leaves out.
    """
    groups = [(entries, size)]
    while groups:
        group, size = groups.pop()
        half = len(group) // 2
        halves = [group[half:], group[:half]]
        try:
            joint = JointWork([entry.work for entry in group], signature, size)
            if not half or joint.asked_bytes() <= _MOST_ASKED:
                result = execute(session.engine, joint)
                halves = []
        except DeviceLostError as error:  # each half would fail, too
            send(group, error)
            continue
        except Exception as error:
            if not half:
                send(group, error)
                continue
            halves = list(map(wanted, halves))
        if halves:
            groups += [(some, planner.joint([entry.work.size for entry in some])) for some in halves if some]
        else:
            session.costs.observe(size, result.execution.compute_ns / 1e9)
            send(group, result)


def execute(engine: Runner, joint: JointWork) -> Result:
    """Run requests together, once.

    Raises:
        TooLargeError: There was not enough memory.
        EngineError: Anything else went wrong.
    """
    started_ns = time.perf_counter_ns()
    alone = joint.works[0] if len(joint.works) == 1 else None
    feeds, names = (alone.feeds, alone.outputs) if alone else (joint.feeds(), joint.outputs)
    assembled_ns = time.perf_counter_ns()
    values = engine.run(feeds, names)
    computed_ns = time.perf_counter_ns()
    outputs = [values] if alone else joint.split(values)
    execution = Execution(
        sequences=joint.size.rows,
        requests=len(joint.works),
        tokens=sum([work.real_tokens for work in joint.works]),
        padded_tokens=joint.computed_tokens(),
        input_ns=assembled_ns - started_ns,
        compute_ns=computed_ns - assembled_ns,
        output_ns=time.perf_counter_ns() - computed_ns,
    )
    return Result(outputs=outputs, started_ns=started_ns, execution=execution)


def answer_broken(entries: Sequence[Entry], name: str) -> None:
    """Answer those that an exception outside the engine, a bug, has left without an answer.

    Called while that exception is handled, which is logged.

    Args:
        entries: The requests that it may have left.
        name: The model's name.
    """
    for entry in entries:
        if not entry.answer.done():
            entry.answer.set_exception(broken(name))
    LOGGER.exception("a batch of %s failed outside its engine", name)


# ---- Threads -----------------------------------------------------------------------------------


class BatchSource(Protocol):
    """What has batches to run: a scheduler."""

    def take(self) -> RunningBatch | None:
        """Return the next batch, chosen now; None if nothing can run. Called by one thread at a time."""

    def run(self, batch: RunningBatch) -> None:
        """Run a batch and send its answers. Called by several threads at once."""

    def ended(self) -> None:
        """Finish: no batch will run any more."""


class EngineThreads:
    """Threads that take the next batch as soon as the last one is done.

    A batch is chosen then and not before (late binding): planning takes microseconds, and until then more
    requests may have come. Nothing between two batches waits for the event loop.

    If the source raises, which is a bug, every thread ends with the batch that it runs.

    Args:
        name: The prefix of the threads' names.
        count: How many batches may run at once.
        initializer: Called by each thread before it takes a batch.
    """

    def __init__(self, name: str, count: int = 1, initializer: Callable[[], object] = lambda: None) -> None:
        self._name = name
        self._count = count
        self._initializer = initializer
        self._alive = count
        self._changed = Condition()  # held from a look at the source to the wait, so that no wake is lost
        self._stopping = False
        self._failed = False

    def start(self, source: BatchSource) -> None:
        """Start the threads, once. They are daemons: a run that cannot be stopped does not hold up the exit.

        Raises:
            RuntimeError: No thread can be started. If only some can, those do.
        """
        for number in range(self._count):
            thread = Thread(target=self._loop, args=(source,), name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not number:
                    raise
                LOGGER.warning("%s runs with %d of %d threads: %s", self._name, number, self._count, error)
                with self._changed:
                    self._alive -= self._count - number
                return

    def wake(self) -> None:
        """Let one of the threads that wait look at the source again."""
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Let the threads end when the queue is empty."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _loop(self, source: BatchSource) -> None:
        with suppress(Exception):  # what it is will fail batches, too
            self._initializer()
        try:
            while (batch := self._next(source)) is not None:
                source.run(batch)
                del batch  # free the answered requests before waiting
        except Exception:
            self._failed = True
            LOGGER.exception("%s ends: its scheduler failed", self._name)
        finally:
            self.stop()
            with self._changed:
                self._alive -= 1
                last = not self._alive
            if last:
                source.ended()

    def _next(self, source: BatchSource) -> RunningBatch | None:
        """Wait for the next batch; None if there will be none."""
        with self._changed:
            while not self._failed:
                if (batch := source.take()) is not None or self._stopping:
                    return batch
                self._changed.wait()
        return None
