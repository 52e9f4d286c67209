"""grpc.health.v1, as orchestrators ask it."""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.server.conftest import fails

SERVING = health_pb2.HealthCheckResponse.SERVING


def health(server: Any) -> Any:
    return health_pb2_grpc.HealthStub(server.channel)


def asks(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "tiny", "tiny-tokens.attention"])
def test_the_server_its_service_and_its_models_are_known(server: Any, service: str) -> None:
    assert health(server).Check(asks(service), timeout=60).status == SERVING


def test_other_services_are_not_found(server: Any) -> None:
    with fails(grpc.StatusCode.NOT_FOUND, "no service 'other' is known here"):
        health(server).Check(asks("other"), timeout=60)


def test_all_are_listed(server: Any) -> None:
    statuses = health(server).List(health_pb2.HealthListRequest(), timeout=60).statuses

    assert len(statuses) == 8
    assert {status.status for status in statuses.values()} == {SERVING}


@pytest.mark.parametrize("kind", ["Check", "Watch"])
def test_a_fault_of_ours_does_not_reach_the_caller(
    server: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def fail(_name: str) -> bool:
        raise ValueError("secret")

    monkeypatch.setattr(server.runtime, "serving", fail)
    call = server.channel.unary_stream(f"/grpc.health.v1.Health/{kind}")  # alike on the wire

    with fails(grpc.StatusCode.INTERNAL, "the server failed on this request"):
        next(call(b"", timeout=60))


def test_watching_an_unknown_service_says_so(server: Any) -> None:
    watching = health(server).Watch(asks("other"), timeout=60)

    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()
