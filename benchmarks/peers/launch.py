"""Start the peers, each with all encoders, in environments of their own."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.encoders import BenchEncoder
from benchmarks.peers.contenders import Contender, PeerError
from polyhead_load.sweep.server import free_port, running

_BENCHMARKS = Path(__file__).parent.parent


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

    def configuration(self, encoder: BenchEncoder, graph: Path, label: str = "") -> str:
        """Return the `config.pbtxt` of a model that takes `x`; lengths may differ in a batch.

        Args:
            encoder: The encoder.
            graph: Its fast graph.
            label: What the model's name adds to the encoder's, before the suffix.
        """
        tensor = f"data_type: TYPE_FP32 dims: [-1, {encoder.config.d_model}]"
        return self._configuration(
            encoder.name,
            label,
            f"""
            input [{{ name: "x" {tensor} allow_ragged_batch: true }}]
            output [{{ name: "output" {tensor} }}]
            """,
            {"graph": graph},
        )

    def text_configuration(self, encoder: str, label: str, d_model: int, files: Mapping[str, Path]) -> str:
        """Return the `config.pbtxt` of a model that takes `text`.

        Args:
            encoder: The encoder's name.
            label: What the model's name adds to it, before the suffix.
            d_model: D of the vectors.
            files: `graph`, the fast graph, and `tokenizer`, a `tokenizer.json`.
        """
        return self._configuration(
            encoder,
            label,
            f"""
            input [{{ name: "text" data_type: TYPE_STRING dims: [1] }}]
            output [{{ name: "pooled" data_type: TYPE_FP32 dims: [{d_model}] }}]
            """,
            files,
        )

    def _configuration(self, encoder: str, label: str, tensors: str, files: Mapping[str, Path]) -> str:
        parameters = "\n".join(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in {**files, "threads": self.threads}.items()
        )
        return f"""
            name: "{encoder}{label}{self.suffix}"
            backend: "python"
            max_batch_size: {self.max_batch[encoder]}
            {tensors}
            instance_group [{{ kind: KIND_CPU count: {self.instances} }}]
            dynamic_batching {{ max_queue_delay_microseconds: 0 }}
            {parameters}
        """


def version_of(python: Path, package: str) -> str:
    """Return the version of a package in an environment.

    Raises:
        PeerError: The environment is missing or damaged.
    """
    try:
        return _printed(python, f"import {package}; print({package}.__version__)")
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(
            f"{python} must have {package}: `make` installs it with what compares peers"
        ) from error


@contextmanager
def triton(
    python: Path,
    graphs: Mapping[str, Mapping[BenchEncoder, Path]],
    variants: Sequence[TritonVariant],
    folder: Path,
) -> Iterator[list[Contender]]:
    """Serve encoders of vectors by `tritonserver`; each variant is a contender.

    Args:
        python: Of the environment that has nvidia-pytriton.
        graphs: The graph of each encoder, or several with a label each; an empty label is not shown.
        variants: Each has a model for each graph.
        folder: As of `tritonserver`.
    """
    labels = {label: label and f"-{label}" for label in graphs}
    configurations = {
        f"{encoder.name}{labels[label]}{variant.suffix}": variant.configuration(encoder, graph, labels[label])
        for variant in variants
        for label, encoders in graphs.items()
        for encoder, graph in encoders.items()
    }
    with tritonserver(python, configurations, folder) as every:
        yield [
            replace(
                every,
                name=f"{variant}, {label} graph" if label else str(variant),
                suffix=labels[label] + variant.suffix,
            )
            for label, encoders in graphs.items()
            if encoders
            for variant in variants
        ]


@contextmanager
def tritonserver(python: Path, configurations: Mapping[str, str], folder: Path) -> Iterator[Contender]:
    """Start nvidia-pytriton's `tritonserver` with models of its Python back end.

    Args:
        python: Of the environment that has nvidia-pytriton.
        configurations: The `config.pbtxt` of each model, by its name.
        folder: Where the model repository, the back end and the log go; emptied.
    """
    shutil.rmtree(folder, ignore_errors=True)
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
        (model / "1" / "model.py").symlink_to(_BENCHMARKS / "peers" / "triton_model.py")
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
    log.unlink(missing_ok=True)
    with running(command, log=log, environment=environment) as process:
        yield Contender(name="Triton", address=f"127.0.0.1:{port}", process=process, log=log)


@contextmanager
def kserve(
    python: Path, encoders: Mapping[BenchEncoder, Path], threads: int, folder: Path
) -> Iterator[Contender]:
    """Serve by KServe's model server.

    Args:
        python: Of the environment that has kserve.
        encoders: With their graphs.
        threads: Threads of one run.
        folder: Where the log goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(python), "-m", "benchmarks.peers.kserve_server", "--port", str(port)]
    command += ["--http-port", str(free_port()), "--threads", str(threads)]
    command += [f"{encoder.name}={graph}" for encoder, graph in encoders.items()]
    log = folder / "log"
    log.unlink(missing_ok=True)
    with running(command, log=log, environment={"PYTHONPATH": str(_BENCHMARKS.parent)}) as process:
        yield Contender(name="KServe", address=f"127.0.0.1:{port}", process=process, log=log)


def _printed(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
