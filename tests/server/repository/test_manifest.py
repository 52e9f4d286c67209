"""Reading manifests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhead_server.errors import RepositoryError
from polyhead_server.repository import Manifest, read_manifest

Edit = Callable[[Callable[[dict[str, Any]], None]], None]


def read(folder: Path) -> Manifest:
    return read_manifest(folder, family="tiny", version=1)


def test_what_the_export_writes_is_read(folder: Path) -> None:
    manifest = read(folder)

    assert manifest.encoder.heads == 4
    assert manifest.encoder.head_size == 4
    assert manifest.served_name("fast") == "tiny"
    assert manifest.served_name("attention") == "tiny.attention"
    assert manifest.text_max_tokens is None


def test_text_is_limited_by_the_tokeniser_and_by_the_graph(repository: Path) -> None:
    manifest = read_manifest(repository / "tiny-tokens" / "1", family="tiny-tokens", version=1)
    assert manifest.tokenizer is not None
    assert manifest.text_max_tokens == 16

    generous = manifest.tokenizer.model_copy(update={"max_tokens": 512})
    assert manifest.model_copy(update={"tokenizer": generous}).text_max_tokens == 32


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_precisions(folder: Path, edit: Edit, precision: str) -> None:
    edit(lambda fields: fields.update(precision=precision))

    assert read(folder).precision == precision


def test_unknown_fields_of_the_same_format_are_passed_over(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields.update(colour="red"))

    assert read(folder).name == "tiny"


def test_a_newer_format_is_refused_with_what_to_do(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields.update(format=2, graphs="something else entirely"))

    with pytest.raises(
        RepositoryError, match="has format 2; this server reads up to format 1: update polyhead"
    ):
        read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, r"name must be its folder's \(tiny\), was other"),
        ({"version": 2}, r"version must be its folder's \(1\), was 2"),
        ({"format": "1"}, "not valid: format"),
        ({"encoder": {"d_model": 16}}, r"not valid: encoder\.heads: Field required"),
        ({"inputs": []}, "not valid: inputs"),
        ({"precision": "int8"}, "not valid: precision: Input should be 'fp32', 'fp16' or 'bf16'"),
        ({"graphs": {}}, "not valid: graphs"),
        ({"graphs": {"other": {"file": "a", "outputs": []}}}, r"not valid: graphs\.other"),
        ({"files": {}}, r"files must list model\.onnx"),
        ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "not valid: files"),
        ({"tokenizer": {"file": "/etc/passwd"}}, r"not valid: tokenizer\.file"),
        ({"tokenizer": {"file": "tokenizer.json"}}, r"files must list tokenizer\.json"),
        ({"inputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}, "inputs must hold x, were y"),
        ({"inputs": [{"name": "x", "datatype": "FP33", "shape": [-1]}]}, r"inputs\.0\.datatype"),
    ],
)
def test_a_wrong_manifest_is_refused(folder: Path, edit: Edit, change: dict[str, Any], message: str) -> None:
    edit(lambda fields: fields.update(change))

    with pytest.raises(RepositoryError, match=message):
        read(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100_000, '{"format": true}'])
def test_what_is_no_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)

    with pytest.raises(RepositoryError, match="is not valid"):
        read(folder)


def test_a_missing_or_huge_manifest_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_text(" " * (4 * 2**20 + 1))
    with pytest.raises(RepositoryError, match="must have at most 4194304 bytes"):
        read(folder)

    (folder / "manifest.json").unlink()
    with pytest.raises(RepositoryError, match=r"manifest\.json cannot be read: No such file"):
        read(folder)


def test_a_manifest_that_claims_a_billion_layers_is_refused_at_once(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields["encoder"].update(layers=10**9))

    with pytest.raises(RepositoryError, match="the outputs of graph attention must be"):
        read(folder)


def test_what_a_manifest_holds_does_not_flood_the_index(folder: Path, edit: Edit) -> None:
    edit(lambda fields: fields["files"].update({"/" * 10**6: {}}))

    with pytest.raises(RepositoryError, match="not valid: files") as caught:
        read(folder)
    assert len(str(caught.value)) <= 1500
