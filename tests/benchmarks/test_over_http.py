"""What HTTP is compared with, and which targets that meets."""

import pytest

from benchmarks.frame import Rounds, Sample
from benchmarks.over_http import BINARY, IDLE, SENTENCE, http_request, targets


def sample(p50_ms: float, p99_ms: float = 20.0, errors: int = 0) -> Sample:
    return Sample(p50_ms=p50_ms, p99_ms=p99_ms, rate=100, errors=errors, server_cores=0.1, client_cores=0.2)


def measured(
    more: float = 1.0,
    binary: float = 1.2,
    idle: float = 1.0,
    errors: float = 0,
) -> dict[str, Rounds]:
    plain = [sample(10)] * 3
    loads = {
        SENTENCE: {"gRPC": plain, "/v1/embeddings": [sample(10 + more)] * 3},
        BINARY: {"gRPC": plain, "HTTP": [sample(10 * binary), sample(10 * binary), sample(99)]},
        IDLE.format(1): {"without": plain, "beside": [sample(10 * idle)] * 3},
        IDLE.format(8): {"without": plain, "beside": [sample(10, errors=int(errors))] * 3},
    }
    return {name: Rounds(samples=samples) for name, samples in loads.items()}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, set()),
        ({"more": 1.6}, {0}),
        ({"binary": 1.4}, {1}),
        ({"idle": 1.1}, {2}),
    ],
)
def test_targets(changed: dict[str, float], missed: set[int]) -> None:
    conditions = targets(measured(**changed))

    assert {number for number, one in enumerate(conditions) if not one.holds} == missed


def test_an_error_is_a_target_missed() -> None:
    assert [one.seen for one in targets(measured(errors=1)) if not one.holds] == ["3 were not"]


def test_a_request_says_how_long_it_is() -> None:
    assert http_request("/a", b"{}", Content_Type="x") == (
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Type: x\r\n\r\n{}"
    )
