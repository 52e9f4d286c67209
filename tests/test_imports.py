"""Which of our packages may import which."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "server" / "polyhead_server"

ARROWS = {
    "model": {"view"},
    "proto": set[str](),
    "export": {"model", "proto"},
    "server": {"proto"},
    "client": {"proto"},
    "load": {"client", "model", "proto"},
    "view": {"client", "proto"},
}

MODULES = {
    ("export", "proto"): {
        "polyhead_proto.drift",
        "polyhead_proto.names",
        "polyhead_proto.system.caches",
        "polyhead_proto.system.cgroups",
        "polyhead_proto.system.locked_folders",
        "polyhead_proto.tensors",
    },
    ("model", "view"): {"polyhead_view.diagram", "polyhead_view.figures"},
    ("load", "model"): {"polyhead_model.config", "polyhead_model.describe", "polyhead_model.description"},
}
"""Of some packages only these modules: they need nothing that is heavy, or only commands import them."""

FOREIGN = {
    "server": {"torch", "transformers", "safetensors"},
    "client": {"torch", "onnx", "onnxruntime"},
    "load": {"torch", "onnx", "onnxruntime"},
    "view": {"torch", "onnx", "onnxruntime"},
    "proto": {"grpc", "onnx", "torch"},
    "model": {"onnx", "onnxruntime", "grpc"},
    "export": {"grpc"},
}

WITH_TORCH = ROOT / "view" / "polyhead_view" / "watch.py"
"""The one module of `view` that runs what users have in PyTorch; it is imported when that is asked for."""

TOP = {"address", "errors", "gpus", "remote", "settings"}
"""Modules of the server that each of its subpackages may import."""

SUBPACKAGES = {
    "observability": set[str](),
    "repository": {"observability"},
    "engine": {"repository", "observability"},
    "scheduling": {"engine", "repository", "observability"},
    "serving": {"scheduling", "engine", "repository", "observability"},
    "inference": {"serving", "scheduling", "engine", "repository", "observability"},
    "runtime": {"inference", "serving", "scheduling", "engine", "repository", "observability"},
    "access": {"repository", "observability"},
    "grpc": {"access", "runtime", "inference", "repository", "observability"},
    "http": {"access", "runtime", "inference", "serving", "repository", "observability"},
    "checkpoint": set(),
    "process": {"http", "grpc", "engine", "repository", "observability"},
    "workers": {"process", "http", "engine", "observability"},
    "ray": {"process", "runtime", "access", "inference", "serving", "engine", "repository", "observability"},
    "doctor": {"runtime", "inference", "serving", "scheduling", "engine", "repository", "observability"},
}
"""The server's subpackages, and modules at its top, and what each may import. All may log and count."""


def imported(package: str) -> Iterator[tuple[Path, str]]:
    """Every module that a package's files import: at the top, inside a function, or lazily by a stub."""
    folder = ROOT / package / f"polyhead_{package}"
    for path in [*folder.rglob("*.py"), *folder.rglob("*.pyi")]:
        yield from ((path, module) for module in imported_by(path, for_types=True))


def imported_by(path: Path, *, for_types: bool) -> Iterator[str]:
    """Every module that a file imports; those that only a type checker sees are left out on request."""
    nodes = nodes_of(path)
    unseen = {
        node
        for block in nodes
        if not for_types and isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in nodes:
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # lazy-loader takes relative imports alone, and only from within the package.
            assert node.level == (path.name == "__init__.pyi"), f"{path} imports {node.module}"
            origin = f"{module_of(path)}.{node.module}" if node.level else node.module or ""
            for module in (f"{origin}.{alias.name}" for alias in node.names):
                yield module if is_ours(module) else origin


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def module_of(path: Path) -> str:
    """The name of the module that is in a file."""
    _, *parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def is_ours(module: str) -> bool:
    """Whether it is a module of ours, and not a name in one."""
    package, *rest = module.split(".")
    path = ROOT / package.removeprefix("polyhead_") / package / Path(*rest)
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("package", ARROWS)
def test_packages_import_along_the_arrows(package: str) -> None:
    allowed = {package, *ARROWS[package]}
    for path, module in imported(package):
        top = module.split(".")[0]
        if top.startswith("polyhead_"):
            of = top.removeprefix("polyhead_")
            assert of in allowed, f"{path} imports {module}"
            assert module in MODULES.get((package, of), {module}), f"{path} imports {module}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for types. What a package lists in its `__init__.pyi` is imported by the package itself."""
    graph: dict[str, set[str]] = {}
    for package in ARROWS:
        for path, module in imported(package):
            graph.setdefault(module_of(path), set()).add(module)

    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


@pytest.mark.parametrize("package", FOREIGN)
def test_packages_do_without_what_they_do_not_need(package: str) -> None:
    for path, module in imported(package):
        if path != WITH_TORCH or module.split(".")[0] != "torch":
            assert module.split(".")[0] not in FOREIGN[package], f"{path} imports {module}"


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_subpackages_of_the_server_import_along_the_arrows(subpackage: str) -> None:
    allowed = {subpackage, *TOP, *SUBPACKAGES[subpackage]}
    for path in [*(SERVER / subpackage).rglob("*.py"), *SERVER.glob(f"{subpackage}.py")]:
        for module in imported_by(path, for_types=False):
            package, _, inside = module.partition(".")
            if package == SERVER.name:
                assert inside.split(".")[0] in allowed, f"{path} imports {module}"


def test_ray_is_imported_in_its_own_module_alone() -> None:
    for path, module in imported("server"):
        if module.split(".")[0] == "ray":
            assert path == SERVER / "ray.py", f"{path} imports {module}"


def test_every_room_of_the_server_has_its_arrows() -> None:
    subpackages = {path.parent.name for path in SERVER.glob("*/__init__.py")}
    modules = {path.stem for path in SERVER.glob("*.py")}

    assert subpackages | modules == {*SUBPACKAGES, *TOP, "__init__", "command"}


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
