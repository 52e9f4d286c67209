"""What has been counted."""

from polyhead_server.observability.metrics import Metrics


class Counts:
    """What a runtime has counted since it was made.

    Args:
        metrics: Those of the runtime.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, name: str, model: str = "", **labels: str) -> float:
        """The value of a sample of `/metrics`, or the sum of several.

        Args:
            name: Its name.
            model: Version 1 of this model; empty for what belongs to none.
            labels: Other labels that it has.
        """
        return self._metrics.totals()[model, "1" if model else ""](name, **labels)

    def codes(self, model: str = "", protocol: str = "grpc") -> dict[str, float]:
        """The numbers of requests, by status, of the statuses that there were."""
        samples = self._metrics.totals()[model, "1" if model else ""].samples["polyhead_requests_total"]
        return {
            sample.labels["code"]: sample.value
            for sample in samples
            if sample.labels["protocol"] == protocol and sample.value
        }
