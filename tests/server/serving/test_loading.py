"""One bad family does not stop the good ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.numerics import close

from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import on_cpu
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import RepositoryError
from polyhead_server.repository.scanning import VersionFolder, scan
from polyhead_server.scheduling import Size
from polyhead_server.serving.loading import Failed, Loaded, Loader


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    return shutil.copytree(repository, tmp_path / "models")


def results(models: Path, threads: int = 1) -> dict[str, Loaded | Failed]:
    return {
        result.name if isinstance(result, Failed) else result.signature.name: result
        for version in scan(models)
        if isinstance(version, VersionFolder)
        for result in Loader(device=on_cpu(""), threads=threads).load(version)
    }


def test_every_graph_is_loaded(models: Path) -> None:
    loaded = results(models)

    assert set(loaded) == {
        f"tiny{family}{graph}" for family in ("", "-tokens", "-masked") for graph in ("", ".attention")
    }
    assert all(isinstance(one, Loaded) for one in loaded.values())


def test_what_is_small_has_lanes_and_a_session_with_all_threads(models: Path) -> None:
    tiny = results(models, threads=2)["tiny"]
    alone = results(models, threads=1)["tiny"]

    assert isinstance(tiny, Loaded)
    assert tiny.wide is not None
    assert (tiny.lanes.count, tiny.wide.count) == (2, 1)
    feeds = {"x": np.ones((2, 3, 16), np.float32), "lengths": np.array([3, 2], np.int32)}
    by_lane, by_all = tiny.lanes.engine.run(feeds, ["output"]), tiny.wide.engine.run(feeds, ["output"])
    close(by_lane["output"], by_all["output"])
    assert isinstance(alone, Loaded)
    assert (alone.lanes.count, alone.wide) == (1, None)


def test_all_threads_are_tried_before_anything_is_known_of_them(models: Path) -> None:
    for one in results(models, threads=4).values():
        assert isinstance(one, Loaded)
        assert one.wide is not None
        assert one.wide.costs.price(Size.full(2, 8)) == pytest.approx(
            one.lanes.costs.price(Size.full(2, 8)) / 4
        )


def test_weights_are_held_twice_only_where_they_are_few_or_shared_or_lanes_are_wanted(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead_server.serving.loading._MAX_DOUBLED_WEIGHTS", 1000)
    family = scan(models)[0]
    assert isinstance(family, VersionFolder)

    def lanes(device: Device, count: int = 0) -> list[tuple[int, bool]]:
        loaded = Loader(device=device, threads=4, lanes=count).load(family)
        return [(one.lanes.count, one.wide is not None) for one in loaded if isinstance(one, Loaded)]

    assert lanes(on_cpu("")) == [(1, False)] * 2
    assert lanes(replace(on_cpu(""), packed=False)) == [(4, True)] * 2
    assert lanes(on_cpu(""), 2) == [(2, True)] * 2


def test_a_session_that_fails_takes_the_other_of_its_graph_along(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Path] = []

    class Failing(Engine):
        def __init__(self, path: Path, *, threads: int, **options: Any) -> None:
            if threads == 2 and path.name == "model.onnx":
                raise RepositoryError("there are too few threads")
            self.path = path
            super().__init__(path, threads=threads, **options)

        def close(self) -> None:
            super().close()
            closed.append(self.path)

    monkeypatch.setattr("polyhead_server.serving.loading.Engine", Failing)
    loaded = results(models, threads=2)

    assert [name for name, one in loaded.items() if isinstance(one, Loaded)] == [
        "tiny.attention",
        "tiny-masked.attention",
        "tiny-tokens.attention",
    ]
    assert len(closed) == 3
    assert {one.reason for one in loaded.values() if isinstance(one, Failed)} == {"there are too few threads"}


def test_a_family_with_a_wrong_hash_fails_alone(models: Path) -> None:
    weights = models / "tiny" / "1" / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))

    loaded = results(models)

    failed = {name: one.reason for name, one in loaded.items() if isinstance(one, Failed)}
    assert set(failed) == {"tiny", "tiny.attention"}
    assert all("weights.bin does not have the SHA-256" in reason for reason in failed.values())


def test_a_wrong_tokeniser_fails_its_family(models: Path) -> None:
    folder = models / "tiny-tokens" / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tokenizer"]["max_tokens"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest))

    failed = [one for one in results(models).values() if isinstance(one, Failed)]

    assert [one.name for one in failed] == ["tiny-tokens", "tiny-tokens.attention"]
    assert "3 special tokens to each pair" in failed[0].reason


def test_an_unforeseen_error_fails_its_family_and_tells_no_secrets(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr("polyhead_server.serving.loading.Engine", explode)

    loaded = results(models).values()

    assert all(isinstance(one, Failed) and "secret" not in one.reason for one in loaded)


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (MemoryError(), True),
        (RuntimeError("[ONNXRuntimeError] : 6 : Exception during initialization: std::bad_alloc"), True),
        (RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF"), False),
    ],
)
def test_memory_that_is_short_is_distinguished_from_files_that_are_wrong(
    models: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, may_pass: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("onnxruntime.InferenceSession", fail)
    for one in results(models).values():
        assert isinstance(one, Failed)
        assert one.may_pass is may_pass
        assert ("needs more memory than there is" in one.reason) is may_pass


def test_a_full_disk_may_pass_and_is_not_logged_at_each_try(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert all(isinstance(one, Failed) and one.may_pass for one in results(models).values())
    assert not caplog.records
