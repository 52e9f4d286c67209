"""One client of several servers: they share the calls, come, go and die, and callers see nothing of it."""

import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dns.message
import dns.rrset
import grpc
import pytest
import trustme
from tests.client.conftest import Awaited, Connect, FakeServer
from tests.servers import InThread, ServerProcess, quick_settings, serving

from polyhead_client import Client, PolyheadError, Unavailable
from polyhead_client.channel import OPTIONS
from polyhead_load.sweep.server import free_port
from polyhead_server.grpc.server import DEFAULTS

MODEL = "tiny-tokens"


@pytest.fixture(scope="module")
def words(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the smallest family alone."""
    models = tmp_path_factory.mktemp("models")
    (models / MODEL).symlink_to(repository / MODEL)
    return models


def count_answers(one: InThread) -> Callable[[], int]:
    """Returns how many requests a server of this process has answered: its statistics are the process's."""
    answered, real = 0, one.server.runtime.infer

    async def infer(*arguments: Any, **options: Any) -> bytes:
        nonlocal answered
        reply = await real(*arguments, **options)
        answered += 1
        return reply

    one.server.runtime.infer = infer  # type: ignore[method-assign]
    return lambda: answered


class Answered:
    """How many requests a server in a process of its own has answered."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, timeout=60)

    def __call__(self) -> int:
        try:
            return sum(model.durations["success"].count for model in self._client.statistics())
        except Unavailable:  # it is away
            return 0

    def close(self) -> None:
        self._client.close()


class Load:
    """Threads that encode until the end of the block, which fails if one of the calls has.

    They pause between calls, so that servers can start beside them.
    """

    def __init__(self, clients: Sequence[Any], threads: int) -> None:
        self.errors: list[PolyheadError] = []
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(clients[number % len(clients)],))
            for number in range(threads)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()
        assert self.errors == []

    def _run(self, client: Any) -> None:
        while not (self._ended or self.errors):
            try:
                client.encode([1, 2, 3], model=MODEL)
            except PolyheadError as error:
                self.errors.append(error)
            time.sleep(0.01)

    def until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds."""
        deadline = time.monotonic() + 240
        while not holds():
            assert self.errors == []
            assert time.monotonic() < deadline
            time.sleep(0.05)


def assert_spread(clients: Sequence[Any], servers: Sequence[Callable[[], int]]) -> None:
    """Of 300 requests each server answers its share, within 20 %; the first may find connections closed."""
    before = [server() for server in servers]

    def spread() -> bool:
        nonlocal before
        counts = [server() for server in servers]
        found = [count - earlier for count, earlier in zip(counts, before, strict=True)]
        if sum(found) < 300:
            return False
        before = counts
        mean = sum(found) / len(found)
        return all(abs(share - mean) <= 0.2 * mean for share in found)

    with Load(clients, threads=4) as load:
        load.until(spread)


def test_one_of_three_is_killed_and_comes_back_under_load(words: Path) -> None:
    port = free_port()
    quick: dict[str, Any] = {"timeout": 60, "options": [("grpc.max_reconnect_backoff_ms", 200)]}

    def start() -> ServerProcess:
        return ServerProcess(
            "--models", str(words), "--port", str(port), "--device", "cpu", "--http-port", "off"
        )

    with serving(quick_settings(words)) as first, serving(quick_settings(words)) as second:
        mortal = start()
        third = Answered(f"127.0.0.1:{port}")
        answered: list[Callable[[], int]] = [count_answers(first), count_answers(second), third]
        target = f"ipv4:{first.address},{second.address},127.0.0.1:{port}"
        # Every call a request, and joined calls.
        clients: list[Any] = [
            Client(target, patient=True, coalesce=False, **quick),
            Awaited(target, patient=True, **quick),
        ]
        try:
            with Load(clients, threads=8) as load:
                load.until(lambda: all(server() for server in answered))
            assert_spread(clients, answered)

            with Load(clients, threads=8) as load:
                earlier = answered[0]()
                load.until(lambda: answered[0]() > earlier)
                mortal.close()
                without = answered[0]()
                load.until(lambda: answered[0]() > without + 100)
                mortal = start()
                load.until(lambda: answered[2]() > 0)
            assert_spread(clients, answered)
        finally:
            mortal.close()
            for each in (*clients, third):
                each.close()


def test_a_program_is_replaced_on_another_port_and_no_call_is_lost(words: Path) -> None:
    """As docs/operations.md says: the new one is started beside the old one, which is then stopped."""
    ports = [free_port(), free_port()]
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    quick: dict[str, Any] = {"timeout": 60, "options": [("grpc.max_reconnect_backoff_ms", 200)]}
    started: list[ServerProcess] = []
    clients: list[Any] = [Client(target, coalesce=False, **quick), Awaited(target, coalesce=False, **quick)]

    def start(port: int) -> Answered:
        flags = ("--port", str(port), "--device", "cpu", "--http-port", "off")
        started.append(ServerProcess("--models", str(words), *flags))
        started[-1].until("serving")
        return Answered(f"127.0.0.1:{port}")

    def wait_for_more(load: Load, answered: Answered) -> None:
        before = answered()
        load.until(lambda: answered() > before + 50)

    try:
        first = start(ports[0])
        with Load(clients, threads=4) as load:
            wait_for_more(load, first)
            for port in (ports[1], ports[0]):
                answered = start(port)
                wait_for_more(load, answered)  # clients have found it
                old = started[-2]
                old.process.terminate()
                assert old.end() == 0
                wait_for_more(load, answered)
                answered.close()
        first.close()
    finally:
        for each in (*started, *clients):
            each.close()


class Names(socketserver.ThreadingUDPServer):
    """A DNS server that gives every name the same IPv4 addresses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Question)
        self.addresses: list[str] = []


class _Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        data, socket = self.request
        reply = dns.message.make_response(dns.message.from_wire(data))
        assert isinstance(self.server, Names)
        for question in reply.question:
            if question.rdtype == dns.rdatatype.A:
                reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", "A", *self.server.addresses))
        socket.sendto(reply.to_wire(), self.client_address)


@pytest.fixture
def names() -> Iterator[Names]:
    with Names() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of this machine")
def test_servers_come_and_go_behind_a_name(connect: Connect, words: Path, names: Names) -> None:
    port = free_port()

    @contextmanager
    def replica(host: str) -> Iterator[Callable[[], int]]:
        aging = ("grpc.max_connection_age_ms=200",)
        with serving(quick_settings(words, host=host, port=port, grpc_option=aging)) as one:
            names.addresses.append(host)
            yield count_answers(one)
            # As on Kubernetes: the name leads there until the end of the drain.

    with replica("127.0.0.2") as second:
        with replica("127.0.0.1") as first:
            client = connect(
                f"dns://127.0.0.1:{names.server_address[1]}/encoders.example:{port}",
                options=[("grpc.dns_min_time_between_resolutions_ms", 50)],
            )
            with Load([client], threads=2) as load:
                load.until(lambda: first() > 0 and second() > 0)
                with replica("127.0.0.3") as third:
                    load.until(lambda: third() > 0)  # the client has asked for the addresses again
                names.addresses.remove("127.0.0.3")
            assert_spread([client], [first, second])
        names.addresses.remove("127.0.0.1")
        assert_spread([client], [second])


def test_a_server_that_drains_gets_no_calls(words: Path, connect: Connect) -> None:
    with serving(quick_settings(words)) as lasting, serving(quick_settings(words)) as leaving:
        target = f"ipv4:{lasting.address},{leaving.address}"
        # A rejection would be an error.
        client = connect(target, coalesce=False, options=[("grpc.enable_retries", 0)])
        answered = count_answers(leaving)
        while not answered():
            client.encode([1], model=MODEL)

        leaving.server.runtime.lifecycle.drain()

        in_a_row = 0
        while in_a_row < 50:  # until the client has learned of it
            try:
                client.encode([1], model=MODEL)
                in_a_row += 1
            except Unavailable:
                in_a_row = 0


def test_servers_may_have_different_versions(connect: Connect, fake: FakeServer, start_fake: Any) -> None:
    other = start_fake(None)
    metadata, infer = other.answers["ModelMetadata"], other.answers["ModelInfer"]

    def newer_metadata(request: Any, context: Any) -> Any:
        reply = metadata(request, context)
        reply.versions[:] = ["2"]
        return reply

    def newer_infer(request: Any, context: Any) -> Any:
        reply = infer(request, context)
        reply.model_version = "2"
        return reply

    other.answers |= {"ModelMetadata": newer_metadata, "ModelInfer": newer_infer}
    client = connect(f"ipv4:{fake.target},{other.target}")

    for turn in range(10):
        if turn == 5:
            client.metadata()  # metadata and replies change sides
        assert client.encode("a b", model="words").version in {"1", "2"}
    assert fake.count("ModelInfer") > 0
    assert other.count("ModelInfer") > 0


def test_sockets_can_be_listed_too(connect: Connect, words: Path, tmp_path: Path) -> None:
    with serving(quick_settings(words)) as server:
        assert connect(f"ipv4:{server.address},127.0.0.1:1").encode([1], model=MODEL).version == "1"
        with pytest.raises(Unavailable, match=re.escape(str(tmp_path / "b"))):
            connect(f"unix:{tmp_path / 'a'},{tmp_path / 'b'}").models()


def test_when_all_are_away_the_error_names_them(connect: Connect, names: Names) -> None:
    client = connect("ipv4:127.0.0.1:1,127.0.0.1:2")

    with pytest.raises(Unavailable, match=r"^ipv4:127.0.0.1:1,127.0.0.1:2 is unavailable: .*refused"):
        client.models()
    assert not client.live()
    nowhere = f"dns://127.0.0.1:{names.server_address[1]}/nowhere.invalid:1"
    with pytest.raises(Unavailable, match=rf"^{nowhere} is unavailable: .*nowhere.invalid"):
        connect(nowhere).models()


def test_tls_of_several_servers_with_one_name(connect: Connect, start_fake: Any) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("encoders.example")
    credentials = grpc.ssl_server_credentials(
        [(issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())]
    )
    target = f"ipv4:{start_fake(credentials).target},{start_fake(credentials).target}"
    trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())

    with pytest.raises(Unavailable, match=r'give that name .*\("grpc.default_authority", NAME\)'):
        connect(target, credentials=trusting).models()
    with pytest.raises(Unavailable, match="most likely because it speaks TLS"):
        connect(target).models()
    named = [("grpc.default_authority", "encoders.example")]
    assert connect(target, credentials=trusting, options=named).models()


def test_the_clients_pings_are_within_the_servers_limits() -> None:
    assert dict(OPTIONS)["grpc.keepalive_time_ms"] > DEFAULTS["grpc.http2.min_ping_interval_without_data_ms"]
