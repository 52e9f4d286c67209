"""Decide whether a run says something about the server, or only about its own circumstances.

Faults of the harness make a run *void*: it is tried again, and its numbers are not used. What the server did
(refused, failed, fell behind, changed) is the result: such a run counts as *overloaded* and is not tried
again. Trying until it goes well would hide the stalls that an open loop is there to show.
"""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from polyhead_load.load_plan import LoadPlan
from polyhead_load.records import MALFORMED, OK, SHED, GeneratorRun, Records, status_name
from polyhead_load.sweep.intervals import Interval, quantile_interval
from polyhead_load.sweep.spec import Gates

_BACKLOG = 10
_CONFIDENCE = 0.99
_LATE = 0.01


def generator_reasons(run: GeneratorRun, plan: LoadPlan, gates: Gates, *, limit_ms: float = 0.0) -> list[str]:
    """Return how the generator did not do what it should; empty where it did.

    Beside a limit on the latency that is searched, a lag is as small as beside a median latency.
    """
    if not len(run.records.planned):
        return [f"no request was planned within {plan.seconds:g} s: give a higher rate, or more seconds"]
    reasons = []
    if run.cpu > gates.generator_cpu:
        reasons.append(
            f"the generator used {run.cpu:.0%} of a core (limit: {gates.generator_cpu:.0%}), "
            "too much to send and to take the time punctually"
        )
    if plan.mode == "open":
        reasons += _lag(run.records, gates, limit_ms)
    return reasons


def machine_reasons(gates: Gates, *, foreign: float | None, steal: float | None) -> list[str]:
    """Return what else used the machine; empty where little did.

    `foreign` and `steal` are the cores that other processes and the machine's host used; None where unknown.
    """
    reasons, limit = [], gates.foreign_cpu
    if foreign is not None and foreign > limit:
        reasons.append(f"other processes used {foreign:.2f} cores meanwhile (limit: {limit:.2f})")
    if steal is not None and steal > limit:
        reasons.append(f"the machine's host took {steal:.2f} cores away, as steal (limit: {limit:.2f})")
    return reasons


def overload_reasons(run: GeneratorRun, plan: LoadPlan, gates: Gates) -> tuple[str, ...]:
    """Return how the server did not keep up or changed meanwhile; empty where it kept up."""
    records = run.records
    reasons = list(_failures(records))
    if records.answered.any():
        if plan.mode == "open":
            reasons += _backlog(records, plan, gates)
        reasons += _drift(records, plan, gates)
    elif len(records.planned):
        reasons.append("no request was answered")
    return tuple(reasons)


def _failures(records: Records) -> Iterator[str]:
    codes, counts = np.unique(records.code[records.code != OK], return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        what = {
            SHED: "were not sent: too many were in flight",
            MALFORMED: "were answered with something else",
        }
        yield f"{count} of {len(records.code)} requests {what.get(code, f'failed with {status_name(code)}')}"


def _lag(records: Records, gates: Gates, limit_ms: float) -> Iterator[str]:
    usual = float(np.median(records.latency_ms)) if records.answered.any() else 0.0
    allowed = max(gates.send_lag_ms, gates.send_lag_share * max(usual, limit_ms))
    late, sent = int((records.lag_ms > allowed).sum()), len(records.lag_ms)
    # One of a hundred may be late, and a few more by chance.
    if late > stats.binom.ppf(_CONFIDENCE, sent, _LATE):
        yield f"{late} of {sent} requests left more than {allowed:.2f} ms late (limit: {_LATE:.0%})"


def _backlog(records: Records, plan: LoadPlan, gates: Gates) -> Iterator[str]:
    end = float(np.nanmax(records.planned))
    waiting = int((records.answered & (records.done > end)).sum())
    limit = max(_BACKLOG, gates.backlog * len(records.planned))
    if waiting > limit:
        yield (
            f"{waiting} requests were still unanswered when the last was sent (limit: {limit:.0f}): "
            f"{plan.rate:.3g} a second are more than the server can answer"
        )


def _drift(records: Records, plan: LoadPlan, gates: Gates) -> Iterator[str]:
    """Compare the medians of the first and the last third; yield a difference beyond chance."""
    if (thirds := _thirds(records, plan)) is None:
        return
    early, late = thirds
    if late.low > (1 + gates.drift) * early.high or late.high < (1 - gates.drift) * early.low:
        what = "latency" if plan.mode == "closed" else "computing time"
        yield (
            f"not stable: the median {what} was {early.value:.2f} ms in the first third "
            f"and {late.value:.2f} ms in the last"
        )


def _thirds(records: Records, plan: LoadPlan) -> tuple[Interval, Interval] | None:
    """Return the medians of the first and the last third, or None for too few answers.

    The latency of an open loop depends on how requests happen to arrive; the server's own compute time,
    which is taken there, does not.
    """
    good = records.answered
    values = records.latency_ms if plan.mode == "closed" else records.server_ms("compute")
    if np.isnan(values).any():
        return None
    when = records.planned[good]
    start, third = when.min(), (when.max() - when.min()) / 3
    early, late = (
        quantile_interval(values[chosen], 0.5, confidence=_CONFIDENCE)
        for chosen in (when < start + third, when > start + 2 * third)
    )
    return None if early is None or late is None else (early, late)
