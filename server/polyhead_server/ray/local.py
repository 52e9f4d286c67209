"""`polyhead serve --engine ray`: a Ray of this machine alone, to try out what docs/deploy.md describes."""

import signal
import threading
from types import FrameType

import ray
from ray import serve

from polyhead_server.address import format_address, listen, warn_if_exposed
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.ray import services
from polyhead_server.ray.application import application, check
from polyhead_server.repository.scanning import list_families
from polyhead_server.settings import Settings

NAME = "polyhead"
"""The application's name."""


def run(settings: Settings) -> int:
    """Serve with a Ray of its own, until SIGTERM or SIGINT.

    Args:
        settings: How replicas run. The port is that of Serve's gRPC server, workers are replicas.

    Returns:
        The exit code.

    Raises:
        StartError: A setting has no effect on Ray, the port is taken, or Ray or the application cannot start.
    """
    check(settings, taken=("host", "port", "workers"))
    if settings.host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared with
        raise StartError(
            f"--host must be 0.0.0.0 with --engine ray, was {settings.host}: Serve's gRPC server listens on "
            "every interface, and so does Ray; keep both behind a firewall"
        )
    warn_if_exposed(settings)
    families = list_families(settings.models)
    cpus = settings.threads or max(1, available_cpus() // settings.workers)
    port = _free_port(settings.port)
    enough = cpus * settings.workers * max(1, len(families))
    try:
        ray.init(address="local", num_cpus=enough, include_dashboard=False)
    except Exception as error:  # Ray has no type of its own for it
        raise StartError(f"Ray could not start on this machine: {error}") from error
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:  # a second signal does not interrupt the end
            stopping = True
            raise KeyboardInterrupt  # Serve waits for ever for resources that there are not

    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own
            signal.signal(number, stop)
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": "127.0.0.1", "port": _free_port(0)},
            grpc_options={"port": port, "grpc_servicer_functions": [f"{services.__name__}.add_services"]},
        )
        gpus = 1 if settings.device == "cuda" else 0
        serve.run(application(settings, families, replicas=settings.workers, cpus=cpus, gpus=gpus), name=NAME)
        LOGGER.info("serving %s on %s with Ray", ", ".join(families), format_address(settings.host, port))
        threading.Event().wait()  # for a signal
    except KeyboardInterrupt:
        LOGGER.info("stopping")
    except (RuntimeError, TimeoutError) as error:  # with what a replica has raised, or Serve's limit
        raise StartError(f"the application could not start on Ray: {error}") from error
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


def _free_port(port: int) -> int:
    """Return the port, or a free one for 0.

    Raises:
        StartError: It is taken: Serve would try for ever to get it.
    """
    try:
        with listen("0.0.0.0", port) as probe:  # noqa: S104 - as Serve does
            return int(probe.getsockname()[1])
    except OSError as error:
        raise StartError(f"cannot listen on port {port}: {error.strerror}") from error
