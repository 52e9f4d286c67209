"""Addresses: bind, format, explain what is wrong with one."""

import ipaddress
import socket
from contextlib import ExitStack

import grpc

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.settings import Settings

_BACKLOG = 128


def bind(
    server: grpc.aio.Server,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None,
    *,
    reuse_port: bool = False,
) -> int:
    """Bind a port and return its number.

    Args:
        server: Will listen on it.
        host: The address.
        port: The port; 0 takes a free one.
        credentials: For TLS; None is plain text.
        reuse_port: Whether the server shares the port with other processes.

    Raises:
        StartError: The port is taken, or the address is not this machine's.
    """
    address = format_address(host, port)
    try:
        # Ask the system first: gRPC logs lines of its own where it fails, and does not report the reason.
        _bound(host, port, reuse_port=reuse_port).close()
        if credentials is not None:
            return server.add_secure_port(address, credentials)
        return server.add_insecure_port(address)
    except (OSError, ValueError) as error:
        raise StartError(f"cannot listen on {address}: {explain(error)}") from error
    except RuntimeError as error:
        raise StartError(f"cannot listen on {address}: gRPC could not bind it") from error


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: The address.
        port: The port; 0 lets the system choose.
        reuse_port: Share the port with other processes.

    Raises:
        OSError: The port is taken, or the address is not this machine's.
        ValueError: The host cannot be the name of one.
    """
    listening = _bound(host, port, reuse_port=reuse_port)
    try:
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _bound(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def reserve_port(host: str, port: int) -> socket.socket:
    """Bind a port for workers to share, so that no other process gets it while none of them listens.

    Args:
        host: The address.
        port: The port; 0 lets the system choose.

    Returns:
        A socket that is bound and never listens.

    Raises:
        StartError: The port is taken, or the address is not this machine's.
    """
    try:
        # Without SO_REUSEPORT, so that a port that others share among themselves counts as taken.
        with listen(host, port) as probe:
            family, address = probe.family, probe.getsockname()
        with ExitStack() as stack:
            reserved = stack.enter_context(socket.socket(family))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Needed beside connections that a server without workers left in TIME_WAIT. Once bound, it would
            # let others in.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(address)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            stack.pop_all()
            return reserved
    except (OSError, ValueError) as error:
        raise StartError(f"cannot listen on {format_address(host, port)}: {explain(error)}") from error


def explain(error: OSError | ValueError) -> str:
    """Say why an address cannot be used. A `ValueError` means that it is not the name of a host."""
    return getattr(error, "strerror", None) or "it must be the name of a host or an IP address"


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_if_exposed(settings: Settings) -> None:
    """Warn about a server that other machines can reach without TLS or a token."""
    exposed = [] if is_loopback(settings.host) else [settings.host]
    if settings.http_port != "off" and not is_loopback(settings.http_host):
        if settings.http:
            exposed += [settings.http_host] if settings.http_host not in exposed else []
        else:
            LOGGER.warning(
                "metrics on %s, beyond this machine, have neither TLS nor a token, so everybody may read "
                "them: keep that port on a private network (--http-host)",
                settings.http_host,
            )
    missing = []
    if settings.tls_cert is None:
        missing.append("TLS (--tls-cert, --tls-key), so what is sent can be read on the way")
    if settings.token_file is None and settings.tls_client_ca is None:
        missing.append(
            "a token (--token-file) or client certificates (--tls-client-ca), so everybody may call"
        )
    for host in exposed:
        for one in missing:
            LOGGER.warning("listening on %s, beyond this machine, without %s", host, one)
