"""A server that others can reach says what it lacks."""

from pathlib import Path
from typing import Any

import pytest

from polyhead_server import Settings
from polyhead_server.address import warn_if_exposed


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, set()),
        ({"host": "localhost"}, set()),
        ({"host": "::1"}, set()),
        ({"host": "0.0.0.0"}, {"TLS", "token"}),
        ({"host": "0.0.0.0", "token_file": Path("t")}, {"TLS"}),
        ({"host": "::", "tls_cert": Path("c")}, {"token"}),
        ({"metrics_host": "0.0.0.0"}, {"metrics"}),
        ({"metrics_host": "0.0.0.0", "metrics_port": "off"}, set()),
        ({"host": "0.0.0.0", "metrics_host": "::"}, {"TLS", "token", "metrics"}),
        ({"host": "10.0.0.1", "tls_cert": Path("c"), "tls_client_ca": Path("a")}, set()),
    ],
)
def test_a_server_that_others_can_reach_says_what_it_lacks(
    settings: dict[str, Any], missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "polyhead_server.address.LOGGER.warning", lambda text, *arguments: lines.append(text % arguments)
    )

    warn_if_exposed(Settings(models=Path("models"), **settings))

    assert len(lines) == len(missing)
    for word in missing:
        said = f"without {word}", f"without a {word}", f"{word} on {settings.get('metrics_host')}"
        assert any(each in line for each in said for line in lines)
