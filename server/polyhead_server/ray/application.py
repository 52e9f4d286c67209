"""The application that Serve runs: the ingress, and a deployment for each family.

A Serve config file names `polyhead_server.ray.application:build` and gives it `Arguments`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from cyclopts import App, CycloptsError
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.ray.ingress import Ingress
from polyhead_server.ray.replica import FamilyReplica
from polyhead_server.repository.scanning import list_families, no_models
from polyhead_server.settings import Settings

INGRESS = "polyhead.ingress"
"""The ingress's deployment. No family has a dot in its name."""

_MOST_ONGOING = 4096
"""Serve's limit, out of the way: a replica rejects by queued tokens, and says when to try again."""

_HEALTH_SECONDS = 2.0
"""Between checks of a replica: Serve replaces it after three that fail."""

_NOT_HERE = {
    "grpc_option": "Serve has a gRPC server of its own",
    "host": "Serve listens on every interface",
    "management_token_file": "models are not loaded by call: use repository_mode poll",
    "http": "replicas answer gRPC only",
    "http_host": "Ray exports metrics of its own",
    "http_origin": "replicas answer gRPC only",
    "http_port": "Ray exports metrics of its own",
    "port": "grpc_options.port of the Serve config sets it",
    "tls_cert": "Serve's gRPC server has no TLS: put a gateway in front",
    "tls_client_ca": "Serve's gRPC server has no TLS: put a gateway in front",
    "tls_key": "Serve's gRPC server has no TLS: put a gateway in front",
    "workers": "replicas take their place",
}
"""Settings that have no effect on Ray, and why."""


class Arguments(BaseModel):
    """The arguments of the application, `args` in a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    models: str
    """Folder of the model repository, which every node has, or its URL."""
    families: tuple[str, ...] = ()
    """The families to serve; none is all that the repository holds when the application is deployed."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Of each family, and of the ingress. `deployments` in the config file sets it for single ones."""
    cpus: Annotated[float, Field(gt=0)] = 1
    """Of each replica, and so its threads."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """Of each replica."""
    settings: dict[str, str | int | float] = {}
    """Other settings, by the names of the flags of `polyhead serve`, such as `max_queued_tokens`."""


def build(arguments: Arguments) -> Application:
    """Build the application from its arguments.

    Raises:
        StartError: The repository cannot be read or is empty, or a setting cannot be used.
    """
    settings = _settings(arguments.models, arguments.settings)
    check(settings)
    _warn_if_open(settings)
    if settings.device == "cuda" and not arguments.gpus:
        raise StartError("gpus must be more than 0 with device cuda, was 0: Ray gives a replica its GPUs")
    families = arguments.families or list_families(settings.models)
    return application(
        settings, families, replicas=arguments.replicas, cpus=arguments.cpus, gpus=arguments.gpus
    )


def application(
    settings: Settings, families: Sequence[str], *, replicas: int, cpus: float, gpus: float
) -> Application:
    """Build the application.

    Args:
        settings: How replicas run.
        families: The families to serve.
        replicas: Of each family, and of the ingress.
        cpus: Of each replica.
        gpus: Of each replica.

    Raises:
        StartError: There are no families.
    """
    if not families:
        raise no_models(settings.models)
    common: dict[str, Any] = {
        "graceful_shutdown_timeout_s": settings.drain_seconds,
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
    replica = serve.deployment(FamilyReplica).options(
        num_replicas=replicas,
        max_ongoing_requests=_MOST_ONGOING,
        health_check_period_s=_HEALTH_SECONDS,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        **common,
    )
    handles = {name: replica.options(name=name).bind(settings, name) for name in families}
    ingress = serve.deployment(Ingress).options(
        name=INGRESS,
        num_replicas=replicas,
        max_ongoing_requests=_MOST_ONGOING * len(families),
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    return ingress.bind(settings, handles)


def check(settings: Settings, *, taken: Collection[str] = ()) -> None:
    """Check that every setting has an effect on Ray.

    Args:
        settings: What was given.
        taken: The names of those that the caller sees to.

    Raises:
        StartError: One has none.
    """
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, why in _NOT_HERE.items():
        if name not in taken and getattr(settings, name) != defaults[name]:
            raise StartError(f"{_flag(name)} has no effect on Ray: {why}")
    if settings.repository_mode == "explicit":
        raise StartError("--repository-mode must be none or poll on Ray: a call reaches one replica only")
    if settings.device not in {"auto", "cpu", "openvino", "cuda"}:
        raise StartError(
            f"--device must be auto, cpu, openvino or cuda on Ray, was {settings.device}: Ray gives a "
            "replica its GPUs"
        )


def _warn_if_open(settings: Settings) -> None:
    """Warn about an application that everybody may call: Serve's gRPC server listens on every interface."""
    if settings.token_file is None:
        LOGGER.warning(
            "Ray Serve listens on every interface, without a token (token_file in settings), so everybody "
            "may call"
        )


def _settings(models: str, others: Mapping[str, Any]) -> Settings:
    """Read settings as `polyhead serve` reads its flags."""
    if "models" in others:
        raise StartError("settings must not hold models: it is an argument of its own, beside settings")
    reader = App(result_action="return_value")

    @reader.default
    def read(settings: Settings) -> Settings:
        return settings

    tokens = [f"{_flag(name)}={value}" for name, value in {"models": models, **others}.items()]
    try:
        settings = reader(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise StartError(f"settings cannot be used: {error}") from error
    assert isinstance(settings, Settings)  # noqa: S101 - what `read` returns
    return settings


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
