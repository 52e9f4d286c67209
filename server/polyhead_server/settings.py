"""The server's settings: one frozen value, read from flags, the environment and a file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from polyhead_server.engine.gpus import check_device

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_LARGEST_MESSAGE = 2**31 - 1


def parse_size(text: str) -> int:
    """Reads a number of bytes: `67108864`, `64MiB` or `64 MB`.

    Raises:
        ValueError: When it is neither.
    """
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"a size must be a number of bytes such as 67108864 or 64MiB, was {text!r}")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(size: object) -> str:
    """Writes a number of bytes in the largest binary unit that divides it: `64MiB`."""
    number = int(str(size))
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def _convert_size(_type: object, tokens: Sequence[Token]) -> int:
    return parse_size(tokens[0].value)


def _check_device(_type: object, device: str) -> None:
    check_device(device)


_AtLeastOne = Parameter(validator=Number(gte=1))
_Limits = Parameter(group="Connections", validator=Number(gte=0))
_Security = Parameter(group="Security")
_Observation = Parameter(group="Observation")
_Size = Parameter(converter=_convert_size, show_default=format_size, validator=Number(gte=1))
_SizeOrNone = Parameter(converter=_convert_size, show_default=format_size, validator=Number(gte=0))
_MessageSize = Parameter(
    converter=_convert_size, show_default=format_size, validator=Number(gte=1024, lte=_LARGEST_MESSAGE)
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one server runs. B is a batch's sequences, T its tokens."""

    models: Path
    """Folder of the model repository, as `polyhead export` writes it."""

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 listens on every interface."""

    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8001
    """Port to listen on. 0 takes a free one; the log says which."""

    versions: Literal["latest", "all"] = "latest"
    """Which versions of a model are served: the newest that can be loaded, or every one."""

    repository_mode: Literal["none", "poll", "explicit"] = "none"
    """When models are loaded and unloaded at work: never; as the repository changes, which is looked at every
    poll-seconds; or as callers with a management token say."""

    poll_seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 15.0
    """How often the repository is looked at, where repository-mode is poll."""

    workers: Annotated[int, _AtLeastOne] = 1
    """Processes that serve on the port, for each GPU. Each loads every model, and takes some of the
    connections."""

    device: Annotated[str, Parameter(validator=_check_device)] = "auto"
    """Where the models run: auto, cpu, cuda, or cuda:0,2 for some of the GPUs. cuda is all of them, and fails
    at the start when it does not work; auto takes the first GPU or the CPU, and says which."""

    threads: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    """Threads of one run on the CPU. 0 shares what affinity and container quota allow among the workers."""

    runs: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    """Batches of one model that are computed at once. 0 chooses: 2, or a quarter of the threads where that
    is more; 1 where there is one thread. On a GPU 2."""

    weights: Literal["packed", "mapped"] = "packed"
    """packed: each graph keeps a copy of its weights as its kernels read them best. mapped: the graphs of an
    encoder read one mapped file, for half the memory and slower runs, most of all short ones."""

    gpu_memory: Annotated[int, _SizeOrNone] = 0
    """Most memory of a GPU that each graph may take for weights and runs, in each worker. 0 is no limit."""

    max_request_bytes: Annotated[int, _MessageSize] = 64 * 2**20
    """Largest request message, in bytes or as 64MiB."""

    max_reply_bytes: Annotated[int, _MessageSize] = 64 * 2**20
    """Largest reply message, in bytes or as 64MiB. Checked before anything is computed."""

    max_stream_reply_bytes: Annotated[int, _Size] = 2**30
    """Largest reply that is streamed in parts, all of them together. Each is at most max-reply-bytes."""

    max_held_bytes: Annotated[int, _Size] = 2**30
    """Most memory for requests that have come and outputs that their readers have not taken, all together.
    What comes on top is refused, unless it is alone."""

    max_text_bytes: Annotated[int, _Size] = 4 * 2**20
    """Most text in one request, all its elements together."""

    max_batch_size: Annotated[int, Parameter(validator=Number(gte=1, lte=2**31 - 1))] = 256
    """Most sequences (B) in one request."""

    max_request_tokens: Annotated[int, _AtLeastOne] = 32_768
    """Most tokens (B × T, padding included) in one request."""

    max_queued_tokens: Annotated[int, _AtLeastOne] = 131_072
    """Most tokens that wait for one model. What comes on top is refused at once."""

    max_batch_tokens: Annotated[int, _AtLeastOne] = 16_384
    """Most tokens (B × T, padding included) of requests that are computed together."""

    max_wait_seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 30.0
    """Longest that a request waits for its turn, where it does not set a shorter timeout itself."""

    max_request_seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 300.0
    """Longest that a request may take to come, and again to the last of its reply, whatever its own
    deadline."""

    tuning_seconds: Annotated[float, Parameter(validator=Number(gte=0))] = 2.0
    """At a model's first start on a machine, how long its speed is measured, for each of its graphs."""

    cache_dir: Path | None = None
    """Where measured speeds are kept for the next start. By default, polyhead in the user's cache folder."""

    max_working_bytes: Annotated[int, _Size] = 2 * 2**30
    """Most memory that one request's attention may take while it is computed, by estimate."""

    drain_seconds: Annotated[float, Parameter(validator=Number(gte=0))] = 25.0
    """After SIGTERM or SIGINT, how long accepted requests may take to finish."""

    # ---- Observation ------------------------------------------------------------------------------

    log_level: Annotated[Literal["debug", "info", "warning", "error"], _Observation] = "info"
    """Least important messages that are logged. debug has a line for every inference."""

    log_format: Annotated[Literal["text", "json"], _Observation] = "text"
    """A line of text for each message, or a JSON object."""

    metrics: Annotated[bool, _Observation] = True
    """Tell Prometheus over HTTP what happens."""

    metrics_host: Annotated[str, _Observation] = "127.0.0.1"
    """Address for metrics."""

    metrics_port: Annotated[
        int | None, Parameter(group="Observation", validator=Number(gte=0, lte=65535))
    ] = None
    """Port for metrics. 0 takes a free one. Default: 8002, and no metrics where that is taken."""

    trace_endpoint: Annotated[str | None, _Observation] = None
    """Send traces to this OTLP/gRPC endpoint, such as http://127.0.0.1:4317. Needs polyhead[trace]."""

    trace_ratio: Annotated[float, Parameter(group="Observation", validator=Number(gte=0, lte=1))] = 1.0
    """The share of requests that get a trace. A caller who sends a trace of its own decides itself."""

    # ---- Connections, each worker's own -----------------------------------------------------------

    max_connections: Annotated[int, _Limits] = 1000
    """Most connections at once; a further one is closed. 0 is no limit."""

    max_concurrent_streams: Annotated[int, _Limits] = 128
    """Most calls at once on one connection; further ones wait in the client. 0 is no limit."""

    max_header_bytes: Annotated[
        int, Parameter(group="Connections", converter=_convert_size, validator=Number(gte=1024))
    ] = 16 * 2**10
    """Most metadata (headers) of one call, in bytes or as 16KiB."""

    keepalive_seconds: Annotated[float, _Limits] = 60.0
    """Silence after which the server asks whether the client is still there. 0 never asks."""

    keepalive_timeout_seconds: Annotated[float, Parameter(group="Connections", validator=Number(gt=0))] = 20.0
    """How long the client may take to answer that."""

    min_ping_seconds: Annotated[float, _Limits] = 10.0
    """A client that asks more often than this whether the server is still there is cut off."""

    max_connection_age_seconds: Annotated[float, _Limits] = 0.0
    """A connection this old ends once its calls are done, so that clients spread out anew. 0 is no limit."""

    max_connection_age_grace_seconds: Annotated[float, _Limits] = 30.0
    """How long the calls of a connection that is too old may take."""

    # ---- Security ---------------------------------------------------------------------------------

    tls_cert: Annotated[Path | None, _Security] = None
    """The server's certificate and those that vouch for it (PEM). Read anew when the file changes."""

    tls_key: Annotated[Path | None, _Security] = None
    """The certificate's private key (PEM, without a pass phrase)."""

    tls_client_ca: Annotated[Path | None, _Security] = None
    """Clients must show a certificate that one of these authorities (PEM) signed."""

    token_file: Annotated[Path | None, _Security] = None
    """Callers must send one of this file's tokens (one a line): `authorization: Bearer TOKEN`."""

    management_token_file: Annotated[Path | None, _Security] = None
    """Callers that load and unload models must send one of this file's tokens, which also opens all else."""
