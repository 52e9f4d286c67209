"""Which of our packages may import which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ARROWS = {
    "model": set[str](),
    "proto": set[str](),
    "export": {"model"},
    "server": {"proto"},
    "client": {"proto"},
    "load": {"client", "model", "proto"},
}

MODULES = {
    ("load", "model"): {"polyhead_model.config", "polyhead_model.describe", "polyhead_model.description"},
}
"""Of some packages only these modules: they need nothing that is heavy."""

FOREIGN = {
    "server": {"torch", "transformers", "safetensors"},
    "client": {"torch", "onnx", "onnxruntime"},
    "load": {"torch", "onnx", "onnxruntime"},
    "proto": {"grpc", "onnx", "torch"},
    "model": {"onnx", "onnxruntime", "grpc"},
    "export": {"grpc"},
}


def imported(package: str) -> Iterator[tuple[Path, str]]:
    """Every module that a package's files import: at the top, inside a function, or lazily by a stub."""
    folder = ROOT / package / f"polyhead_{package}"
    for path in [*folder.rglob("*.py"), *folder.rglob("*.pyi")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                # lazy-loader takes relative imports alone, and only from within the package.
                assert node.level == (path.name == "__init__.pyi"), f"{path} imports {node.module}"
                yield path, f"polyhead_{package}.{node.module}" if node.level else node.module or ""


@pytest.mark.parametrize("package", ARROWS)
def test_packages_import_along_the_arrows(package: str) -> None:
    allowed = {package, *ARROWS[package]}
    for path, module in imported(package):
        top = module.split(".")[0]
        if top.startswith("polyhead_"):
            of = top.removeprefix("polyhead_")
            assert of in allowed, f"{path} imports {module}"
            assert module in MODULES.get((package, of), {module}), f"{path} imports {module}"


@pytest.mark.parametrize("package", FOREIGN)
def test_packages_do_without_what_they_do_not_need(package: str) -> None:
    for path, module in imported(package):
        assert module.split(".")[0] not in FOREIGN[package], f"{path} imports {module}"


@pytest.mark.parametrize("package", ARROWS)
def test_public_names_resolve(package: str) -> None:
    module = __import__(f"polyhead_{package}")

    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="misspelt"):
        module.misspelt  # noqa: B018


def test_no_package_sits_at_the_top_of_a_source_root() -> None:
    """An `__init__.py` in `proto/` would shadow other people's `proto`."""
    for package in ARROWS:
        assert not (ROOT / package / "__init__.py").exists()
