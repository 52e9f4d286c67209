"""What the servers of this process have counted, which all of them do together."""

from polyhead_server.observability import metrics


class Counts:
    """What has been counted since this was made."""

    def __init__(self) -> None:
        self._before = metrics.totals()

    def __call__(self, name: str, model: str = "", **labels: str) -> float:
        """How much larger a sample of `/metrics`, or the sum of several, is now.

        Args:
            name: Its name.
            model: Version 1 of this model; empty for what belongs to none.
            labels: Other labels that it has.
        """
        key = (model, "1" if model else "")
        now, before = (
            totals[key](name, **labels) if key in totals else 0.0
            for totals in (metrics.totals(), self._before)
        )
        return now - before

    def codes(self, model: str = "", protocol: str = "grpc") -> dict[str, float]:
        """The numbers of requests, by status, of the statuses that there were."""
        samples = metrics.totals()[model, "1" if model else ""].samples["polyhead_requests_total"]
        codes = {sample.labels["code"] for sample in samples}
        found = {code: self("polyhead_requests_total", model, protocol=protocol, code=code) for code in codes}
        return {code: count for code, count in found.items() if count}
