"""One bad family does not stop the good ones."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyhead_server.engine.devices import Device, on_cpu
from polyhead_server.repository import VersionFolder, scan
from polyhead_server.serving.loading import Failed, Loaded, load


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    return shutil.copytree(repository, tmp_path / "models")


def results(models: Path, threads: int = 1) -> dict[str, Loaded | Failed]:
    return {
        result.name if isinstance(result, Failed) else result.signature.name: result
        for version in scan(models)
        if isinstance(version, VersionFolder)
        for result in load(version, device=on_cpu(""), threads=threads)
    }


def test_every_graph_is_loaded(models: Path) -> None:
    loaded = results(models)

    assert set(loaded) == {
        f"tiny{family}{graph}" for family in ("", "-tokens", "-masked") for graph in ("", ".attention")
    }
    assert all(isinstance(one, Loaded) for one in loaded.values())


def test_what_is_small_is_held_with_one_thread_a_run_as_well(models: Path) -> None:
    tiny = results(models, threads=2)["tiny"]
    alone = results(models, threads=1)["tiny"]

    assert isinstance(tiny, Loaded)
    assert tiny.single_thread is not None
    assert tiny.single_thread.runs == 1  # as many as this server lets run at once
    feeds = tiny.engine.example(2, 3)
    wide, single_thread = tiny.engine.run(feeds, ["output"]), tiny.single_thread.engine.run(feeds, ["output"])
    np.testing.assert_allclose(single_thread["output"], wide["output"], atol=1e-6)
    assert isinstance(alone, Loaded)
    assert alone.single_thread is None  # it has one thread anyway


def test_weights_are_held_twice_only_where_they_are_few_or_shared(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead_server.serving.loading._MAX_DOUBLED_WEIGHTS", 1000)
    family = scan(models)[0]
    assert isinstance(family, VersionFolder)

    def single_thread(device: Device) -> list[int | None]:
        loaded = [
            one for one in load(family, device=device, threads=4, runs=lambda _: 2) if isinstance(one, Loaded)
        ]
        return [None if one.single_thread is None else one.single_thread.runs for one in loaded]

    assert single_thread(on_cpu("")) == [None, None]
    assert single_thread(replace(on_cpu(""), packed=False)) == [4, 4]


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
    assert "2 special tokens" in failed[0].reason


def test_sixteen_bits_are_not_for_the_cpu(models: Path) -> None:
    folder = models / "tiny" / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"precision": "bf16"}))

    failed = {name: one.reason for name, one in results(models).items() if isinstance(one, Failed)}

    assert set(failed) == {"tiny", "tiny.attention"}
    assert all("it is bf16, which runs on CUDA only" in reason for reason in failed.values())


def test_what_nobody_foresaw_fails_its_family_and_tells_no_secrets(
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
def test_memory_that_is_short_is_told_from_files_that_are_wrong(
    models: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, may_pass: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("onnxruntime.InferenceSession", fail)
    for one in results(models).values():
        assert isinstance(one, Failed)
        assert one.may_pass is may_pass
        assert ("needs more memory than there is" in one.reason) is may_pass


def test_a_full_disk_may_pass(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    assert all(isinstance(one, Failed) and one.may_pass for one in results(models).values())
