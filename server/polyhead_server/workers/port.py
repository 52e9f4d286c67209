"""The port that all workers listen on."""

import socket

from polyhead_server.address import explain, format_address
from polyhead_server.errors import StartError


def reserve(host: str, port: int) -> socket.socket:
    """Takes a port for workers to listen on, so that nobody else gets it while none of them does.

    Args:
        host: The address.
        port: The port; 0 takes a free one.

    Returns:
        A socket that is bound and never listens.

    Raises:
        StartError: The port is taken, the address is not this machine's, or ports cannot be shared here.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise StartError("--workers must be 1 here: this system cannot share a port (SO_REUSEPORT)")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without SO_REUSEPORT, so that a port that others share among themselves counts as taken.
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        reserved = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:
        raise StartError(f"cannot listen on {format_address(host, port)}: {explain(error)}") from error
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise StartError(f"cannot listen on {format_address(host, port)}: {error.strerror}") from error
    return reserved
