"""What lies in a repository."""

import shutil
from pathlib import Path

import pytest

from polyhead_server.errors import StartError
from polyhead_server.repository.scanning import Broken, VersionFolder, scan


def test_every_family_and_version_is_found_the_newest_first(models: Path) -> None:
    for version in (2, 10):
        shutil.copytree(models / "tiny" / "1", models / "tiny" / str(version))
        manifest = models / "tiny" / str(version) / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"version": 1,', f'"version": {version},'))

    found = scan(models)

    assert [(one.family, one.version) for one in found] == [
        ("tiny", 10),
        ("tiny", 2),
        ("tiny", 1),
        ("tiny-masked", 1),
        ("tiny-tokens", 1),
    ]
    assert all(isinstance(one, VersionFolder) for one in found)


def test_what_is_no_family_or_version_is_passed_over(models: Path) -> None:
    (models / ".cache").mkdir()
    (models / "with.dot").mkdir()
    (models / "README").write_text("")
    for name in ("0", "01", "v2", "-1", "٣", "latest"):
        (models / "tiny" / name).mkdir()
    (models / "tiny" / "3").write_text("a file")

    found = scan(models)

    assert [(one.family, one.version) for one in found] == [
        ("tiny", 1),
        ("tiny-masked", 1),
        ("tiny-tokens", 1),
    ]
    assert all(isinstance(one, VersionFolder) for one in found)


def test_broken_families_do_not_hide_the_others(models: Path) -> None:
    (models / "empty").mkdir()
    (models / "tiny" / "1" / "manifest.json").write_text("{")

    found = scan(models)

    assert [one.family for one in found if isinstance(one, VersionFolder)] == ["tiny-masked", "tiny-tokens"]
    assert [(one.family, one.version, one.reason) for one in found if isinstance(one, Broken)] == [
        ("empty", 0, "it has no version folder (1, 2, …)"),
        ("tiny", 1, "manifest.json is not valid JSON"),
    ]


def test_a_family_in_the_place_of_the_repository_is_said(models: Path) -> None:
    (found,) = scan(models / "tiny")

    assert isinstance(found, Broken)
    assert found.reason.endswith("if it is one itself, --models must be the folder above its family's")


def test_a_missing_or_empty_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"must be a folder that can be read, .*: No such file"):
        scan(tmp_path / "none")
    (tmp_path / "checkpoint" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    with pytest.raises(StartError, match=r"is a checkpoint: `polyhead serve --checkpoint .*/checkpoint` exp"):
        scan(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "1_Pooling").rmdir()
    (tmp_path / "checkpoint" / "config.json").unlink()
    (tmp_path / "checkpoint").rmdir()
    with pytest.raises(StartError, match=r"must hold at least one model, .* has none: `polyhead export`"):
        scan(tmp_path)
