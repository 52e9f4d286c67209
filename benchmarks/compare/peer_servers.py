"""Start the peers, each with all encoders, in environments of their own."""

import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender, ContenderError
from polyhead_load.sweep.server import free_port, running

_BENCHMARKS = Path(__file__).parent.parent


def environment_of(venv: Path, packages: Mapping[str, str], chosen: Namespace) -> Path | None:
    """Return the Python of an environment; None where it is missing, and encoders are tiny.

    Args:
        venv: The environment.
        packages: Names of modules that it must have, each with its version; an empty one may be any.
        chosen: What `begun` gave.

    Raises:
        ContenderError: It is missing, damaged, or has another version.
    """
    python = venv.absolute() / "bin" / "python"
    if chosen.tiny and not python.exists():
        return None
    for package, version in packages.items():
        if (found := version_of(python, package)) != version and version:
            raise ContenderError(f"{venv} must have {package} {version}, has {found}: run `make compare`")
    return python


def version_of(python: Path, package: str) -> str:
    """Return the version of a package in an environment.

    Raises:
        ContenderError: The environment is missing or damaged.
    """
    try:
        return _printed(python, f"import {package}; print({package}.__version__)")
    except (OSError, subprocess.CalledProcessError) as error:
        raise ContenderError(f"{python} must have {package}: `make compare` installs it") from error


@dataclass(frozen=True, kw_only=True)
class TritonVariant:
    """How Triton runs an encoder: by so many instances, each a process with so many threads."""

    instances: int
    threads: int
    max_batch: Mapping[str, int]
    """The largest batch by encoder; what serves most is larger with cheap runs and all threads."""

    @property
    def suffix(self) -> str:
        """What the names of its models add to the encoder's."""
        return f"-{self.instances}x{self.threads}"

    def __str__(self) -> str:
        return f"Triton, {self.instances} × {self.threads} thread{'s' * (self.threads > 1)}"

    def configuration(self, encoder: str, label: str, d_model: int, files: Mapping[str, Path]) -> str:
        """Return the `config.pbtxt` of a model that takes `x`, or `text` where there is a tokenizer.

        Args:
            encoder: The encoder's name.
            label: What the model's name adds to it, before the suffix.
            d_model: D.
            files: `graph`, the fast graph, and perhaps `tokenizer`, a `tokenizer.json`.
        """
        if "tokenizer" in files:
            given = 'name: "text" data_type: TYPE_STRING dims: [1]'
            gives = f'name: "pooled" data_type: TYPE_FP32 dims: [{d_model}]'
        else:  # lengths may differ in a batch
            given = f'name: "x" data_type: TYPE_FP32 dims: [-1, {d_model}] allow_ragged_batch: true'
            gives = f'name: "output" data_type: TYPE_FP32 dims: [-1, {d_model}]'
        parameters = "\n".join(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in {**files, "threads": self.threads}.items()
        )
        return f"""
            name: "{encoder}{label}{self.suffix}"
            backend: "python"
            max_batch_size: {self.max_batch[encoder]}
            input [{{ {given} }}]
            output [{{ {gives} }}]
            instance_group [{{ kind: KIND_CPU count: {self.instances} }}]
            dynamic_batching {{ max_queue_delay_microseconds: 0 }}
            {parameters}
        """


@contextmanager
def tritonserver(python: Path, configurations: Mapping[str, str], folder: Path) -> Iterator[Contender]:
    """Start nvidia-pytriton's `tritonserver` with models of its Python back end.

    Args:
        python: Of the environment that has nvidia-pytriton.
        configurations: The `config.pbtxt` of each model, by its name.
        folder: Where the model repository, the back end and the log go; emptied.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder = folder.absolute()
    site = Path(_printed(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    libraries = _printed(python, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
    version = _printed(python, "import sysconfig; print(sysconfig.get_python_version())")
    home = site / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    for file in (*(home / "backends" / "python").iterdir(), stub):
        (backend / file.name).symlink_to(file)
    for name, configuration in configurations.items():
        model = folder / "models" / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").symlink_to(_BENCHMARKS / "compare" / "triton_model.py")
        (model / "1" / _BENCHMARKS.name).symlink_to(_BENCHMARKS)  # what the model imports
        (model / "config.pbtxt").write_text(configuration)
    port = free_port()
    command = [str(home / "bin" / "tritonserver"), f"--model-repository={folder / 'models'}"]
    command += [f"--backend-directory={backend.parent}", "--grpc-address=127.0.0.1", f"--grpc-port={port}"]
    command += ["--allow-http=false", "--allow-metrics=false", "--log-info=false"]
    environment = {
        # The Python that it embeds ignores PYTHONPATH, and belongs to the environment of the first `python3`.
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{libraries}{os.pathsep}{site / 'nvidia_pytriton.libs'}",
    }
    log = folder / "log"
    with running(command, log=log, environment=environment) as process:
        contender = Contender(name="Triton", address=f"127.0.0.1:{port}", process=process, log=log)
        contender.wait()
        yield contender


@contextmanager
def kserve(python: Path, graphs: Mapping[str, Path], threads: int, folder: Path) -> Iterator[Contender]:
    """Serve by KServe's model server.

    Args:
        python: Of the environment that has kserve.
        graphs: By the encoder's name.
        threads: Threads of one run.
        folder: Where the log goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(python), "-m", "benchmarks.compare.kserve_server", "--port", str(port)]
    command += ["--http-port", str(free_port()), "--threads", str(threads)]
    command += [f"{name}={graph.absolute()}" for name, graph in graphs.items()]
    log = folder / "log"
    log.unlink(missing_ok=True)
    with running(command, log=log, environment={"PYTHONPATH": str(_BENCHMARKS.parent)}) as process:
        contender = Contender(name="KServe", address=f"127.0.0.1:{port}", process=process, log=log)
        contender.wait()
        yield contender


def _printed(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
