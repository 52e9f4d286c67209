"""The server's settings: one frozen value, read from flags, the environment and a file.

A field's docstring is the help text of its flag.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from polyhead_server.gpus import check_device
from polyhead_server.remote import RemoteFolder, location

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_PORT = Number(gte=0, lte=65_535)
# Bytes of text for each token of `max_request_tokens`: some 25 times what text needs.
_TEXT_BYTES_PER_TOKEN = 128
_OWNED_GRPC_OPTIONS = {
    "grpc.max_message_length": "--max-request-bytes",
    "grpc.max_receive_message_length": "--max-request-bytes",
    "grpc.max_send_message_length": "--max-reply-bytes",
    "grpc.so_reuseport": "--workers",
}

TASKS = ("embed", "embed_sparse", "rerank", "classify", "tokenize")
"""What a family can do with texts, in the calls of HTTP."""

_ORIGIN = re.compile(
    r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[1-9][0-9]{0,4})?"
)


def parse_size(text: str) -> int:
    """Parse a number of bytes: `67108864`, `64MiB` or `64 MB`.

    Raises:
        ValueError: The text is neither.
    """
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"a size must be a number of bytes such as 67108864 or 64MiB, was {text!r}")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(size: object) -> str:
    """Format a number of bytes in the largest binary unit that divides it: `64MiB`."""
    number = int(str(size))
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def parse_grpc_option(text: str) -> tuple[str, int | str]:
    """Parse a gRPC channel argument such as `grpc.max_connection_age_ms=60000`: an integer or a text.

    gRPC ignores names that it does not know.

    Raises:
        ValueError: The text is no option, or another setting sets this one.
    """
    name, _, value = text.partition("=")
    if not re.fullmatch(r"grpc\.[\w.-]+", name) or not value:
        raise ValueError(
            f"a gRPC option must be NAME=VALUE such as grpc.max_connection_age_ms=60000, was {text!r}"
        )
    if name in _OWNED_GRPC_OPTIONS:
        raise ValueError(f"{name} must be set by {_OWNED_GRPC_OPTIONS[name]}, was {text!r}")
    if re.fullmatch(r"-?\d+", value) is None:
        return name, value
    if not -(2**31) <= int(value) < 2**31:
        raise ValueError(f"{name} must be from -2147483648 to 2147483647, was {value}")
    return name, int(value)


def _check_origins(_type: object, origins: Sequence[str]) -> None:
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise ValueError(
                "an origin must be written as browsers send it, such as https://example.org or "
                "http://localhost:8080 (lower case, without a path and without the scheme's own port), "
                f"was {origin!r}"
            )


def _check_http_port(type_: object, port: int | str) -> None:
    if isinstance(port, int):
        _PORT(type_, port)


def _check_defaults(_type: object, defaults: Sequence[str]) -> None:
    for given in defaults:
        task, _, family = given.partition("=")
        if task not in TASKS or not family:
            raise ValueError(
                f"a default must be TASK=FAMILY with one of the tasks {', '.join(TASKS)}, was {given!r}"
            )
    if len({given.partition("=")[0] for given in defaults}) < len(defaults):
        raise ValueError(f"a task must have one default, were {', '.join(defaults)}")


def _check_grpc_options(_type: object, options: Sequence[str]) -> None:
    for option in options:
        parse_grpc_option(option)


_AtLeastOne = Parameter(validator=Number(gte=1))
_AtLeastZero = Parameter(validator=Number(gte=0))
_Positive = Parameter(validator=Number(gt=0))
_Security = Parameter(group="Security")
_Observability = Parameter(group="Observability")
_Http = Parameter(group="HTTP")
_Size, _SizeOrZero, _MessageSize = (
    Parameter(
        converter=lambda _type, tokens: parse_size(tokens[0].value),
        show_default=format_size,
        validator=Number(gte=least, lte=most),
    )
    for least, most in ((1, None), (0, None), (1024, 2**31 - 1))
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Configure one server. B is the number of sequences in a batch, T the number of tokens in each."""

    models: Annotated[
        Path | RemoteFolder,
        Parameter(converter=lambda _type, tokens: location(tokens[0].value), accepts_keys=False, n_tokens=1),
    ] = Path("models")
    """Folder of the model repository, as `polyhead export` writes it, or its URL: s3://bucket/models."""

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 listens on every interface."""

    port: Annotated[int, Parameter(validator=_PORT)] = 8001
    """Port to listen on. 0 takes a free one; the log says which."""

    grpc_option: Annotated[
        tuple[str, ...], Parameter(negative=(), show_default=False, validator=_check_grpc_options)
    ] = ()
    """A gRPC channel argument, NAME=VALUE, such as grpc.max_connection_age_ms=60000. May be given several
    times; in the environment, separate options by spaces. docs/operations.md lists the defaults."""

    versions: Literal["latest", "all"] = "latest"
    """Versions of each model to serve: the newest that loads, or all of them."""

    repository_mode: Literal["none", "poll", "explicit"] = "none"
    """When to load and unload models after the start. none: never. poll: when the repository changes.
    explicit: when a caller with a management token asks."""

    poll_seconds: Annotated[float, _Positive] = 15.0
    """Time between two looks at the repository, with --repository-mode poll."""

    workers: Annotated[int, _AtLeastOne] = 1
    """Processes that share the port; on GPUs, for each GPU. Each loads every model."""

    device: Annotated[str, Parameter(validator=check_device)] = "auto"
    """Where models run: auto, cpu, openvino, cuda, or cuda:0,2 for some of the GPUs. cuda takes all GPUs and
    does not start without one. openvino is the CPU, computed by OpenVINO (docs/devices.md). auto takes the
    first GPU if CUDA works on it, else the CPU, and logs which."""

    compute_precision: Literal["fp32", "bf16"] = "fp32"
    """Precision in which families of fp32 and int8 are computed, but for products of 8 bits. bf16 is faster,
    needs --device openvino and a processor that has it, and changes the numbers: metadata say how much."""

    threads: Annotated[int, _AtLeastZero] = 0
    """CPU threads of all runs of a model together. 0 divides the CPUs that affinity and quota allow among the
    workers."""

    lanes: Annotated[int, _AtLeastZero] = 0
    """Batches of one model that run side by side. 0 chooses: on a GPU 2, on the CPU one for each thread."""

    weights: Literal["packed", "mapped"] = "packed"
    """packed: each graph copies its weights into the fastest layout. mapped: the graphs of an encoder share
    one mapped file, which halves the memory and slows down runs, short ones most."""

    gpu_memory: Annotated[int, _SizeOrZero] = 0
    """GPU memory limit of each graph, for weights and runs, all workers of a GPU together. 0 is no limit."""

    max_request_bytes: Annotated[int, _MessageSize] = 64 * 2**20
    """Largest request message, in bytes or as 64MiB."""

    max_reply_bytes: Annotated[int, _MessageSize] = 64 * 2**20
    """Largest reply message, in bytes or as 64MiB. Checked before anything is computed."""

    max_stream_reply_bytes: Annotated[int, _Size] = 2**30
    """Largest reply that is streamed in parts, all parts together. Each part is at most --max-reply-bytes."""

    max_held_bytes: Annotated[int, _Size] = 2**30
    """Memory limit for all received requests and unsent outputs together. Requests over it are rejected,
    unless nothing else is held."""

    max_batch_size: Annotated[int, Parameter(validator=Number(gte=1, lte=2**31 - 1))] = 256
    """Most sequences (B) in one request."""

    max_request_tokens: Annotated[int, _AtLeastOne] = 32_768
    """Most tokens (B × T, with padding) in one request; and 128 times as many bytes of text."""

    truncate: bool = False
    """Cut texts that are too long instead of rejecting them, unless a request says otherwise (truncate).
    Clients of OpenAI's API have no argument for it."""

    max_queued_tokens: Annotated[int, _AtLeastOne] = 131_072
    """Most tokens to compute that wait for one model. Requests over it are rejected at once."""

    max_batch_tokens: Annotated[int, _AtLeastZero] = 0
    """Most tokens to compute in a batch of several requests. 0 chooses: on a GPU 131,072, on the CPU 16,384.
    Below that, batches grow as long as that saves time, by the costs that are learned."""

    max_wait_seconds: Annotated[float, _Positive] = 30.0
    """Longest time in the queue, unless the request sets a shorter timeout."""

    max_request_seconds: Annotated[float, _Positive] = 300.0
    """Longest time from a request's arrival to the end of its reply, whatever its deadline; over HTTP also
    for it to arrive."""

    max_working_bytes: Annotated[int, _Size] = 2 * 2**30
    """Most memory that the attention of one request may need while it is computed, by estimate."""

    drain_seconds: Annotated[float, _AtLeastZero] = 25.0
    """Time to finish accepted requests after SIGTERM or SIGINT."""

    # ---- Observability ----------------------------------------------------------------------------

    log_level: Annotated[Literal["debug", "info", "warning", "error"], _Observability] = "info"
    """Lowest level to log. debug logs a line for every inference."""

    log_format: Annotated[Literal["text", "json"], _Observability] = "text"
    """Log lines of text, or JSON objects."""

    # ---- HTTP -------------------------------------------------------------------------------------

    http: Annotated[bool, Parameter(negative=(), group="HTTP")] = False
    """Answer inference over HTTP, too, on the port of metrics and probes: the Open Inference Protocol and
    embeddings. docs/http.md describes both."""

    http_host: Annotated[str, _Http] = "127.0.0.1"
    """Address for HTTP: Prometheus metrics, probes, and inference with --http."""

    http_port: Annotated[
        int | Literal["auto", "off"], Parameter(group="HTTP", validator=_check_http_port)
    ] = "auto"
    """Port for HTTP: without --http, of metrics and probes only. 0 takes a free one. auto takes 8002, or none
    when that is taken and --http is not given. off serves no HTTP."""

    http_origin: Annotated[
        tuple[str, ...], Parameter(group="HTTP", negative=(), show_default=False, validator=_check_origins)
    ] = ()
    """Web origin whose pages may call over HTTP, such as https://example.org. May be given several times.
    Requests of other pages are rejected."""

    default: Annotated[
        tuple[str, ...], Parameter(group="HTTP", negative=(), show_default=False, validator=_check_defaults)
    ] = ()
    """The family of calls over HTTP that name none, for a task: TASK=FAMILY, such as embed=minilm. May be
    given several times. Tasks are embed, embed_sparse, rerank, classify and tokenize."""

    # ---- Security ---------------------------------------------------------------------------------

    tls_cert: Annotated[Path | None, _Security] = None
    """The server's certificate chain (PEM). Reloaded when the file changes."""

    tls_key: Annotated[Path | None, _Security] = None
    """The certificate's private key (PEM, without a passphrase)."""

    tls_client_ca: Annotated[Path | None, _Security] = None
    """Certificate authorities (PEM). Callers must present a certificate that one of them signed."""

    token_file: Annotated[Path | None, _Security] = None
    """File of tokens, one a line. Callers must send one: `authorization: Bearer TOKEN`."""

    management_token_file: Annotated[Path | None, _Security] = None
    """File of tokens for callers that load and unload models. These tokens also open everything else."""

    @property
    def defaults(self) -> dict[str, str]:
        """By task: the family of calls that name none."""
        return dict(given.split("=", 1) for given in self.default)

    @cached_property
    def max_text_bytes(self) -> int:
        """The most text in one request, all its elements together."""
        return _TEXT_BYTES_PER_TOKEN * self.max_request_tokens


DEFAULT_SETTINGS = Settings()
