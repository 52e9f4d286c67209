"""Start Triton with all encoders, in an environment of its own."""

import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender, ContenderError
from polyhead_load.sweep.server import free_port, running, wait_until_ready

_BENCHMARKS = Path(__file__).parent.parent


def environment_of(
    venv: Path, packages: Sequence[str], chosen: Namespace
) -> tuple[Path | None, dict[str, str]]:
    """Return the Python of an environment, and the versions of packages in it.

    Where it is missing, and encoders are tiny, whoever needs it takes no part.

    Raises:
        ContenderError: The environment is missing, or has not all of them.
    """
    python = venv.absolute() / "bin" / "python"
    if chosen.tiny and not python.exists():
        return None, {}
    code = f"from importlib.metadata import version; print(*map(version, {packages!r}))"
    try:
        return python, dict(zip(packages, _printed(python, code).split(), strict=True))
    except (OSError, subprocess.CalledProcessError) as error:
        raise ContenderError(f"{python} must have {packages}: `make compare` installs them") from error


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

    def configuration(self, encoder: str, label: str, d_model: int, graph: Path) -> str:
        """Return the `config.pbtxt` of a model.

        Args:
            encoder: The encoder's name.
            label: What the model's name adds to it, before the suffix.
            d_model: D.
            graph: The fast graph.
        """
        return f"""
            name: "{encoder}{label}{self.suffix}"
            backend: "python"
            max_batch_size: {self.max_batch[encoder]}
            # Lengths may differ in a batch.
            input [{{ name: "x" data_type: TYPE_FP32 dims: [-1, {d_model}] allow_ragged_batch: true }}]
            output [{{ name: "output" data_type: TYPE_FP32 dims: [-1, {d_model}] }}]
            instance_group [{{ kind: KIND_CPU count: {self.instances} }}]
            dynamic_batching {{ max_queue_delay_microseconds: 0 }}
            parameters {{ key: "graph" value: {{ string_value: "{graph}" }} }}
            parameters {{ key: "threads" value: {{ string_value: "{self.threads}" }} }}
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
    log, address = folder / "log", f"127.0.0.1:{port}"
    with running(command, log=log, environment=environment) as process:
        wait_until_ready(process, address, log=log)
        yield Contender(name="Triton", address=address, process=process)


def _printed(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
