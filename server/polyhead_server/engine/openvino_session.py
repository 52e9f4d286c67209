"""Sessions of OpenVINO's own runtime, which reads our files as they are. Imported where it is asked for.

Nothing here or in OpenVINO validates inputs: its requests take arrays of other types and shapes, and keep
those of the run before where one is missing. The server does, before it gets here.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.errors import DeviceError, EngineError, RepositoryError

_CPU = "CPU"
_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
_CACHED_KERNELS = 1000
"""Kernels that are kept for the shapes that they were compiled for: of some ten shapes of an encoder."""


class OpenVinoSession:
    """A graph that OpenVINO has compiled.

    Args:
        path: The graph's file, beside its weights.
        precision: In which it is computed: fp32 or bf16.
        threads: Threads of one run.
        lanes: How many runs go side by side. Others wait for them.

    Raises:
        RepositoryError: OpenVINO cannot load it.
        DeviceError: OpenVINO does not compute as it was told.
    """

    def __init__(self, path: Path, *, precision: str, threads: int, lanes: int) -> None:
        core = _core()
        self._settings = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[precision],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # it would choose 8 bits by itself
            "NUM_STREAMS": lanes,
            "INFERENCE_NUM_THREADS": lanes * threads,
            "ENABLE_HYPER_THREADING": True,  # else it may take fewer threads
            "ENABLE_CPU_PINNING": False,  # every process would take the same cores
            "CPU_RUNTIME_CACHE_CAPACITY": _CACHED_KERNELS,
        }
        self.idle: list[Any] = []
        """Requests that no run uses. Each holds the tensors of its last run."""
        self._running = 0
        self._shrinks = False
        self._lock = Lock()
        try:
            self._model = core.read_model(path)
            self.compiled: Any = core.compile_model(self._model, _CPU, self._settings)
            """None after a run has failed, until the next."""
        except Exception as error:
            raise _refusal(path.name, error) from error
        used = self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        devices = self.compiled.get_property("EXECUTION_DEVICES")
        if (used, devices) != (_PRECISIONS[precision], [_CPU]):
            raise DeviceError(
                f"{path.name} must be computed in {precision} on the CPU, OpenVINO does in {used} on "
                f"{', '.join(devices)}"
            )

    def prepare(self) -> "_OpenVinoRun":
        """Return a run that has not begun."""
        return _OpenVinoRun(self)

    def take(self) -> tuple[Any, Any]:
        """Return the compiled graph, and a request of it for one run."""
        with self._lock:
            if self.compiled is None:
                self.compiled = _core().compile_model(self._model, _CPU, self._settings)
            request = self.idle.pop() if self.idle else self.compiled.create_infer_request()
            self._running += 1
            return self.compiled, request

    def give_back(self, compiled: Any, request: Any, *, shrink: bool) -> None:
        """Take a request back, and return the memory of earlier runs if that is due and no other runs."""
        with self._lock:
            self._running -= 1
            self._shrinks |= shrink
            if not shrink and compiled is self.compiled:
                self.idle.append(request)
            if self._shrinks and not self._running and self.compiled is not None:
                # Beside a run, OpenVINO refuses to.
                self.idle.clear()
                self.compiled.release_memory()
                self._shrinks = False

    def give_up(self, compiled: Any) -> None:
        """Have the next run compile the graph anew: one has failed, and left it in disorder."""
        with self._lock:
            self._running -= 1
            if compiled is self.compiled:
                self.compiled, self.idle = None, []


class _OpenVinoRun:
    def __init__(self, session: OpenVinoSession) -> None:
        self._session = session
        self._request: Any = None
        self._cancelled = False
        self._lock = Lock()

    def __call__(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, shrink: bool
    ) -> list[NDArray[Any]]:
        compiled, request = self._session.take()
        try:
            with self._lock:
                if self._cancelled:
                    raise EngineError("the run was cancelled")
                self._request = request
                # Only what was started this way can be cancelled.
                request.start_async(dict(feeds), share_inputs=True)
            request.wait()
        except BaseException:
            # Some of its nodes hold shapes of this run now, others those of the run before.
            self._session.give_up(compiled)
            raise
        # Copied: the next run writes where these are.
        values = [np.array(request.get_tensor(name).data) for name in outputs]
        with self._lock:
            self._request = None
        self._session.give_back(compiled, request, shrink=shrink)
        return values

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._request is not None:
                self._request.cancel()


@cache
def load() -> Any:
    """Import OpenVINO, which reports every import to Google if its package for that is there.

    Raises:
        DeviceError: It is not installed, or cannot be imported.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        why = "OpenVINO is not installed: pip install 'polyhead[openvino]'" if is_missing else error
        raise DeviceError(f"--device openvino does not work here: {why}") from error
    return openvino


def capabilities() -> frozenset[str]:
    """Return what OpenVINO can compute in on this processor, by its own names.

    Raises:
        DeviceError: It does not work.
    """
    core = _core()
    if _CPU not in core.available_devices:
        raise DeviceError("--device openvino does not work here: OpenVINO finds no CPU that it computes on")
    return frozenset(core.get_property(_CPU, "OPTIMIZATION_CAPABILITIES"))


def version() -> str:
    """Return OpenVINO's version."""
    return str(load().__version__).partition("-")[0]


@cache
def _core() -> Any:
    return load().Core()


def _refusal(file: str, error: Exception) -> RepositoryError:
    """Return why a graph is not served, with the operators that OpenVINO lacks if that is the reason."""
    if is_out_of_memory(error):
        return RepositoryError(f"{file} needs more memory than there is")
    lacking = ", ".join(dict.fromkeys(re.findall(r"(?:com\.microsoft|ai\.onnx\w*)\.(\w+)", str(error))))
    why = f", which lacks {lacking}: serve it with --device cpu" if lacking else ""
    return RepositoryError(f"{file} cannot be loaded by OpenVINO {version()}{why}")
