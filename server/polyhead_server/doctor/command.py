"""`polyhead doctor`: whether a server would run here, and what to do if not."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="doctor")


@app.default
def doctor(
    name: str | None = None,
    /,
    *,
    models: Path | None = None,
    device: Literal["auto", "cpu", "openvino", "cuda"] = "auto",
    compute_precision: Literal["fp32", "bf16"] = "fp32",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Say what works on this machine, what is missing, and what runs where.

    The exit status is 0 if a server would start as requested, else 1.

    Parameters
    ----------
    name
        One family of the repository, or one graph of it such as `minilm.attention`. Default: all.
    models
        A model repository whose graphs to load and examine.
    device
        The device that must work, as for `polyhead serve`. auto takes a GPU if there is one.
    compute_precision
        The precision that it must compute in, likewise. With --models, what bf16 changes is measured.
    as_json
        Print JSON.
    """
    import json

    from rich.console import Console

    from polyhead_server.doctor.display import show
    from polyhead_server.doctor.examination import examine
    from polyhead_server.doctor.machine import this_machine
    from polyhead_server.errors import StartError

    if name is not None and models is None:
        raise StartError(f"--models must say which repository has {name!r}")
    report = examine(this_machine(), device, compute_precision=compute_precision, models=models, name=name)
    if as_json:
        Console().print_json(json.dumps(report.facts()))
    else:
        show(report, Console())
    return 0 if report.works else 1
