"""Who may call what: bearer tokens, management, and what stays open for probes."""

import secrets
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.access.tokens import MANAGEMENT, read_tokens
from polyhead_server.errors import StartError

X = np.ones((1, 3, 16), np.float32)
TOKEN, SECOND, ADMIN = (secrets.token_hex(16) for _ in range(3))
REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.fixture
def locked(serve: Any, tmp_path: Path) -> Any:
    """A server that wants tokens."""
    tokens, management = tmp_path / "tokens", tmp_path / "management"
    tokens.write_text(f"{TOKEN}\n\n  {SECOND}  \n")
    management.write_text(ADMIN)
    return serve(token_file=tokens, management_token_file=management)


def bearer(token: str, scheme: str = "Bearer") -> Any:
    return (("authorization", f"{scheme} {token}"),)


def code_of(server: Any, path: str, metadata: Any = None, payload: bytes = b"") -> Any:
    """The status of a unary call."""
    method = server.channel.unary_unary(path)
    try:
        # An open Watch does not end.
        method(payload, timeout=0.5 if path.endswith("/Watch") else 30, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_token_of_the_file_opens_inference(locked: Any) -> None:
    request = locked.request("tiny", {"x": X})

    for metadata in (bearer(TOKEN), bearer(SECOND), bearer(ADMIN), bearer(TOKEN, "bearer")):
        assert locked.call("ModelInfer", request, metadata=metadata).outputs


@pytest.mark.parametrize(
    ("metadata", "code", "message"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED, "authorization: Bearer TOKEN"),
        (bearer(TOKEN, "Basic"), grpc.StatusCode.UNAUTHENTICATED, "authorization: Bearer TOKEN"),
        (bearer(TOKEN[:-1]), grpc.StatusCode.PERMISSION_DENIED, "the token does not open this procedure"),
        (bearer(""), grpc.StatusCode.PERMISSION_DENIED, "the token does not open this procedure"),
        (
            bearer(f"{TOKEN}\n{SECOND}".replace("\n", " ")),
            grpc.StatusCode.PERMISSION_DENIED,
            "one that the server",
        ),
    ],
)
def test_without_one_every_procedure_is_closed(locked: Any, metadata: Any, code: Any, message: str) -> None:
    for name in ("ModelInfer", "ServerLive", "ModelStatistics", "RepositoryIndex"):
        with pytest.raises(grpc.RpcError) as caught:
            locked.call(name, metadata=metadata)
        error: Any = caught.value
        assert error.code() is code
        assert message in error.details()
        assert TOKEN not in error.details()
    assert code_of(locked, "/other/Procedure", metadata) is grpc.StatusCode.UNIMPLEMENTED


def every_method() -> list[str]:
    services = [
        FILE.services_by_name[SERVICE.rpartition(".")[2]],
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    ]
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


def test_no_method_is_open_but_those_for_probes(locked: Any) -> None:
    request = locked.request("tiny", {"x": X}).SerializeToString()
    open_without, open_with_wrong = (
        {
            path
            for path in every_method()
            if code_of(locked, path, metadata, request if path.endswith("ModelInfer") else b"") not in REFUSED
        }
        for metadata in (None, bearer("x" * 32))
    )

    probes = {path for path in every_method() if path.endswith(("Health/Check", "Health/Watch"))}
    assert open_without == open_with_wrong == probes
    assert f"/{SERVICE}/ModelInfer" in every_method()
    assert locked.counted.codes("tiny") == {}


def test_management_has_a_token_of_its_own(locked: Any) -> None:
    for path in MANAGEMENT:
        assert code_of(locked, path) is grpc.StatusCode.UNAUTHENTICATED
        assert code_of(locked, path, bearer(TOKEN)) is grpc.StatusCode.PERMISSION_DENIED
        assert code_of(locked, path, bearer(ADMIN)) not in REFUSED


def test_a_management_token_alone_closes_nothing_else(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "management").write_text(ADMIN)
    server = serve(management_token_file=tmp_path / "management")

    assert server.call("ServerLive").live
    assert all(code_of(server, path) is grpc.StatusCode.UNAUTHENTICATED for path in MANAGEMENT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--token-file must be a file that can be read, .* is not: No such file"),
        (b" \n\n", "--token-file must hold a token, .* is empty"),
        (b"short\n", "at least 16 visible ASCII characters, number 1 in"),
        (b"0123456789abcdef\nwith a blank in the middle", "number 2 in"),
        ("0123456789abcdefé".encode(), "number 1 in"),
    ],
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StartError, match=message):
        read_tokens("--token-file", path)


def test_a_refused_inference_is_counted(locked: Any) -> None:
    with pytest.raises(grpc.RpcError):
        locked.call("ModelInfer")
    with pytest.raises(grpc.RpcError):
        locked.call("ModelInfer", metadata=bearer(TOKEN[:-1]))
    with pytest.raises(grpc.RpcError):
        locked.call("ServerLive")

    assert locked.counted.codes() == {"UNAUTHENTICATED": 1, "PERMISSION_DENIED": 1}
