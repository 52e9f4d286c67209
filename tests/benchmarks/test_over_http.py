"""What HTTP is compared with, and which targets that meets."""

import selectors
import socket
from contextlib import ExitStack
from typing import cast

import pytest

from benchmarks.frame import Rounds, Sample, markdown_table
from benchmarks.over_http import BINARY, HEALTH_CHECKS, IDLE, SENTENCE, SLOW, http_request, rows, targets
from benchmarks.slow_clients import slow_clients


def sample(p50_ms: float, p99_ms: float = 20.0, errors: int = 0) -> Sample:
    return Sample(p50_ms=p50_ms, p99_ms=p99_ms, rate=100, errors=errors, server_cores=0.1, client_cores=0.2)


def measured(
    more: float = 1.0,
    binary: float = 1.2,
    idle: float = 1.0,
    slow: float = 1.2,
    health: float = 9,
    errors: float = 0,
) -> dict[str, Rounds]:
    plain = [sample(10)] * 3
    loads = {
        SENTENCE: {"gRPC": plain, "/v1/embeddings": [sample(10 + more)] * 3},
        BINARY: {"gRPC": plain, "HTTP": [sample(10 * binary), sample(10 * binary), sample(99)]},
        IDLE.format(1): {"without": plain, "beside": [sample(10 * idle)] * 3},
        IDLE.format(8): {"without": plain, "beside": plain},
        SLOW: {"without": plain, "beside": [sample(10, 20 * slow, int(errors))] * 3},
        HEALTH_CHECKS: {"gRPC": plain, "gRPC, beside HTTP": [sample(1, health)] * 3},
    }
    return {name: Rounds(samples=samples) for name, samples in loads.items()}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, set()),
        ({"more": 1.6}, {0}),
        ({"binary": 1.4}, {1}),
        ({"idle": 1.1}, {2}),
        ({"slow": 2.0}, {4}),
        ({"health": 60.0}, {5}),
    ],
)
def test_targets(changed: dict[str, float], missed: set[int]) -> None:
    conditions = targets(measured(**changed))

    assert {number for number, one in enumerate(conditions) if not one.holds} == missed


def test_an_error_is_a_target_missed() -> None:
    assert [one.seen for one in targets(measured(errors=1)) if not one.holds] == ["3 were not"]


def test_the_page_has_a_row_for_each_load() -> None:
    text = "\n".join(line for each in measured().values() for line in markdown_table(rows(each)))

    assert "| HTTP | 100 | 12 | 1.20 (1.20–9.90) | 20 | 1 / 2 |" in text
    assert text.count("| gRPC | 100 | 10 |  | 20 | 1 / 2 |") == 3


def test_a_request_says_how_long_it_is() -> None:
    assert http_request("/a", b"{}", Content_Type="x") == (
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Type: x\r\n\r\n{}"
    )


def test_slow_clients_are_slow_and_come_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(120)
        with slow_clients(listening.getsockname()[1], 4):
            with ExitStack() as stack, selectors.DefaultSelector() as selector:
                for _ in range(4):
                    selector.register(stack.enter_context(listening.accept()[0]), selectors.EVENT_READ)
                said: list[bytes] = []
                while len(said) < 3:
                    for key, _ in selector.select():
                        selector.unregister(key.fileobj)
                        said.append(cast(socket.socket, key.fileobj).recv(4))
                assert sorted(said) == [b"GET ", b"POST", b"POST"]
                assert not selector.select(0.1)  # one says nothing
            listening.accept()[0].close()
