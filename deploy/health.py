"""Asks the server in this container whether it is ready: `grpc.health.v1` Check with service "".

Ends with 0 when it is, with 1 and a word on standard error when it is not. Needs no token: probes are open.
"""

import argparse
import os
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HOST = "127.0.0.1"


def main() -> int:
    """Asks once; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=int(os.environ.get("POLYHEAD_SERVE_PORT", "8001")))
    parser.add_argument("--tls-cert", type=Path, help="the server's certificate, where it speaks TLS")
    parser.add_argument("--client-cert", type=Path, help="what to show a server that asks for a certificate")
    parser.add_argument("--client-key", type=Path, help="its private key")
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds that all of it may take")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.timeout

    with _channel(arguments, deadline) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_until(deadline)
            )
        except grpc.RpcError as error:
            sys.stderr.write(f"{error.code().name}: {error.details()}\n")
            return 1
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        sys.stderr.write(f"{health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}\n")
        return 1
    return 0


def _until(deadline: float) -> float:
    """The seconds that are left; a moment at least, as 0 would be no limit to a socket."""
    return max(0.001, deadline - time.monotonic())


def _channel(arguments: argparse.Namespace, deadline: float) -> grpc.Channel:
    target = f"{HOST}:{arguments.port}"
    if arguments.tls_cert is None:
        return grpc.insecure_channel(target)
    certificate, key = (
        None if path is None else path.read_bytes() for path in (arguments.client_cert, arguments.client_key)
    )
    credentials = grpc.ssl_channel_credentials(arguments.tls_cert.read_bytes(), key, certificate)
    # The certificate is for the name that callers know, not for 127.0.0.1.
    name = _name(arguments.tls_cert, arguments.port, deadline)
    return grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", name)])


def _name(certificate: Path, port: int, deadline: float) -> str:
    """A name that the server's certificate is for."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with socket.create_connection((HOST, port), _until(deadline)) as plain:
        plain.settimeout(_until(deadline))
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            shown: Any = connection.getpeercert() or {}
    # It may also be for a person's address, or for a URI.
    hosts = [name for kind, name in shown.get("subjectAltName", ()) if kind in {"DNS", "IP Address"}]
    common = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return str((hosts + common + ["localhost"])[0]).replace("*", "any")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as problem:
        sys.exit(f"{problem}")
