"""What `pip install` of a wheel gives: all that is needed, and commands that work.

`make dist` sets POLYHEAD_TEST_INSTALLED to an environment into which the wheel was installed, and what it
depends on. Otherwise, and for extras, one is made here that borrows this one's libraries, without downloads.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import polyhead_client
from polyhead_client import Client

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OUTSIDE = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, env=OUTSIDE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, into: Path, *what: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--directory", into, *what, cwd=source)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "--target", "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "--target", "sdist")


@pytest.fixture(scope="module")
def borrowing(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel and this one's libraries."""
    folder_here = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder_here, cwd=ROOT)
    python = folder_here / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=ROOT
    )
    (site,) = folder_here.glob("lib/python*/site-packages")
    # A plain path: what of polyhead itself is installed there in editable form is not seen.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder_here / "bin"


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest) -> Path:
    """The folder of an environment's commands; it has the client's libraries alone where it can."""
    if folder := os.environ.get("POLYHEAD_TEST_INSTALLED"):
        return (ROOT / folder).absolute() / "bin"
    here: Path = request.getfixturevalue("borrowing")
    return here


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def tracked(folder: str) -> set[str]:
    listed = run("git", "ls-files", f"{folder}/polyhead_{folder}", cwd=ROOT).splitlines()
    return {name.removeprefix(f"{folder}/") for name in listed}


@pytest.mark.parametrize("folder", ["model", "export", "proto", "server", "client", "load", "view"])
def test_the_wheel_has_every_file_of_a_package(wheel: Path, folder: str) -> None:
    inside = {name for name in contents(wheel) if name.startswith(f"polyhead_{folder}/")}

    assert inside >= tracked(folder)
    assert f"polyhead_{folder}/py.typed" in inside
    assert not {name for name in inside if "__pycache__" in name}


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"polyhead-{PROJECT['version']}"

    again = build(source, tmp_path / "wheel", "--target", "wheel")

    assert again.name == wheel.name
    assert contents(again) == contents(wheel)
    linked = set(re.findall(r"\]\((?:docs/)?([\w/.-]+)(?:#[\w-]+)?\)", (ROOT / "README.md").read_text()))
    assert {"CONTRIBUTING.md", "load.md", "heads.png"} <= linked
    for name in (*linked, "LICENSE", "CHANGELOG.md", "constraints.txt", "examples/attention.ipynb"):
        assert (source / name).exists() or (source / "docs" / name).exists()


def test_there_is_one_version(wheel: Path, installed: Path, minilm_address: str, tmp_path: Path) -> None:
    version = PROJECT["version"]

    assert wheel.name == f"polyhead-{version}-py3-none-any.whl"
    assert polyhead_client.__version__ == version
    assert run(installed / "polyhead", "--version", cwd=tmp_path) == f"{version}\n"
    with Client(minilm_address) as client:
        assert client.metadata().version == version


def test_what_is_installed_is_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import polyhead_client as c; print(c.__file__, c.__version__)"
    where, version = run(installed / "python", "-c", code, cwd=tmp_path).split()

    assert Path(where).is_relative_to(installed.parent)
    assert version == PROJECT["version"]


def test_its_commands_work(installed: Path, minilm_address: str, tmp_path: Path) -> None:
    listed = run(installed / "polyhead", "--help", cwd=tmp_path)
    for name in PROJECT["entry-points"]["polyhead.commands"]:
        assert f" {name} " in listed

    answer: Any = json.loads(
        run(
            installed / "polyhead", "infer", "A cat sat.", "--address", minilm_address, "--json", cwd=tmp_path
        )
    )

    assert answer["sequences"][0]["tokens"] == ["[CLS]", "a", "cat", "sat", ".", "[SEP]"]


@pytest.mark.parametrize("packages", [("export", "server", "view"), ("load",)], ids=" ".join)
def test_what_extras_are_for_can_be_imported(
    borrowing: Path, packages: tuple[str, ...], tmp_path: Path
) -> None:
    """Locust patches sockets when it is imported, so that it comes by itself."""
    code = (
        "import pkgutil, importlib\n"
        f"for package in {packages}:\n"
        "    path = importlib.import_module(f'polyhead_{package}').__path__\n"
        "    for found in pkgutil.walk_packages(path, f'polyhead_{package}.'):\n"
        "        if not found.name.endswith(('__main__', 'locustfile')):\n"
        "            print(importlib.import_module(found.name).__file__)\n"
    )
    files = [Path(line) for line in run(borrowing / "python", "-c", code, cwd=tmp_path).splitlines()]

    assert all(file.is_relative_to(borrowing.parent) for file in files)
    for package in packages:
        assert sum(f"polyhead_{package}" in file.parts for file in files) > 5


HINTS = sorted(
    {
        hint
        for path in ROOT.glob("*/polyhead_*/**/*.py")
        for hint in re.findall(r"pip install '(polyhead\[[a-z,]+\])'", path.read_text())
    }
)


def test_there_are_hints() -> None:
    assert HINTS


def test_hints_and_documents_name_extras_that_exist() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    named = HINTS + [
        extras for path in documents for extras in re.findall(r"'(\.\[[a-z,]+\])'", path.read_text())
    ]

    assert {extra for name in named for extra in re.split(r"[\[\],]", name)[1:-1]} <= set(EXTRAS)


@pytest.mark.parametrize("path", [ROOT / "README.md", *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_documents_install_from_a_checkout(path: Path) -> None:
    assert not re.findall(r"pip install [^\n]*?[ ']polyhead\b", path.read_text())
