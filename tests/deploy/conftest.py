"""What a real server tells Prometheus, which dashboards, alerts and autoscalers ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.servers import quick_settings, serving

from polyhead_server.errors import UnavailableError
from polyhead_server.observability import metrics


@pytest.fixture(scope="module")
def exported(repository: Path) -> Iterator[dict[str, set[str]]]:
    """The labels of every sample that a real server exports, with the kind of its metric."""
    with serving(quick_settings(repository)) as one:
        one.server.runtime.lifecycle.draining.set()
        with pytest.raises(UnavailableError), one.server.runtime.lifecycle.accept():
            pass  # so that there is a drop
        metrics.start()
        text, _ = metrics.exposition()
        samples: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, {f"type={family.type}"}).update(sample.labels)
        yield samples
