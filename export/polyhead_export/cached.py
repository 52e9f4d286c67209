"""Export a checkpoint once: `python -m polyhead_export.cached CHECKPOINT`, which `polyhead serve` runs.

Each checkpoint has a model repository of its own in a cache. Its name is a digest of all that decides what
is exported, so that what is there never has to be renewed. Prints the repository's folder; what it does
meanwhile goes to standard error.
"""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cyclopts import App

from polyhead_export.errors import ExportError
from polyhead_export.options import ExportOptions
from polyhead_model.checkpoint_files import CheckpointError
from polyhead_model.hub import files_of, local_checkpoint, name_of
from polyhead_proto.names import family_name
from polyhead_proto.system.caches import cache_folder

SERVED = ("pooled", "sparse", "maxsim")
"""Kinds of graphs beside those that every family has: what calls for embeddings and ranks take."""

_CODE = ("polyhead_export", "polyhead_model", "polyhead_proto")
_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "tokenizers")

app = App(
    name="polyhead_export.cached", help="Export a checkpoint once; print the model repository's folder."
)


@app.default
def cached(checkpoint: Path, *, task: str | None = None) -> int:
    """Export a checkpoint, unless it has been before; print the folder of the model repository that has it.

    Parameters
    ----------
    checkpoint
        A folder, or ORG/NAME or ORG/NAME@REVISION on the Hugging Face hub.
    task
        The task whose adapter is merged into the weights.

    Returns
    -------
    The exit status.
    """
    try:
        repository = repository_of(checkpoint, task)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("polyhead_"):
            raise
        sys.stderr.write("--checkpoint needs the export extra: pip install 'polyhead[export]'\n")
        return 1
    except (ExportError, CheckpointError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{repository}\n")
    return 0


def repository_of(checkpoint: Path, task: str | None = None) -> Path:
    """Return the model repository of a checkpoint; export it where it is missing.

    Processes that ask for the same one at the same time wait for the one that exports. If that is killed,
    another one begins anew.

    Raises:
        CheckpointError: The checkpoint cannot be downloaded or loaded.
        ExportError: No graph computes what PyTorch does, or the cache cannot be written.
        ModuleNotFoundError: What an export takes is not installed.
        OSError: There is no cache, or a file cannot be read.
    """
    if find_spec("torch") is None:  # said before anything is downloaded
        raise ModuleNotFoundError(name="torch")
    folder, name = local_checkpoint(checkpoint), family_name(name_of(checkpoint))
    repository = cache_folder() / "exports" / _digest(folder, name, task)
    options = ExportOptions(checkpoint=folder, name=name, task=task, models=repository)
    manifest = repository / name / str(options.version) / "manifest.json"
    if manifest.exists():
        return repository

    from filelock import FileLock, Timeout

    repository.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{repository}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        sys.stderr.write(f"{name}: waiting for another process, which exports it\n")
        lock.acquire()
    with lock:
        if not manifest.exists():
            _export(options)
    return repository


def _export(options: ExportOptions) -> None:
    from rich.console import Console

    from polyhead_export.command import build, say_duration
    from polyhead_export.family import IncompleteExportError, count_steps
    from polyhead_export.kinds import undefined
    from polyhead_export.progress import Steps, print_line

    console = Console(stderr=True)
    (source,) = options.sources()
    with Steps(console) as steps:
        built = build(source, steps, console)
        config = built.encoder.config
        graphs = tuple(kind for kind in SERVED if kind not in undefined(config))
        steps.expect(count_steps(config, graphs))
        say_duration(source.name, built, graphs, console)
        try:
            replace(options, graphs=graphs).export(built, source.name, sentences=(), on_step=steps)
        except IncompleteExportError as error:  # the others can be served
            print_line(console, str(error))


def _digest(folder: Path, name: str, task: str | None) -> str:
    """Return a digest of what decides what is exported: the checkpoint, the task, our code, the libraries."""
    digest = hashlib.sha256(f"{name} {task!r}\n".encode())
    for library in _LIBRARIES:
        try:
            digest.update(f"{library} {version(library)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{library} is not installed\n".encode())
    for root, files in _inputs(folder):
        for file in files:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            digest.update(f"{content} {file.relative_to(root).as_posix()}\n".encode())
    return digest.hexdigest()


def _inputs(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    yield folder, files_of(folder)
    for package in _CODE:
        path = Path(str(resources.files(package)))
        yield path, sorted(path.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
