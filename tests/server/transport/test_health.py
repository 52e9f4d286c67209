"""grpc.health.v1, as orchestrators ask it."""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def check(server: Any, service: str) -> Any:
    method = server.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest(service=service), timeout=60).status


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "tiny", "tiny-tokens.attention"])
def test_the_server_its_service_and_its_models_are_known(server: Any, service: str) -> None:
    assert check(server, service) == SERVING


def test_other_services_are_not_found(server: Any) -> None:
    with pytest.raises(grpc.RpcError, match="no service 'other' is known here") as caught:
        check(server, "other")

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_all_are_listed(server: Any) -> None:
    method = server.channel.unary_unary(
        "/grpc.health.v1.Health/List",
        request_serializer=health_pb2.HealthListRequest.SerializeToString,
        response_deserializer=health_pb2.HealthListResponse.FromString,
    )

    statuses = method(health_pb2.HealthListRequest(), timeout=60).statuses

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

    with pytest.raises(grpc.RpcError, match="the server failed on this request") as caught:
        next(call(b"", timeout=60))

    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_watching_an_unknown_service_says_so(server: Any) -> None:
    method = server.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    watching = method(health_pb2.HealthCheckRequest(service="other"), timeout=60)

    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()
