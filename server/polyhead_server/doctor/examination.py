"""From what the machine reports to what works on it, and what to do about the rest."""

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from polyhead_server.doctor.graphs import inspect
from polyhead_server.doctor.machine import DRIVER
from polyhead_server.doctor.report import (
    Cuda,
    GraphReport,
    Library,
    Machine,
    OnnxRuntime,
    OpenVino,
    Problem,
    Processors,
    Report,
    RequestedDevice,
)
from polyhead_server.engine.device import ComputePrecision, Device
from polyhead_server.engine.devices import choose_device, in_precision
from polyhead_server.errors import DeviceError

_BOTH = {"onnxruntime", "onnxruntime-gpu"}


def examine(
    machine: Machine,
    asked: RequestedDevice,
    *,
    compute_precision: ComputePrecision = "fp32",
    models: Path | None = None,
    name: str | None = None,
) -> Report:
    """Find out what works.

    Args:
        machine: What there is.
        asked: The device, as for `polyhead serve`.
        compute_precision: The precision, likewise.
        models: A model repository whose graphs to load.
        name: One family of it, or one graph; None is all.

    Raises:
        StartError: There is no such repository.
        RepositoryError: It has no such model.
    """
    runtime, cuda, openvino = machine.runtime, machine.cuda, machine.openvino
    device: Device | None = None
    failed = []
    try:
        device = in_precision(choose_device(asked, problem=lambda _gpu: cuda.problem), compute_precision)
        reason = device.reason
    except DeviceError as error:
        reason = str(error)
        failed.append(Problem(what=reason, remedy=_remedy(asked, runtime, cuda, openvino)))
    graphs = () if models is None or device is None else tuple(inspect(models, name, device))
    return Report(
        **vars(machine),
        polyhead=metadata.version("polyhead"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        asked=asked,
        chosen=None if device is None else device.name,
        reason=reason,
        compute_precision=compute_precision,
        graphs=graphs,
        problems=(*failed, *_problems(runtime, graphs)),
        advice=(*_advice(runtime, cuda, device), *_cpu_advice(machine.processors, openvino, device)),
    )


def _remedy(asked: RequestedDevice, runtime: OnnxRuntime, cuda: Cuda, openvino: OpenVino) -> str:
    """Return what makes the device work that was asked for, if it does not."""
    if asked == "openvino" and openvino.version is None:
        return "pip install 'polyhead[openvino]', or serve with --device cpu"
    if asked != "cuda" or cuda.problem is None:
        return "serve with --compute-precision fp32, the default"
    return _cuda_remedy(runtime, cuda)


def _problems(runtime: OnnxRuntime, graphs: tuple[GraphReport, ...]) -> Iterator[Problem]:
    if set(runtime.packages) >= _BOTH:
        yield Problem(
            what="onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
            remedy="pip uninstall -y onnxruntime onnxruntime-gpu, then pip install 'polyhead[server]'",
        )
    for graph in graphs:
        if graph.problem is not None:
            remedy = "export it again with this version of polyhead, or serve it with --device cpu"
            if graph.provider is None:
                remedy = "export it again with `polyhead export --if-exists replace`"
            yield Problem(what=f"{graph.model}, version {graph.version}: {graph.problem}", remedy=remedy)


def _advice(runtime: OnnxRuntime, cuda: Cuda, device: Device | None) -> Iterator[Problem]:
    slower = [library for library in cuda.libraries if library.path is None and library.needed == "for speed"]
    if cuda.problem is None and slower:
        names = ", ".join(library.name for library in slower)
        yield Problem(
            what=f"{names} missing: attention runs, on slower kernels", remedy=_install(runtime, slower)
        )
    packages = {library.name.partition(".")[0]: library.brought_by for library in cuda.libraries}
    newer = {
        packages.get(library, library): version
        for library, version in (("libcudart", cuda.runtime), ("libnvrtc", cuda.compiler))
        if version is not None and cuda.highest is not None and _parts(version) > _parts(cuda.highest)
    }
    if newer:
        names = " and ".join(f"{name} {version}" for name, version in newer.items())
        limits = " ".join(f"'{name}=={cuda.highest}.*'" for name in newer)
        yield Problem(
            what=f"{names} newer than the driver, which runs CUDA up to {cuda.highest}: "
            "it rejects kernels that are compiled at run time, such as cuDNN's attention",
            remedy=f"update the driver, or pip install {limits}",
        )
    if cuda.problem is not None and cuda.gpus and device is not None:
        yield Problem(
            what=f"there is a {cuda.gpus[0].name}, but CUDA does not work: {cuda.problem}",
            remedy=_cuda_remedy(runtime, cuda),
        )


def _cpu_advice(processors: Processors, openvino: OpenVino, device: Device | None) -> Iterator[Problem]:
    """Say how the CPU gets more done, where that has been measured: docs/devices.md."""
    has = processors.instructions or {}
    if device is None or not device.host_memory or not has.get("AVX-512"):
        return
    steps = []
    if openvino.version is None:
        steps.append("pip install 'polyhead[openvino]'")
    flags = [] if device.name == "openvino" else ["--device openvino"]
    if has.get("BF16") and device.compute_precision == "fp32":
        flags.append("--compute-precision bf16")
    if flags:
        steps.append(f"serve with {' '.join(flags)}")
        what = "OpenVINO computes on this processor in less time"
        if has.get("BF16"):
            what = "this processor has BF16: OpenVINO takes half of onnxruntime's time with it"
        yield Problem(what=what, remedy=", then ".join(steps))


def _cuda_remedy(runtime: OnnxRuntime, cuda: Cuda) -> str:
    """Return what makes CUDA work, or at least the next step towards it."""
    if runtime.cuda is None:
        return "pip uninstall -y onnxruntime, then pip install 'polyhead[server,cuda]'"
    missing = [library for library in cuda.libraries if library.path is None]
    packaged = [library for library in missing if library.brought_by != DRIVER]
    steps = []
    if len(packaged) < len(missing):
        steps.append(f"install {DRIVER}")
    if packaged:
        steps.append(_install(runtime, packaged))
    if not missing and not cuda.gpus:
        steps.append("see that `nvidia-smi` lists a GPU, and that CUDA_VISIBLE_DEVICES does not hide it")
    # Within one major version of CUDA every driver serves.
    elif not missing and cuda.highest is not None and _parts(cuda.highest)[0] < _parts(runtime.cuda)[0]:
        steps.append(f"update the driver: it runs CUDA up to {cuda.highest}, this needs {runtime.cuda}")
    return "; ".join(steps) or "see what `nvidia-smi` says, and `polyhead serve --log-level debug`"


def _install(runtime: OnnxRuntime, libraries: Sequence[Library]) -> str:
    packages = dict.fromkeys(library.brought_by for library in libraries)
    return (
        f"pip install 'polyhead[cuda]' (it brings {', '.join(packages)}), "
        f"or use an image nvidia/cuda:{runtime.cuda}.x-cudnn-runtime"
    )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
