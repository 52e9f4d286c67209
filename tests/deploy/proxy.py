"""The proxy of deploy/proxy, as a process of its own: Debian's HAProxy, or whichever is installed."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.compose_file import ROOT
from tests.waiting import until

from polyhead_load.sweep.server import free_port

CONFIGURATION = ROOT / "deploy" / "proxy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs."""

    process: "subprocess.Popen[bytes]"
    grpc: str
    """Where it takes gRPC."""
    http: str

    def reload(self) -> None:
        """Has it read its files again."""
        self.process.send_signal(signal.SIGUSR2)

    def stop(self) -> None:
        """Has it finish what it has accepted, and end."""
        self.process.send_signal(signal.SIGUSR1)


@contextmanager
def proxied(*, grpc: str = "127.0.0.1:1", http: str = "127.0.0.1:1", tls: str = "") -> Iterator[Proxy]:
    """Runs the proxy until the end of the block.

    Args:
        grpc: The address of the server's gRPC port.
        http: That of its HTTP port.
        tls: Options of TLS, for both of the proxy's ports.
    """
    assert HAPROXY is not None
    grpc_port, http_port = free_port(), free_port()
    settings = {
        "GRPC_BIND": f"127.0.0.1:{grpc_port}",
        "HTTP_BIND": f"127.0.0.1:{http_port}",
        "GRPC_SERVER": grpc,
        "HTTP_SERVER": http,
        "TLS": tls,
    }
    environment = os.environ | {f"POLYHEAD_PROXY_{name}": value for name, value in settings.items()}
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen([HAPROXY, "-W", "-db", "-f", CONFIGURATION], env=environment, stderr=log)
        try:
            text = Path(log.name)
            # It has started its worker, and itself anew to look after it: signals are lost before.
            until(
                lambda: process.poll() is not None or ("success" in text.read_text() and reloads(process.pid))
            )
            assert process.poll() is None, text.read_text()
            yield Proxy(process, f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}")
        finally:
            process.terminate()
            process.wait()


def reloads(pid: int) -> bool:
    """A process has a handler for the signal that reloads it."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1)


def listens(port: int) -> bool:
    """Something on this machine takes connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False
