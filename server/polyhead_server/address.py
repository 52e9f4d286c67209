"""The address that the server listens on."""

import socket

import grpc

from polyhead_server.errors import StartError


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Binds a port, and returns its number, which is chosen where the port is 0.

    Raises:
        StartError: It is taken, or the address is not this machine's.
    """
    try:
        return server.add_insecure_port(format_address(host, port))
    except RuntimeError as error:
        raise StartError(f"cannot listen on {format_address(host, port)}: {_why(host, port)}") from error


def _why(host: str, port: int) -> str:
    """Asks the system why, which gRPC keeps to itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        return error.strerror or "the address is not valid"
    return "gRPC could not bind it"


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
