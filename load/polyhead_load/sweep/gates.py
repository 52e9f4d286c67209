"""Whether a run says something about the server, or only about its own circumstances.

What the harness did wrong makes a run *void*: it is tried again, and its numbers are nowhere. What the server
did (refused, failed, fell behind, changed) is what is measured: such a run counts as *overloaded*, stays, and
is not tried again. Trying until it goes well would hide the very stalls that an open loop is there to show.
"""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from polyhead_load.plan import Plan
from polyhead_load.records import MALFORMED, OK, SHED, Records, Run
from polyhead_load.sweep.intervals import Interval, quantile_interval
from polyhead_load.sweep.machine import Usage
from polyhead_load.sweep.spec import Gates

_BACKLOG = 10
_SURE = 0.99
_LATE = 0.01


def reasons(run: Run, plan: Plan, gates: Gates, usage: Usage | None = None) -> tuple[str, ...]:
    """Return why a run is void, of the harness and its machine; nothing where it is valid.

    Args:
        run: What the generator left.
        plan: What it was to do.
        gates: What is allowed.
        usage: What the machine did meanwhile, where that is known.
    """
    return tuple(_of_harness(run, plan, gates, usage))


def overload(run: Run, plan: Plan, gates: Gates) -> tuple[str, ...]:
    """Return in what the server did not keep up or did not stay the same; nothing where it did."""
    return tuple(_of_server(run, plan, gates))


def _of_harness(run: Run, plan: Plan, gates: Gates, usage: Usage | None) -> Iterator[str]:
    if not len(run.records.planned):
        yield f"no request was planned within {plan.seconds:g} s: give a higher rate, or more seconds"
        return
    seconds = float(run.facts["seconds"])
    cpu = float(run.facts["cpu_seconds"]) / seconds if seconds > 0 else 0.0
    if cpu > gates.generator_cpu:
        yield (
            f"the generator used {cpu:.0%} of a core (limit: {gates.generator_cpu:.0%}), "
            "too much to send and to take the time punctually"
        )
    if usage is not None:
        yield from _foreign(usage, gates)
    if plan.mode == "open":
        yield from _lag(run.records, gates)


def _foreign(usage: Usage, gates: Gates) -> Iterator[str]:
    most = gates.foreign_cpu
    if usage.foreign is not None and usage.foreign > most:
        yield f"other processes used {usage.foreign:.2f} cores meanwhile (limit: {most:.2f})"
    if usage.steal is not None and usage.steal > most:
        yield f"the machine's host took {usage.steal:.2f} cores away, as steal (limit: {most:.2f})"


def _of_server(run: Run, plan: Plan, gates: Gates) -> Iterator[str]:
    records = run.records
    if not len(records.planned):
        return
    yield from _failures(records)
    if not records.answered.any():
        yield "no request was answered"
        return
    if plan.mode == "open":
        yield from _backlog(records, plan, gates)
    yield from _drift(records, plan, gates)


def _failures(records: Records) -> Iterator[str]:
    codes, counts = np.unique(records.code[records.code != OK], return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        of = f"{count} of {len(records.code)} requests"
        if code == SHED:
            yield f"{of} were not sent: too many were in flight"
        elif code == MALFORMED:
            yield f"{of} were answered with something else"
        else:
            yield f"{of} failed with {_status(code)}"


def _lag(records: Records, gates: Gates) -> Iterator[str]:
    median = float(np.median(records.latency_ms)) if records.answered.any() else 0.0
    allowed = max(gates.send_lag_ms, gates.send_lag_share * median)
    late, sent = int((records.lag_ms > allowed).sum()), len(records.lag_ms)
    # One of a hundred may be late, and a few more by chance.
    if late > stats.binom.ppf(_SURE, sent, _LATE):
        yield f"{late} of {sent} requests left more than {allowed:.2f} ms late (limit: {_LATE:.0%})"


def _backlog(records: Records, plan: Plan, gates: Gates) -> Iterator[str]:
    end = float(np.nanmax(records.planned))
    waiting = int((records.answered & (records.done > end)).sum())
    most = max(_BACKLOG, gates.backlog * len(records.planned))
    if waiting > most:
        yield (
            f"{waiting} requests were still unanswered when the last was sent (limit: {most:.0f}): "
            f"{plan.rate:.3g} a second are more than the server can answer"
        )


def _drift(records: Records, plan: Plan, gates: Gates) -> Iterator[str]:
    """Compare the last third with the first, where the difference is beyond chance.

    In an open loop the latency depends on how requests happen to arrive; what the server says of its own
    computing does not.
    """
    found = _thirds(records, plan)
    if found is None:
        return
    early, late = found
    if late.low > (1 + gates.drift) * early.high or late.high < (1 - gates.drift) * early.low:
        what = "latency" if plan.mode == "closed" else "computing time"
        yield (
            f"not stable: the median {what} was {early.value:.2f} ms in the first third "
            f"and {late.value:.2f} ms in the last"
        )


def unchecked(run: Run, plan: Plan) -> tuple[str, ...]:
    """Return the gates that there was too little to check with: drift takes some 24 answers."""
    known = run.records.answered.any() and _thirds(run.records, plan) is not None
    return () if known else ("drift",)


def _thirds(records: Records, plan: Plan) -> tuple[Interval, Interval] | None:
    good = records.answered
    values = records.latency_ms if plan.mode == "closed" else records.compute_ns[good] / 1e6
    if (values < 0).any():  # the server does not say
        return None
    when = records.planned[good]
    start, end = when.min(), when.max()
    first = values[when < start + (end - start) / 3]
    last = values[when > end - (end - start) / 3]
    early, late = (quantile_interval(third, 0.5, confidence=_SURE) for third in (first, last))
    return None if early is None or late is None else (early, late)


def _status(code: int) -> str:
    import grpc

    return next((status.name for status in grpc.StatusCode if status.value[0] == code), f"status {code}")
