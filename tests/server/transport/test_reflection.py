"""Tools such as grpcurl find every service and message."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2


def ask(server: Any, **question: str) -> Any:
    method = server.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answers: Iterator[Any] = method(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=10)
    (answer,) = answers
    return answer


def test_every_service_is_listed(server: Any) -> None:
    services = ask(server, list_services="").list_services_response.service

    assert {service.name for service in services} == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("inference.GRPCInferenceService", "ModelInferRequest"),
        ("grpc.health.v1.Health", "HealthCheckRequest"),
        ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionRequest"),
    ],
)
def test_every_service_is_described(server: Any, symbol: str, message: str) -> None:
    answer = ask(server, file_containing_symbol=symbol)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in answer.file_descriptor_response.file_descriptor_proto
    ]

    assert message in {each.name for file in files for each in file.message_type}
