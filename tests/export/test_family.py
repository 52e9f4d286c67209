"""What an export writes, and what it leaves when it fails."""

import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import torch
from tests.encoders import SMALL, seeded
from tests.exports import manifest_of, session_of
from tokenizers import Tokenizer
from torch import Tensor

from polyhead_export import (
    ExportError,
    FamilyExistsError,
    IncompleteExportError,
    ParityError,
    TokenizerFile,
    export_family,
)
from polyhead_export.family import count_steps
from polyhead_export.options import ExportOptions
from polyhead_export.sources import Built
from polyhead_model import Encoder, EncoderConfig, EncoderOutput

GRAPHS = ("model.onnx", "attention.onnx")
EXPORTED = ("tiny", "tiny-tokens", "tiny-masked")


@pytest.mark.parametrize("name", EXPORTED)
def test_manifest_describes_every_file(repository: Path, name: str) -> None:
    version = repository / name / "1"
    manifest = manifest_of(version)

    assert (manifest["format"], manifest["name"], manifest["version"]) == (2, name, 1)
    assert set(manifest["files"]) == {path.name for path in version.iterdir()} - {"manifest.json"}
    for file, said in manifest["files"].items():
        content = (version / file).read_bytes()
        assert said == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        # Nor does it tell where it was made.
        assert str(Path.home()).encode() not in content
        assert b"polyhead_model/" not in content


@pytest.mark.parametrize("name", [*EXPORTED, "probed"])
def test_graphs_have_the_signature_of_the_manifest(repository: Path, probed_models: Path, name: str) -> None:
    version = (probed_models if name == "probed" else repository) / name / "1"
    manifest = manifest_of(version)

    def axis_of(tensor: dict[str, Any], letter: str) -> int | str:
        # A mask that was left out may have size 1, so its axes have names of their own.
        own = tensor.get("broadcasts") and letter != "B"
        return f"{letter}_or_1" if own else manifest["sizes"].get(letter, letter)

    for graph in manifest["graphs"].values():
        session = session_of(version / graph["file"])
        for side, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert [(value.name, value.shape) for value in values] == [
                (each["name"], [axis_of(each, letter) for letter in each["axes"]]) for each in graph[side]
            ]


@pytest.mark.parametrize("name", EXPORTED)
def test_graphs_share_weights_stored_once(repository: Path, name: str) -> None:
    version = repository / name / "1"
    places: dict[str, set[tuple[int, int]]] = {}
    for graph in GRAPHS:
        model = onnx.load(version / graph, load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entry = {item.key: item.value for item in tensor.external_data}
                assert entry["location"] == "weights.bin"
                places.setdefault(graph, set()).add((int(entry["offset"]), int(entry["length"])))

    assert places.get("model.onnx", set()) <= places.get("attention.onnx", set())
    content = (version / "weights.bin").read_bytes()
    stored = [content[offset : offset + length] for offset, length in places.get("model.onnx", set())]
    assert len(set(stored)) == len(stored)


def test_padding_may_hold_anything(repository: Path) -> None:
    """NaN behind a sequence's end reaches neither its own numbers nor its neighbours'."""
    random = np.random.default_rng(3)
    x = random.standard_normal((3, 6, 16), dtype=np.float32)
    lengths = np.array([6, 2, 0], dtype=np.int32)
    dirty = x.copy()
    dirty[1, 2:] = np.nan
    dirty[2, :] = np.inf
    for graph in GRAPHS:
        session = session_of(repository / "tiny" / "1" / graph)
        clean = session.run(None, {"x": x, "lengths": lengths})
        for actual, expected in zip(session.run(None, {"x": dirty, "lengths": lengths}), clean, strict=True):
            np.testing.assert_array_equal(actual, expected)
            assert not actual[2].any()


def test_every_step_is_announced(tmp_path: Path) -> None:
    steps: list[str] = []
    exported = export_family(seeded(), "small", tmp_path, version=3, on_step=steps.append)

    assert len(steps) == count_steps(SMALL, [])
    assert exported.folder == tmp_path / "small" / "3"
    assert exported.parity.worst.excess <= 1


@pytest.mark.parametrize("name", ["", ".hidden", "a.attention", "../x", "a/b", "a b", "a" * 256])
def test_refuses_names_that_mean_something_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError, match="must start with a letter or digit"):
        export_family(Encoder(SMALL), name, tmp_path)


@pytest.mark.parametrize("version", [0, 10**18])
def test_refuses_versions_that_no_server_reads(tmp_path: Path, version: int) -> None:
    with pytest.raises(ExportError, match=f"version must be from 1 to 999,.*,999, was {version:,}$"):
        export_family(Encoder(SMALL), "small", tmp_path, version=version)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda encoder: encoder.double(),
            "must be float32 on the CPU, was torch.float64 on cpu: call",
        ),
        (
            lambda encoder: encoder.layers[0].w_v.bias.data.fill_(torch.nan),
            "w_v.bias must be finite",
        ),
    ],
)
def test_refuses_weights_that_cannot_be_exported(
    damage: Callable[[Encoder], object], message: str, tmp_path: Path
) -> None:
    encoder = Encoder(SMALL)
    damage(encoder)

    with pytest.raises(ExportError, match=re.escape(message)):
        export_family(encoder, "a", tmp_path)
    assert not list(tmp_path.iterdir())


def test_refuses_to_overwrite(repository: Path) -> None:
    with pytest.raises(FamilyExistsError, match=r'exists already: .*replace, or if_exists="replace"'):
        export_family(Encoder(SMALL), "tiny", repository)


def test_refuses_a_tokenizer_with_more_ids_than_embeddings(repository: Path, tmp_path: Path) -> None:
    """Its 32 words would be ids of which the last has no embedding."""
    path = repository / "tiny-tokens" / "1" / "tokenizer.json"
    largest = max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True).values())
    tokenizer = TokenizerFile(path=path, max_tokens=8)
    config = dataclasses.replace(SMALL, vocabulary=largest)

    with pytest.raises(
        ExportError,
        match=f"token ids must be at most {largest - 1}, as the encoder has {largest} token embeddings, "
        f"but the largest is {largest}",
    ):
        export_family(Encoder(config), "small", tmp_path, tokenizer=tokenizer)
    with pytest.raises(ExportError, match="an encoder of vectors takes no tokenizer"):
        export_family(Encoder(SMALL), "small", tmp_path, tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


class _TracesWrongShape(Encoder):
    """An encoder whose traced graph has an axis too many in one output."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOutput:
        result: EncoderOutput = super().forward(*args, **kwargs)
        if torch.compiler.is_compiling() and result.pooled is not None:
            return result._replace(pooled=result.pooled[:, None])
        return result


def test_a_wrong_shape_is_called_a_shape(tmp_path: Path) -> None:
    encoder = _TracesWrongShape(dataclasses.replace(SMALL, pooling="cls"))

    with pytest.raises(
        ParityError, match=r"'pooled' has shape \(1, 1, 8\), PyTorch gives \(1, 8\) at \(B, T\) = \(1, 1\)"
    ):
        export_family(encoder, "small", tmp_path)


class _TracesWrong(Encoder):
    """An encoder whose traced graph differs from what PyTorch computes."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOutput:
        result: EncoderOutput = super().forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            wrong: Tensor = result.output * 1.001
            return result._replace(output=wrong)
        return result


class _Interrupted(Encoder):
    """An encoder during whose tracing Ctrl-C is pressed, of which somebody makes another error."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOutput:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as pressed:
            raise AttributeError("half imported") from pressed


def test_ctrl_c_stays_ctrl_c_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_family(_Interrupted(SMALL), "small", tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_sigterm_of_a_command_leaves_nothing_behind(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        ExportOptions(models=tmp_path).export(
            Built(encoder=Encoder(SMALL)),
            "small",
            sentences=(),
            on_step=lambda _: signal.raise_signal(signal.SIGTERM),
        )

    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == handler


def test_what_killed_exports_left_is_removed(repository: Path, tmp_path: Path) -> None:
    """Unless an export is under way there. A version that was being replaced comes back."""
    abandoned, under_way, replaced = (tmp_path / f".export-{number}" for number in range(3))
    olds = [replaced / "old" / "tiny" / version for version in ("1", "2")]
    kept = tmp_path / "tiny" / "2"
    for folder in (abandoned / "new", under_way / "new", replaced / "new", *olds, kept):
        shutil.copytree(repository / "tiny" / "1", folder)
    (kept / "manifest.json").write_text("newer")
    lock = os.open(under_way, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(ParityError):
            export_family(seeded(kind=_TracesWrong), "small", tmp_path)
    finally:
        os.close(lock)

    assert sorted(tmp_path.iterdir()) == [under_way, kept.parent]
    assert manifest_of(tmp_path / "tiny" / "1")["name"] == "tiny"
    assert (kept / "manifest.json").read_text() == "newer"


@pytest.mark.parametrize("if_exists", ["fail", "replace"])
def test_what_another_export_wrote_meanwhile_stays(
    if_exists: Literal["fail", "replace"], tmp_path: Path
) -> None:
    theirs = tmp_path / "small" / "1" / "manifest.json"

    def write(step: str) -> None:
        if "hashing" in step:
            theirs.parent.mkdir(parents=True)
            theirs.write_text("theirs")

    if if_exists == "replace":
        export_family(seeded(), "small", tmp_path, if_exists=if_exists, on_step=write)
        assert manifest_of(theirs.parent)["name"] == "small"
    else:
        with pytest.raises(FamilyExistsError, match="exists already"):
            export_family(seeded(), "small", tmp_path, if_exists=if_exists, on_step=write)
        assert theirs.read_text() == "theirs"
        assert [path.name for path in theirs.parents[1].iterdir()] == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("models", r"model repository must be a folder that can be written, .*models is not \(File exists\)"),
        ("models/small", "small must be a folder, is a file: move it away"),
        ("models/small/1", "1 must be a folder, is a file: move it away"),
    ],
)
def test_a_file_in_the_way_is_named_before_the_work(file: str, message: str, tmp_path: Path) -> None:
    place = tmp_path / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    steps: list[str] = []

    with pytest.raises(ExportError, match=message):
        export_family(Encoder(SMALL), "small", tmp_path / "models", if_exists="replace", on_step=steps.append)

    assert not steps
    assert place.is_file()


class _TracesWrongWeights(Encoder):
    """An encoder whose traced attention graph differs from what PyTorch computes."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOutput:
        attend = kwargs["attend"]

        def wrong(*given: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            context, weights = attend(*given, **options)
            return context * 1.001 if weights is not None else context, weights

        return super().forward(
            *args, **kwargs | {"attend": wrong if torch.compiler.is_compiling() else attend}
        )


def test_graphs_that_agree_are_kept_where_others_fail(tmp_path: Path) -> None:
    with pytest.raises(IncompleteExportError) as caught:
        export_family(seeded(kind=_TracesWrongWeights), "small", tmp_path, graphs=["rows"])

    message = str(caught.value)
    assert re.search(r"^attention\.onnx: '\S+' must be what PyTorch gives where both compute", message)
    assert (
        "small/1 was written without attention: fast, rows agree with PyTorch, and can be served" in message
    )
    assert 'The same export with --if-exists add, or if_exists="add", tries only attention' in message
    folder = caught.value.exported.folder
    assert set(manifest_of(folder)["graphs"]) == {"fast", "rows"}
    assert list(manifest_of(folder)["parity"]["failed"]) == ["attention"]
    assert not (folder / "attention.onnx").exists()
    assert set(manifest_of(folder)["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}


def test_what_failed_replaces_none(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "tiny", tmp_path / "tiny")
    before = manifest_of(tmp_path / "tiny" / "1")

    with pytest.raises(
        ParityError,
        match=r"(?s)attention\.onnx: .*tiny/1 stays as it was, as it would lose attention\. fast agree with "
        "PyTorch: under another --version, .* --if-exists add",
    ):
        export_family(seeded(kind=_TracesWrongWeights), "tiny", tmp_path, if_exists="replace")
    with pytest.raises(ParityError):
        export_family(seeded(kind=_TracesWrong), "tiny", tmp_path, if_exists="replace")

    assert manifest_of(tmp_path / "tiny" / "1") == before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_replacement_takes_the_place_of_the_old(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "tiny", tmp_path / "tiny")

    export_family(seeded(), "tiny", tmp_path, if_exists="replace")

    assert EncoderConfig(**manifest_of(tmp_path / "tiny" / "1")["encoder"]) == SMALL
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
