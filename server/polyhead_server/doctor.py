"""`polyhead doctor`: whether a server would run here and on what, and what to do about the rest."""

import ctypes
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import onnxruntime as ort
from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from polyhead_proto.system.cgroups import THIS_PROCESS
from polyhead_server.engine import devices, openvino_session
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.cuda_libraries import cuda_version
from polyhead_server.engine.device import ComputePrecision, Device
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import DeviceError, RepositoryError, ServingError, StartError
from polyhead_server.gpus import check_device, count_gpus
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import GraphName
from polyhead_server.repository.scanning import Broken, VersionFolder, scan
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.loading import drift_on, without
from polyhead_server.serving.tokeniser import open_tokeniser

RequestedDevice = Annotated[str, Parameter(validator=check_device)]

GraphFacts: TypeAlias = dict[str, Any]
"""A graph of a repository: model, version, precision, provider (None: not served), problem, drift."""

_INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "BF16": {"avx512_bf16", "amx_bf16"},
}
"""Those that make encoders fast, with the kernel's flags of which one is enough."""

app = App(name="doctor")


@dataclass(frozen=True)
class Machine:
    """What there is; None is what is not there, or cannot be found out."""

    versions: Mapping[str, str | None]
    """Of software; of the driver, the highest CUDA version that it runs."""
    onnxruntime_packages: Sequence[str] = ("onnxruntime",)
    onnxruntime_cuda: str | None = None
    """The CUDA version that onnxruntime was built for."""
    cuda_problem: str | None = None
    """What keeps CUDA from working; None when a graph ran on it."""
    gpus: int = 0
    processors: int = 1
    threads: int = 1
    """The processors that affinity and the container's quota leave: the threads of `polyhead serve`."""
    instructions: Sequence[str] = ()
    memory_gib: float = 0
    container_memory_gib: float | None = None


@dataclass(frozen=True)
class Finding:
    """Something that does not work or could be better, and what to do."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Report:
    """What works. Without a problem, a server starts as requested and serves every graph."""

    asked: RequestedDevice
    chosen: str | None
    machine: Machine
    graphs: Sequence[GraphFacts]
    problems: Sequence[Finding]
    advice: Sequence[Finding]


@app.default
def doctor(
    name: str | None = None,
    /,
    *,
    models: Path | None = None,
    device: RequestedDevice = "auto",
    compute_precision: ComputePrecision = "fp32",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Say whether a server would run here, on what, and what to do if not.

    The exit status is 0 if a server would start as requested and serve all of --models, else 1.

    ```sh
    polyhead doctor
    polyhead doctor minilm --models models --device cuda
    ```

    Args:
        name: One family of the repository, or one graph of it such as `minilm.attention`. Default: all.
        models: A model repository whose graphs to load.
        device: The device that must work, as for `polyhead serve`. auto takes a GPU if there is one.
        compute_precision: The precision that it must compute in. What bf16 changes is measured on --models.
        as_json: Print JSON.
    """
    if name is not None and models is None:
        raise StartError(f"--models must say which repository has {name!r}")
    report = examine(this_machine(), device, compute_precision=compute_precision, models=models, name=name)
    console = Console(highlight=False)
    if as_json:
        console.print_json(json.dumps({"works": not report.problems} | asdict(report)))
    else:
        show(report, console)
    return int(bool(report.problems))


def show(report: Report, console: Console) -> None:
    """Print a report for people."""
    facts = asdict(report.machine)
    for fact, value in {**facts.pop("versions"), **facts}.items():
        text = ", ".join(value) if isinstance(value, list | tuple) else "-" if value is None else str(value)
        console.print(f"{fact.replace('_', ' '):<22} {escape(text)}")
    for graph in report.graphs:
        said = (f"{fact} {value}" for fact, value in graph.items() if value is not None and fact != "problem")
        console.print(escape(", ".join(said)))
    for kind, findings in (("problem", report.problems), ("advice", report.advice)):
        for found in findings:
            console.print(f"[bold]{kind}[/]: {escape(found.what)}\n  to do: {escape(found.remedy)}")
    if not report.problems:
        console.print(f"[bold]works[/]: --device {report.asked} runs on {report.chosen}")


def this_machine() -> Machine:
    """Look at the machine that this process runs on."""
    limit = min((each.limit for each in THIS_PROCESS.memory_limits()), default=None)
    openvino = None
    with suppress(DeviceError):
        devices.on_openvino("")
        openvino = openvino_session.version()
    return Machine(
        versions={
            "polyhead": metadata.version("polyhead"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
            "onnxruntime": ort.__version__,
            "openvino": openvino,
            "driver": _driver(),
        },
        onnxruntime_packages=sorted({*metadata.packages_distributions().get("onnxruntime", ())}),
        onnxruntime_cuda=cuda_version(),
        cuda_problem=devices.cuda_problem(),
        gpus=count_gpus() or 0,
        processors=os.cpu_count() or 1,
        threads=available_cpus(),
        instructions=instructions_in(Path("/proc/cpuinfo")),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        container_memory_gib=None if limit is None else round(limit / 2**30, 1),
    )


def instructions_in(cpuinfo: Path) -> list[str]:
    """Return those of the instructions that make encoders fast which the kernel lists in a file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next(({*line.split()} for line in lines if line.startswith("flags")), set[str]())
    return [name for name, any_of in _INSTRUCTIONS.items() if any_of & flags]


def _driver() -> str | None:
    """Return the highest CUDA version that the driver runs; None where there is no driver."""
    number = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    version = number.value
    return f"{version // 1000}.{version % 1000 // 10}" if version else None  # 13020 is 13.2


def examine(
    machine: Machine,
    asked: RequestedDevice,
    *,
    compute_precision: ComputePrecision = "fp32",
    models: Path | None = None,
    name: str | None = None,
) -> Report:
    """Find out what works on a machine, with the arguments of `doctor`. Raises what `inspect` does."""
    device: Device | None = None
    problems = []
    try:
        chosen = devices.choose_device(asked, problem=lambda _: machine.cuda_problem)
        device = devices.in_precision(chosen, compute_precision)
    except DeviceError as error:
        problems.append(Finding(str(error), _remedy(asked, machine)))
    graphs = [] if models is None or device is None else list(inspect(models, name, device))
    if {*machine.onnxruntime_packages} >= {"onnxruntime", "onnxruntime-gpu"}:
        what = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other"
        remedy = "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install 'polyhead[server]'"
        problems.append(Finding(what, remedy))
    for graph in graphs:
        if graph["problem"] is not None:
            what = f"{graph['model']}, version {graph['version']}: {graph['problem']}"
            problems.append(Finding(what, "export it again with --if-exists replace, or take another device"))
    if device is None:
        return Report(asked, None, machine, graphs, problems, [])
    return Report(asked, device.name, machine, graphs, problems, [*_advice(machine, device)])


def inspect(models: Path, name: str | None, device: Device) -> Iterator[GraphFacts]:
    """Load the graphs of a repository, of one family, or one graph, as a server would; one after the other.

    Raises:
        StartError: There is no such repository.
        RepositoryError: It has no such model.
    """
    every = scan(models)
    family = None if name is None else name.partition(".")[0]
    found = [version for version in every if family in {None, version.family}]
    if not found:
        families = sorted({version.family for version in every})
        raise RepositoryError(f"{models} has no model {name!r}: it has {', '.join(families)}")
    for version in found:
        if isinstance(version, Broken):
            yield {"model": version.family, "version": version.version, "problem": version.reason}
            continue
        for graph in version.manifest.graphs:
            if name in {None, family, version.manifest.served_name(graph)}:
                yield _inspect(version, graph, device)


def _inspect(version: VersionFolder, graph: GraphName, device: Device) -> GraphFacts:
    manifest, path = version.manifest, version.folder / version.manifest.graphs[graph].file
    problem = provider = drift = None
    try:
        devices.check_precision(manifest.precision, device)
        verify(version.folder, manifest)
        signature, tokeniser = signature_of(manifest, graph), open_tokeniser(version.folder, manifest)
        with closing(Engine(path, signature=signature, device=device, threads=1)) as engine:
            provider = device.provider
            if device.compute_precision != "fp32":
                drift = drift_on(device, path, engine, signature, tokeniser)
    except ServingError as error:
        cause = "" if error.__cause__ is None else f": {error.__cause__}"
        problem = f"{error}{cause}".splitlines()[0]
        if isinstance(error, DeviceError):
            problem += without(signature_of(manifest, graph))
    return {
        **{"model": manifest.served_name(graph), "version": version.version, "precision": manifest.precision},
        **{"provider": provider, "problem": problem, "drift": drift},
    }


def _remedy(asked: RequestedDevice, machine: Machine) -> str:
    """Return what makes the device work that was asked for and does not."""
    if asked == "openvino" and machine.versions["openvino"] is None:
        return "pip install 'polyhead[openvino]', or serve with --device cpu"
    if not asked.startswith("cuda") or machine.cuda_problem is None:
        return "serve with --compute-precision fp32, the default"
    if (cuda := machine.onnxruntime_cuda) is None:
        return "pip uninstall -y onnxruntime, then pip install 'polyhead[server,cuda]'"
    return (
        "install what is missing: pip install 'polyhead[cuda]', or an image "
        f"nvidia/cuda:{cuda}.x-cudnn-runtime, and a driver for CUDA {cuda} (in a container: its Container "
        "Toolkit, and `--gpus all`); `nvidia-smi` must list a GPU that CUDA_VISIBLE_DEVICES does not hide"
    )


def _advice(machine: Machine, device: Device) -> Iterator[Finding]:
    """Say how more gets done, where that has been measured: docs/precision.md."""
    if machine.gpus and machine.cuda_problem is not None:
        yield Finding(f"there is a GPU, but {machine.cuda_problem}", _remedy("cuda", machine))
    if not device.host_memory:
        return
    openvino = "" if machine.versions["openvino"] else "pip install 'polyhead[openvino]', then "
    openvino += "serve with --device openvino"
    if "VNNI" in machine.instructions:
        what = "int8 is the fastest on this processor, as it has VNNI: 2 to 3 times fp32's speed"
        yield Finding(what, f"polyhead export --precision int8; for a little more, {openvino}")
    if "BF16" in machine.instructions and device.compute_precision == "fp32":
        what = "families of fp32 take half the time in bf16, which this processor has"
        yield Finding(what, f"{openvino} --compute-precision bf16")
    elif "AVX-512" in machine.instructions and device.name != "openvino":
        yield Finding("OpenVINO computes fp32 in a tenth less time on this processor", openvino)
