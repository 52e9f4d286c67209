"""`polyhead serve`: settings from flags, the environment and a file; then the server."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.config import Env, Toml

from polyhead_server.gpus import gpus_for
from polyhead_server.settings import DEFAULT_SETTINGS, Settings

_PREFIX = "POLYHEAD_SERVE_"
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Less CPU time on the way of a request: docs/deploy.md says what they change.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
}
"""Settings of a Ray on one machine, which it reads when it is imported."""


def _forget_empty(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Treat an empty environment variable, `POLYHEAD_SERVE_WORKERS=`, as one that is not set."""
    for argument in arguments:
        argument.tokens = [token for token in argument.tokens if token.source != "env" or token.value]


def _reject_unknown(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject environment variables that name no setting, as flags and keys of the file are rejected."""
    known = {_PREFIX + argument.name.strip("-").replace("-", "_").upper() for argument in arguments}
    unknown = {name for name, value in os.environ.items() if name.startswith(_PREFIX) and value} - known
    if unknown:
        raise CycloptsError(
            msg=f"Environment variables must name settings, {', '.join(sorted(unknown))} do not: unset them. "
            "polyhead serve --help lists the settings."
        )


def _read_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Read the file that `--config` names, for what flags and the environment leave open."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = Path(argument.tokens[-1].value)
            if not path.is_file():
                raise CycloptsError(msg=f"--config must be a TOML file, {path} is none.")
            Toml(path, use_commands_as_keys=False)(app, commands, arguments)


def _one_source(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject a checkpoint beside a repository, and a choice for one where there is none."""
    given = [argument.name for argument in arguments if argument.tokens]
    if {"--checkpoint", "--models"} <= {*given}:
        raise CycloptsError(
            msg="--models or --checkpoint must say what to serve, not both; each may come from a flag, "
            "POLYHEAD_SERVE_MODELS or POLYHEAD_SERVE_CHECKPOINT, or the file: leave one out."
        )
    if "--task" in given and "--checkpoint" not in given:
        raise CycloptsError(
            msg="--task chooses an adapter of a --checkpoint; that of --models was chosen when they were "
            "exported: leave it out."
        )


app = App(
    name="serve",
    config=[Env(_PREFIX, command=False), _reject_unknown, _forget_empty, _read_file, _one_source],
)


@app.default
def serve(
    *,
    checkpoint: str | None = None,
    task: str | None = None,
    settings: Settings = DEFAULT_SETTINGS,
    engine: Literal["grpc", "ray"] = "grpc",
    config: Path | None = None,
) -> int:
    """Serve a model repository over gRPC, until SIGTERM or Ctrl-C; then finish accepted requests.

    A flag overrides its environment variable, which overrides the file.

    ```sh
    polyhead serve --checkpoint BAAI/bge-small-en-v1.5 --http
    polyhead serve --models ./models --repository-mode poll
    polyhead serve --models s3://bucket/models --workers 2 --host 0.0.0.0
    ```

    Args:
        checkpoint: Instead of --models: a Hugging Face folder of an encoder, or its name on the Hugging Face
            hub, ORG/NAME or ORG/NAME@REVISION. The first start exports it into a cache: its attention, and
            what embeddings and ranks take. `polyhead export` has other graphs and precisions.
        task: Of a checkpoint with adapters for tasks: the one that is merged into the weights, by its name,
            such as retrieval.query. Its prompt is put before each text.
        settings: The server's settings.
        engine: grpc: a server of our own. ray: Ray Serve on this machine, to try it out; --workers are
            replicas of each model. docs/deploy.md describes clusters.
        config: TOML file with any of the other options, such as `port = 8001`.
    """
    from polyhead_server.errors import StartError
    from polyhead_server.observability.logs import LOGGER, configure

    # It would make this process one of those that share the folder; workers get a folder of ours.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    os.environ.pop("prometheus_multiproc_dir", None)
    configure(settings.log_level, settings.log_format)
    try:
        if checkpoint is not None:
            from polyhead_server.checkpoint import exported

            settings = replace(settings, models=exported(checkpoint, task))
        if engine == "ray":
            return _serve_on_ray(settings)
        gpus = gpus_for(settings.device)
        if settings.workers > 1 or len(gpus) > 1:
            from polyhead_server.workers.supervisor import supervise

            return asyncio.run(supervise(settings, gpus))
        from polyhead_server.process import run

        return run(settings)
    except StartError as error:
        LOGGER.error("cannot serve: %s", error)
        return 1


def _serve_on_ray(settings: Settings) -> int:
    from polyhead_server.errors import StartError

    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from polyhead_server.ray import run
    except ModuleNotFoundError as error:
        if "ray.serve" in sys.modules:  # what is missing is not Ray, nor anything that Serve needs
            raise
        raise StartError("--engine ray needs Ray Serve: pip install 'polyhead[ray]'") from error
    return run(settings)
