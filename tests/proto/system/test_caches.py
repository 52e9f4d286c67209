"""Where caches are."""

from pathlib import Path

import pytest

from polyhead_proto.system.caches import cache_folder


def test_caches_are_where_the_system_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "polyhead"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "polyhead"


def test_without_a_home_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)

    with pytest.raises(FileNotFoundError, match="XDG_CACHE_HOME must be set to a folder for caches"):
        cache_folder()
