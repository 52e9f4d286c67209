"""Run a batch: join its requests, call the engine, split its outputs."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from polyhead_server.engine.engine import Arrays, Runner
from polyhead_server.errors import DeviceLostError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Execution
from polyhead_server.scheduling import admission
from polyhead_server.scheduling.batch import DynamicAxes, JointWork
from polyhead_server.scheduling.dispatch import Lanes, Planner
from polyhead_server.scheduling.queue import Entry
from polyhead_server.scheduling.work import Done

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
    *,
    dynamic: DynamicAxes,
    planner: Planner,
    wanted: Callable[[list[Entry]], list[Entry]],
) -> Iterator[tuple[list[Entry], Result | Exception]]:
    """Run requests together, and learn what that costs.

    A run that fails is repeated with each half of its requests, until only the requests that cause the
    failure fail: at most 2n - 1 runs for n requests. This helps against a lack of memory, too. Requests are
    also halved where they ask too much of their sequences together, or what one asks is padding in others.

    Args:
        session: Runs the batch.
        entries: The requests, at least one.
        dynamic: Which axes vary.
        planner: Knows the sizes of runs.
        wanted: Returns those whose callers still wait, before they are run again.

    Yields:
        Requests, and the result of their run. Every request once, except those that `wanted` leaves out.
    """
    groups = [entries]
    while groups:
        group = groups.pop()
        half = len(group) // 2
        try:
            joint = JointWork([entry.work for entry in group], dynamic)
            if half and joint.asked_bytes() > _MOST_ASKED:
                groups += [group[half:], group[:half]]
                continue
            result = execute(session.engine, joint)
        except DeviceLostError as error:  # each half would fail, too
            yield from (([entry], error) for entry in group)
        except Exception as error:
            if not half:
                yield group, error
                continue
            groups += [some for some in (wanted(group[half:]), wanted(group[:half])) if some]
        else:
            size = planner.joint([entry.work.size for entry in group])
            session.costs.observe(size, result.execution.compute_ns / 1e9)
            yield group, result


def execute(engine: Runner, joint: JointWork) -> Result:
    """Run requests together, once.

    Raises:
        TooLargeError: There was not enough memory.
        EngineError: Anything else went wrong.
    """
    started_ns = time.perf_counter_ns()
    feeds = joint.feeds()
    assembled_ns = time.perf_counter_ns()
    values = engine.run(feeds, joint.outputs)
    computed_ns = time.perf_counter_ns()
    outputs = joint.split(values)
    execution = Execution(
        sequences=joint.rows,
        requests=len(joint.works),
        tokens=sum([work.real_tokens for work in joint.works]),
        padded_tokens=joint.computed_tokens(),
        input_ns=assembled_ns - started_ns,
        compute_ns=computed_ns - assembled_ns,
        output_ns=time.perf_counter_ns() - computed_ns,
    )
    return Result(outputs=outputs, started_ns=started_ns, execution=execution)


def answer(entries: Sequence[Entry], result: Result) -> None:
    """Send the outputs to all callers that still wait."""
    compute_ns, sequences = result.execution.compute_ns, result.execution.sequences
    for entry, outputs in zip(entries, result.outputs, strict=True):
        if not entry.answer.done():
            queue_ns = result.started_ns - entry.arrived_ns
            entry.answer.set_result(
                Done(outputs=outputs, queue_ns=queue_ns, compute_ns=compute_ns, batch=sequences)
            )


def answer_broken(entries: Sequence[Entry], name: str) -> None:
    """Answer those that an exception outside the engine, a bug, has left without an answer.

    Called while that exception is handled, which is logged.

    Args:
        entries: The requests that it may have left.
        name: The model's name.
    """
    for entry in entries:
        if not entry.answer.done():
            entry.answer.set_exception(admission.broken(name))
    LOGGER.exception("a batch of %s failed outside its engine", name)
