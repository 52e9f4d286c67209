"""Check the arguments of a client."""

import ipaddress
import re
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from polyhead_client.errors import InvalidRequest

T = TypeVar("T")

DEFAULT_TARGET = "127.0.0.1:8001"
"""The default address of `polyhead serve`."""

DEFAULT_TIMEOUT_S = 30.0
"""The default timeout of an operation."""

# The schemes that gRPC knows; it takes everything else for host:port.
_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p):.")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[^\]\s]+)?\]|[^\s:/@,\[\]]+):(?P<port>[0-9]{1,5})")
_DNS = re.compile(r"dns:(//[^/]*/|/)?")
"""What precedes the name: the scheme, and a DNS server if one is given."""
_URL = re.compile(r"(?P<scheme>\w+)://(?P<authority>[^/?#\s]*)")


def check_target(target: str) -> str:
    """Check the address of a server, `host:port`, or a name of one or several with one of gRPC's schemes.

    gRPC itself takes a URL for a host name, and port 443 if there is none.

    Raises:
        InvalidRequest: It is anything else.
    """
    was = f"target must be host:port, such as {DEFAULT_TARGET}, or unix:/path, was {target!r}"
    if not _is_unicode(target):
        raise InvalidRequest(was)
    if (scheme := _SCHEME.match(target)) is not None:
        if scheme[1] in {"ipv4", "ipv6"}:
            _check_list(target, scheme[1])
        elif scheme[1] == "dns":
            _check_dns(target)
        return target
    if (url := _URL.match(target)) is not None:
        secure = "; for TLS, give credentials (in commands --tls)" if url["scheme"].lower() == "https" else ""
        raise InvalidRequest(f"{was}: leave out {url['scheme']}://{secure}")
    if (match := _HOST_AND_PORT.fullmatch(target)) is not None:
        if not _is_port(match["port"]):
            raise InvalidRequest(f"{was}: ports are between 1 and 65535")
        return target
    if "," in target:
        raise InvalidRequest(
            f"{was}: several servers are a DNS name with the addresses of all, as in dns:///encoders:8001, "
            "or a list of IP addresses, as in ipv4:10.0.0.1:8001,10.0.0.2:8001"
        )
    if target.count(":") > 1 and "[" not in target and re.fullmatch(r"[0-9A-Fa-f:.]+", target):
        raise InvalidRequest(f"{was}: put an IPv6 address in brackets, as in [::1]:8001")
    if target and ":" not in target.rpartition("]")[2]:
        raise InvalidRequest(f"{was}: name the port; polyhead serve listens on 8001 by default")
    raise InvalidRequest(was)


def is_several(target: str) -> bool:
    """Return whether a target may stand for several servers: a list, or a DNS name that is given as one."""
    scheme = _SCHEME.match(target)
    return scheme is not None and (scheme[1] == "dns" or "," in target)


def _check_list(target: str, scheme: str) -> None:
    """Check a list of IP addresses. gRPC itself rejects each call, and takes port 443 if there is none."""
    example = "10.0.0.1:8001,10.0.0.2:8001" if scheme == "ipv4" else "[fd00::1]:8001,[fd00::2]:8001"
    seen = set()
    for address in target.removeprefix(f"{scheme}:").removeprefix("//").removeprefix("/").split(","):
        why = f"target must be a list of addresses, such as {scheme}:{example}, was {target!r}: {address!r} "
        match = _HOST_AND_PORT.fullmatch(address)
        host = match["host"].strip("[]").partition("%")[0] if match else ""
        try:
            kind = f"ipv{ipaddress.ip_address(host).version}"
        except ValueError:
            kind = "none"
        if match is None or kind != scheme or not _is_port(match["port"]):
            raise InvalidRequest(f"{why}is no IP address of this kind with a port")
        if address in seen:
            raise InvalidRequest(f"{why}is given twice")
        seen.add(address)


def _check_dns(target: str) -> None:
    """Check a DNS name. gRPC itself takes port 443 if there is none, and a list for one name."""
    match = _HOST_AND_PORT.fullmatch(_DNS.sub("", target, count=1))
    if match is None or not _is_port(match["port"]):
        why = "a list is one of IP addresses, as in ipv4:10.0.0.1:8001,10.0.0.2:8001"
        raise InvalidRequest(
            "target must be a DNS name with a port, such as dns:///encoders:8001, "
            f"was {target!r}{': ' + why if ',' in target else ''}"
        )


def _is_port(port: str) -> bool:
    return 0 < int(port) < 65_536


def check_timeout(timeout: T) -> T:
    """Check a timeout: seconds, or None for no limit.

    Raises:
        InvalidRequest: It is not a number above 0.
    """
    number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    # NaN is not above 0 either.
    if timeout is not None and not (number and timeout > 0):  # type: ignore[operator]
        raise InvalidRequest(f"timeout must be more than 0 seconds, or None, was {timeout!r}")
    return timeout


def check_token(token: str | None) -> str | None:
    """Check a bearer token, which is sent in a header; None means none.

    Raises:
        InvalidRequest: It cannot be sent. The message does not contain it.
    """
    if token is not None and (not isinstance(token, str) or not re.fullmatch("[!-~]+", token)):
        was = "one with others, such as a line's end" if isinstance(token, str) else type(token).__name__
        raise InvalidRequest(f"token must be a string of printable ASCII without spaces, or None, was {was}")
    return token


def check_name(value: str | None) -> str | None:
    """Check the name of a model, or None for the only one.

    Raises:
        InvalidRequest: It is neither.
    """
    if value is not None and (not value or not _is_unicode(value)):
        raise InvalidRequest(f"model must be a name, such as 'minilm', or None, was {value!r}")
    return value


def check_prompt_name(value: object, *, is_text: bool) -> None:
    """Check the name of a prompt, or None for the model's default.

    Raises:
        InvalidRequest: It is neither, or there is no text to put a prompt before.
    """
    if value is not None and not _is_unicode(value):
        raise InvalidRequest(f"prompt_name must be a name, such as 'query', or None, was {value!r}")
    if value is not None and not is_text:
        raise InvalidRequest("prompt_name goes with texts; put a prompt's tokens before token ids")


def check_version(value: Any) -> str:
    """Return a version's number as the wire has it; empty for the newest.

    Raises:
        InvalidRequest: It is not a version.
    """
    if value is None:
        return ""
    if type(value) is bool or not (isinstance(value, Integral) or _is_unicode(value)):
        raise InvalidRequest(f"version must be a number, such as 1, or None for the newest, was {value!r}")
    return str(value)


def check_texts(name: str, texts: object) -> list[str]:
    """Return the texts of an argument as a list.

    Raises:
        InvalidRequest: It is not a sequence of strings.
    """
    given = None if isinstance(texts, str) or not isinstance(texts, Sequence) else list(texts)
    if given is None or not all(isinstance(text, str) for text in given):
        raise InvalidRequest(f"{name} must be a list of texts, was {texts!r:.80}")
    return given


def check_options(options: Any) -> Sequence[tuple[str, Any]]:
    """Check gRPC channel options.

    Raises:
        InvalidRequest: They are not pairs of a name and a value.
    """
    pairs = isinstance(options, list | tuple) and all(
        isinstance(option, list | tuple)
        and len(option) == 2
        and _is_unicode(option[0])
        and isinstance(option[1], str | bytes | int)
        for option in options
    )
    if not pairs:
        raise InvalidRequest(
            f"options must be a list of (name, value), the value an integer or a string, was {options!r}"
        )
    return tuple((name, value) for name, value in options)


def _is_unicode(value: object) -> bool:
    """Return whether a value is a string that can be sent; one of a command line may hold other bytes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
