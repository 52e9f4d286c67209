"""What the application takes, and what it refuses by name. Builds it, but runs nothing."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.servers import quick_settings

from polyhead_server.errors import StartError
from polyhead_server.remote import RemoteFolder

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")

from polyhead_server.ray import local
from polyhead_server.ray.application import Arguments, build, check


def test_every_family_of_the_repository_has_a_deployment(repository: Path) -> None:
    app = build(Arguments(models=str(repository), replicas=2, cpus=3))

    families = app._bound_deployment.init_args[1]
    assert sorted(families) == ["tiny", "tiny-masked", "tiny-tokens"]
    replica = families["tiny"]._bound_deployment
    assert (replica.name, replica.num_replicas) == ("tiny", 2)
    assert replica.ray_actor_options == {"num_cpus": 3, "num_gpus": 0}


def test_settings_are_read_as_flags_are(repository: Path) -> None:
    settings: dict[str, str | int | float] = {
        "max_reply_bytes": "8MiB",
        "repository_mode": "poll",
        "poll_seconds": 2.5,
    }

    app = build(Arguments(models=str(repository), families=("tiny",), settings=settings))

    read = app._bound_deployment.init_args[0]
    assert (read.max_reply_bytes, read.repository_mode, read.poll_seconds) == (8 * 2**20, "poll", 2.5)
    url = build(Arguments(models="s3://bucket/models", families=("tiny",)))
    assert url._bound_deployment.init_args[0].models == RemoteFolder("s3://bucket/models")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 1}, "--port has no effect on Ray: grpc_options.port of the Serve config sets it"),
        ({"workers": 2}, "--workers has no effect on Ray: replicas take their place"),
        ({"tls_cert": "c"}, "--tls-cert has no effect on Ray: .* put a gateway in front"),
        ({"http": True}, "--http has no effect on Ray: replicas answer gRPC only"),
        ({"http_port": "off"}, "--http-port has no effect on Ray: Ray exports metrics of its own"),
        ({"grpc_option": "grpc.a=1"}, "--grpc-option has no effect on Ray"),
        ({"repository_mode": "explicit"}, "--repository-mode must be none or poll on Ray"),
        ({"device": "cuda:1"}, "--device must be auto, cpu, openvino or cuda on Ray, was cuda:1"),
        ({"device": "cuda"}, "gpus must be more than 0 with device cuda"),
        ({"models": "others"}, "settings must not hold models: it is an argument of its own"),
        ({"max_queued_tokens": 0}, "settings cannot be used: .*--max-queued-tokens"),
        ({"nonsense": 1}, "settings cannot be used: .*--nonsense"),
    ],
)
def test_settings_without_an_effect_are_refused_by_name(
    repository: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        build(Arguments(models=str(repository), settings=settings))


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="workers"):
        Arguments(models="models", workers=2)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="replicas"):
        Arguments(models="models", replicas=0)
    with pytest.raises(StartError, match="must hold at least one model"):
        build(Arguments(models=str(tmp_path)))
    with pytest.raises(StartError, match="--models must be a folder that can be read"):
        build(Arguments(models=str(tmp_path / "none")))


def test_what_the_caller_sees_to_is_not_refused(repository: Path) -> None:
    settings = replace(quick_settings(repository), workers=2)

    check(settings, taken=("port", "workers"))


def test_the_try_out_requires_a_word_that_it_is_open(repository: Path) -> None:
    with pytest.raises(StartError, match=r"--host must be 0\.0\.0\.0 with --engine ray, was 127\.0\.0\.1"):
        local.run(quick_settings(repository))


def test_a_ray_that_cannot_start_is_said(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", fail)

    with pytest.raises(StartError, match=r"^Ray could not start on this machine: The current node timed out"):
        local.run(quick_settings(repository, host="0.0.0.0", port=0))

    assert "listening on 0.0.0.0, beyond this machine, without a token (--token-file)" in caplog.text


def test_a_serve_that_is_not_there_in_time_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise TimeoutError("HTTP proxies not available after 60s.")

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.serve.start", fail)
    monkeypatch.setattr("ray.serve.shutdown", lambda: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)

    with pytest.raises(StartError, match=r"^the application could not start on Ray: HTTP proxies not avail"):
        local.run(quick_settings(repository, host="0.0.0.0"))


def test_the_shipped_config_says_how_a_token_is_required(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log of its deployment says that it is not."""
    text = (Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml").read_text()

    def settings(text: str) -> Any:
        (one,) = yaml.safe_load(text)["applications"]
        app = build(Arguments(**{**one["args"], "models": str(repository)}))
        return app._bound_deployment.init_args[0]

    warning = "Ray Serve listens on every interface, without a token"
    assert settings(text).token_file is None
    assert warning in caplog.text
    caplog.clear()
    text, found = re.subn(r"^( +)# (token_file: )", r"\1\2", text, flags=re.MULTILINE)
    assert found == 1
    assert settings(text).token_file == Path("/run/secrets/token")
    assert warning not in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits(
    repository: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Serve waits for ever where there are fewer CPUs or GPUs than replicas want."""
    ended: list[str] = []

    def wait(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)
        pytest.fail("it still waits")

    def end_serve() -> None:
        signal.raise_signal(number)  # an impatient one
        ended.append("serve")

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.serve.start", lambda **_: None)
    monkeypatch.setattr("ray.serve.run", wait)
    monkeypatch.setattr("ray.serve.shutdown", end_serve)
    monkeypatch.setattr("ray.shutdown", lambda: ended.append("ray"))
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert local.run(quick_settings(repository, host="0.0.0.0")) == 0
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)

    assert ended == ["serve", "ray"]
