"""Whether a run says something about the server, or only about its own circumstances."""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from polyhead_load.plan import Plan
from polyhead_load.sweep.intervals import quantile_interval
from polyhead_load.sweep.records import Records, Run
from polyhead_load.sweep.spec import Gates

_BACKLOG = 10
_SURE = 0.99
_LATE = 0.01


def reasons(run: Run, plan: Plan, gates: Gates) -> tuple[str, ...]:
    """Why a run is void; nothing where it is valid."""
    return tuple(_reasons(run, plan, gates))


def _reasons(run: Run, plan: Plan, gates: Gates) -> Iterator[str]:
    records = run.records
    answered = int(records.answered.sum())
    yield from _failures(records)
    if not answered:
        yield "no request was answered"
        return
    seconds = float(run.facts["seconds"])
    cpu = float(run.facts["cpu_seconds"]) / seconds if seconds > 0 else 0.0
    if cpu > gates.generator_cpu:
        yield (
            f"the generator used {cpu:.0%} of a core, at most {gates.generator_cpu:.0%} leaves it time "
            "to send and to look at the clock"
        )
    if plan.mode == "open":
        yield from _open(records, plan, gates)
    else:
        yield from _drift(records, gates)


def _failures(records: Records) -> Iterator[str]:
    codes, counts = np.unique(records.code[records.code != 0], return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        of = f"{count} of {len(records.code)} requests"
        if code == -1:
            yield f"{of} were not sent: too many were in flight"
        else:
            yield f"{of} failed with {_status(code)}"


def _open(records: Records, plan: Plan, gates: Gates) -> Iterator[str]:
    median = float(np.median(records.latency_ms))
    allowed = max(gates.send_lag_ms, gates.send_lag_share * median)
    late, sent = int((records.lag_ms > allowed).sum()), len(records.lag_ms)
    # One of a hundred may be late, and a few more by chance.
    if late > stats.binom.ppf(_SURE, sent, _LATE):
        yield f"{late} of {sent} requests left more than {allowed:.2f} ms late, {_LATE:.0%} may"
    end = float(np.nanmax(records.planned))
    waiting = int((records.answered & (records.done > end)).sum())
    most = max(_BACKLOG, gates.backlog * len(records.planned))
    if waiting > most:
        yield (
            f"{waiting} requests were still unanswered when the last was sent, at most {most:.0f} may be: "
            f"{plan.rate:.3g} a second are more than the server can answer"
        )


def _drift(records: Records, gates: Gates) -> Iterator[str]:
    """The last third against the first, where the difference is beyond chance."""
    good = records.answered
    latency, when = records.latency_ms, records.planned[good]
    start, end = when.min(), when.max()
    first = latency[when < start + (end - start) / 3]
    last = latency[when > end - (end - start) / 3]
    early, late = (quantile_interval(third, 0.5, confidence=_SURE) for third in (first, last))
    if early is None or late is None:
        return
    if late.low > (1 + gates.drift) * early.high or late.high < (1 - gates.drift) * early.low:
        yield (
            f"not stable: the median latency was {early.value:.2f} ms in the first third "
            f"and {late.value:.2f} ms in the last"
        )


def _status(code: int) -> str:
    import grpc

    return next((status.name for status in grpc.StatusCode if status.value[0] == code), f"status {code}")
