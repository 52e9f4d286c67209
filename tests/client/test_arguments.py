"""What a client is made and called with is checked where it is passed, before anything is sent."""

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer

from polyhead_client import AsyncClient, Client, InvalidRequest
from polyhead_client.arguments import check_target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://127.0.0.1:8001", "was 'http://127.0.0.1:8001': leave out http://"),
        ("HTTP://gpu-1:8001/v2", "leave out HTTP://"),
        ("https://gpu-1:8001", "leave out https://; for TLS, give credentials (in commands --tls)"),
        ("localhost", "name the port; polyhead serve listens on 8001 by default"),
        ("[::1]", "name the port"),
        ("::1", "put an IPv6 address in brackets, as in [::1]:8001"),
        ("127.0.0.1:", "was '127.0.0.1:'"),
        ("127.0.0.1:0", "ports are between 1 and 65535"),
        ("127.0.0.1:65536", "ports are between 1 and 65535"),
        ("127.0.0.1:8001/v2", "was '127.0.0.1:8001/v2'"),
        (
            "a:8001,b:8001",
            "several servers are a DNS name with the addresses of all, as in dns:///encoders:8001",
        ),
        ("gpu-1:8001\n", r"was 'gpu-1:8001\n'"),
        ("", "was ''"),
        (None, "was None"),
        ("\udcff:8001", r"was '\udcff:8001'"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_no_address_is_refused_with_what_it_must_be(kind: Any, target: Any, message: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^target must be host:port, such as 127.0.0.1:8001, or unix:/path, was "
    ) as caught:
        kind(target)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ipv4:10.0.0.1:8001,bad", "'bad' is no IP address of this kind with a port"),
        ("ipv4:10.0.0.1:8001,10.0.0.2", "'10.0.0.2' is no"),
        ("ipv4:10.0.0.1:8001,10.0.0.2:0", "'10.0.0.2:0' is no"),
        ("ipv4:encoders:8001", "'encoders:8001' is no"),
        ("ipv4:[::1]:8001", "'[::1]:8001' is no"),
        ("ipv6:10.0.0.1:8001", "such as ipv6:[fd00::1]:8001,[fd00::2]:8001, was 'ipv6:10.0.0.1:8001'"),
        ("ipv4:10.0.0.1:8001,10.0.0.1:8001", "'10.0.0.1:8001' is given twice"),
    ],
)
def test_a_list_of_servers_is_checked(target: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^target must be a list of addresses, such as ipv") as caught:
        check_target(target)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("dns:///", "was 'dns:///'"),
        ("dns:///encoders", "was 'dns:///encoders'"),
        ("dns:///encoders:0", "was 'dns:///encoders:0'"),
        ("dns://encoders:8001", "was 'dns://encoders:8001'"),
        ("dns:///a:8001,b:8001", ": a list is one of IP addresses, as in ipv4:10.0.0.1:8001,10.0.0.2:8001"),
    ],
)
def test_a_name_of_several_servers_is_checked(target: str, message: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^target must be a DNS name with a port, such as dns:///encoders:8001, was "
    ) as caught:
        check_target(target)

    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:8001",
        "gpu_1.example.org.:1",
        "bücher.example:65535",
        "[::1]:8001",
        "[fe80::1%eth0]:8001",
        "unix:/tmp/socket",
        "unix-abstract:name",
        "dns:///coredns:8001",
        "dns:///[::1]:8001",
        "dns://1.1.1.1/localhost:8001",
        "ipv4:127.0.0.1:8001,127.0.0.1:8002",
        "ipv4:///127.0.0.1:8001",
        "ipv6:[::1]:8001,[fe80::1%eth0]:8001",
        "unix:/tmp/a,/tmp/b",
        "xds:///service",
    ],
)
def test_addresses_of_grpc_are_kept_as_they_are(target: str) -> None:
    assert check_target(target) == target


@pytest.mark.parametrize("form", ["dns:///{}", "ipv4:{}", "{}"])
def test_they_lead_to_the_server(connect: Connect, fake: FakeServer, form: str) -> None:
    assert connect(form.format(fake.target)).live()


@pytest.mark.parametrize("timeout", ["x", "3", b"1", True, False, 0, -1, -math.inf, math.nan, [1], 1j])
def test_what_is_no_timeout_is_refused(connect: Connect, fake: FakeServer, timeout: Any) -> None:
    must = re.escape(f"timeout must be more than 0 seconds, or None, was {timeout!r}")

    with pytest.raises(InvalidRequest, match=must):
        Client(fake.target, timeout=timeout)
    with pytest.raises(InvalidRequest, match=must):
        AsyncClient(fake.target, timeout=timeout)
    client = connect(fake.target)
    for call in (client.encode, client.model, client.ready, client.wait_until_ready):
        with pytest.raises(InvalidRequest, match=must):
            call("a", timeout=timeout)
    for ask in (client.live, client.models, client.metadata, client.statistics):
        with pytest.raises(InvalidRequest, match=must):
            ask(timeout=timeout)
    assert not fake.calls


@pytest.mark.parametrize(
    "timeout", [5, 0.5 + 4, np.float32(5), np.int64(5), Fraction(9, 2), math.inf, 10**400, None]
)
def test_what_is_a_timeout_is_taken(connect: Connect, fake: FakeServer, timeout: Any) -> None:
    assert connect(fake.target, timeout=timeout).encode("a", model="words").model == "words"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patient": "no"}, "patient must be True or False, was 'no'"),
        ({"coalesce": "no"}, "coalesce must be True or False, was 'no'"),
        ({"credentials": b"PEM"}, "credentials must be grpc.ChannelCredentials, as grpc.ssl_channel_cred"),
        (
            {"token": b"secret"},
            "token must be a string of printable ASCII without spaces, or None, was bytes",
        ),
        ({"token": "secret\n"}, "token must be a string of printable ASCII without spaces"),
        (
            {"options": {"grpc.enable_retries": 0}},
            "options must be a list of (name, value), the value an integer or a string, was {'grpc",
        ),
        ({"options": [("grpc.enable_retries", None)]}, "was [('grpc.enable_retries', None)]"),
        ({"channel": "127.0.0.1:8001"}, "channel must be a grpc.Channel for Client, and one of grpc.aio for"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_no_client_can_be_made_with_is_refused(kind: Any, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)) as caught:
        kind("127.0.0.1:8001", **arguments)

    assert "secret" not in str(caught.value)


def test_names_that_cannot_be_sent_are_refused(client: Client, fake: FakeServer) -> None:
    broken: Any = "\udcff"  # as in arguments of a command line that are not UTF-8

    for call in (client.model, client.ready, client.statistics, client.wait_until_ready):
        given: Any
        for given in ("", 5, broken):
            must = re.escape(f"model must be a name, such as 'minilm', or None, was {given!r}")
            with pytest.raises(InvalidRequest, match=must):
                call(given)
    for name in ("model", "prompt_name", "version"):
        arguments: Any = {"model": "words", name: broken}
        with pytest.raises(InvalidRequest, match=rf"{name} must be a .* was '\\udcff'"):
            client.encode("a", **arguments)
    assert not fake.calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "no"}, "output must be True or False, was 'no'"),
        ({"output": None}, "output must be True or False, was None"),
        ({"pooled": 1}, "pooled must be True, False or None, was 1"),
        ({"tokens": "yes"}, "tokens must be True, False or None, was 'yes'"),
        ({"truncate": 256}, "truncate must be True or False, was 256"),
        ({"model": ""}, "model must be a name, such as 'minilm', or None, was ''"),
        ({"version": 1.0}, "version must be a number, such as 1, or None for the newest, was 1.0"),
        ({"version": True}, "version must be a number, such as 1, or None for the newest, was True"),
        ({"progress": True}, "progress must be a function of two numbers, or None, was True"),
    ],
)
def test_what_encode_does_not_take_is_refused(
    client: Client, fake: FakeServer, arguments: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        client.encode("a", **arguments)
    assert not fake.calls
