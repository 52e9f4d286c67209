"""Add up where the server says that requests spent their time, over all processes of a load."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from locust.env import Environment
from locust.runners import WorkerRunner

_PARTS = ("parse_ns", "tokenise_ns", "queue_ns", "compute_ns", "serialise_ns")
_MESSAGE = "polyhead_server_times"
"""The field of a worker's report to its master."""


class ServerTimes:
    """Sums over the answered requests of a run, by the name of the request."""

    def __init__(self, environment: Environment) -> None:
        self._sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        events = environment.events
        events.request.add_listener(self._add)
        events.test_start.add_listener(lambda **_: self._sums.clear())
        events.reset_stats.add_listener(lambda **_: self._sums.clear())
        if isinstance(environment.runner, WorkerRunner):
            events.report_to_master.add_listener(self._report)
        else:
            events.worker_report.add_listener(self._merge)

    def rows(self) -> list[dict[str, Any]]:
        """Return the mean parts of each kind of request, in milliseconds."""
        rows = []
        for name, sums in sorted(self._sums.items()):
            count = sums["requests"]
            parts = {part: 1e3 * sums[part] / count for part in (*_PARTS, "latency", "send_lag")}
            rest = parts["latency"] - parts["send_lag"] - sum(parts[part] for part in _PARTS)
            rows.append({"name": name, "requests": int(count), **parts, "rest": rest})
        return rows

    def _add(
        self,
        name: str,
        response_time: float | None,
        exception: BaseException | None,
        context: Mapping[str, Any] | None,
        **_: Any,
    ) -> None:
        if exception is not None or response_time is None or not context or "planned" not in context:
            return
        sums = self._sums[name]
        sums["requests"] += 1
        sums["latency"] += response_time / 1e3
        sums["send_lag"] += context["sent"] - context["planned"]
        for part in _PARTS:
            sums[part] += max(0, context.get(part, 0)) / 1e9

    def _report(self, data: dict[str, Any], **_: Any) -> None:
        data[_MESSAGE] = {name: dict(sums) for name, sums in self._sums.items()}
        self._sums.clear()

    def _merge(self, data: Mapping[str, Any], **_: Any) -> None:
        for name, sums in data.get(_MESSAGE, {}).items():
            for part, value in sums.items():
                self._sums[name][part] += value
