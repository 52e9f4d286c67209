"""Say how a run goes and what came of it, in lines of at most 80 columns; locust's tables need 160."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from locust.stats import RequestStats, StatsEntry

NOT_ANSWERED = ("refused", "failed", "not sent")
"""Types of the rows in locust's table of requests that have no latency."""


def progress_line(stats: RequestStats, seconds: float) -> str:
    """Return how the last ten seconds went, `seconds` after the start."""
    total = stats.total
    failures = f", {total.num_failures:,} without an answer so far" if total.num_failures else ""
    if not total.current_rps:
        return f"{seconds:,.0f} s: no answers{failures}"
    p99 = total.get_current_response_time_percentile(0.99)
    return f"{seconds:,.0f} s: p99 {p99 or 0:,.0f} ms at {total.current_rps:,.1f}/s{failures}"


def closing_lines(stats: RequestStats) -> Iterator[str]:
    """Yield, for each kind of request, what it is, and p99 and rate of its answers."""
    answered: dict[str, StatsEntry] = {}
    missed: dict[str, Counter[str]] = defaultdict(Counter)
    for (name, kind), entry in sorted(stats.entries.items()):
        missed[name][kind if kind in NOT_ANSWERED else "failed"] += entry.num_failures
        if kind not in NOT_ANSWERED:
            answered[name] = entry
    if not missed:
        yield "nothing was counted: the run ended before a request, or within --warm-up"
    for name, counts in missed.items():
        yield name
        failures = "".join(f", {count:,} {kind}" for kind, count in counts.items() if count)
        yield f"  {_latency(answered[name]) if name in answered else 'no answers'}{failures}"


def _latency(entry: StatsEntry) -> str:
    """Return p99 and rate of a row of locust's table."""
    p50, p99 = map(entry.get_response_time_percentile, (0.5, 0.99))
    seconds = (entry.last_request_timestamp or 0) - entry.start_time  # since its first answer
    rate = (entry.num_requests - 1) / seconds if seconds > 0 else 0
    return f"p99 {p99:,.0f} ms at {rate:,.1f}/s (p50 {p50:,.0f} ms, {entry.num_requests:,} requests)"
