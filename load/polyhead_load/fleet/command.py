"""`polyhead plan`: how many machines carry a rate within a limit on p99."""

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from polyhead_load.sweep.folder import RunFolder

app = App(name="plan")

_RUNS = Path("sweeps")
_LEAST, _MOST = 1e-6, 1e12
"""For rates and prices: beyond them, a number is a mistake, and takes lines to print."""
_MOST_SPARE = 1_000_000
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@app.default
def plan(
    run: Path | None = None,
    /,
    *,
    rate: float,
    p99: str,
    tokens: str,
    family: str | None = None,
    batch: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    attention: str | None = None,
    utilisation: str = "85%",
    spare: Annotated[int, Parameter(validator=Number(gte=0, lte=_MOST_SPARE))] = 0,
    price: float | None = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Say how many machines carry a rate within a limit on p99, from a sweep.

    A machine like the sweep's is simulated: the server's scheduling, the run times that were measured, and
    requests at Poisson times. Where the sweep has measured open loops, they correct the simulation.

        polyhead plan sweeps/lengths --rate 5000 --tokens 64 --p99 50ms

    Parameters
    ----------
    run
        The folder of a sweep's run. Default: the only one in sweeps.
    rate
        Requests a second of all callers together.
    p99
        The latency that 99 of 100 requests must keep, such as 50ms or 0.2s.
    tokens
        T: 64, or log-normal lengths: median=29,sigma=0.6,low=8,high=128.
    family
        The family. Default: the only one that was measured.
    batch
        B, sequences in a request. Default: 1, or what was measured.
    attention
        What the sweep calls the attention that is asked for. Default: off, or what was measured.
    utilisation
        The largest share of its capacity that a machine may be given.
    spare
        Machines that may fail without the limit being missed.
    price
        Price of a machine for an hour, in any currency.
    seed
        The seed of the simulation.
    picture
        A file for a picture of latency against rate (.svg).
    json
        Write JSON.
    """
    from polyhead_load.fleet.measured import read_measured
    from polyhead_load.fleet.model import MachineModel
    from polyhead_load.fleet.report import Plan, draw_plan
    from polyhead_load.fleet.sizing import size_fleet
    from polyhead_load.options import parse_tokens

    limit, most_share = _seconds(p99), _share(utilisation)
    _require_sensible("--rate", rate, "requests a second")
    if price is not None:
        _require_sensible("--price", price, "for a machine and hour")
    lengths = parse_tokens(tokens)
    measured = read_measured(_run_folder(run), family=family, batch=batch, attention=attention)
    model = MachineModel.fit(measured, lengths, seed=seed)
    fleet = size_fleet(model, rate=rate, p99=limit, most_share=most_share, spare=spare)
    ours = Plan(measured=measured, model=model, fleet=fleet, tokens=lengths, price=price)
    if json:
        import json as encoder

        sys.stdout.write(encoder.dumps(ours.facts(), indent=1) + "\n")
    else:
        from rich.console import Console

        console = Console()
        for line in ours.lines():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if picture is not None:
        picture.write_text(draw_plan(ours).svg(), encoding="utf-8")


def _seconds(text: str) -> float:
    from polyhead_load.errors import LoadError

    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]+)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0.0
    if not 0 < seconds < math.inf:
        raise LoadError(
            f"--p99 must be a time above 0 with its unit, such as 50ms, 0.2s or 800us, was {text!r}"
        )
    return seconds


def _share(text: str) -> float:
    from polyhead_load.errors import LoadError

    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*%", text.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share < 1:
        raise LoadError(f"--utilisation must be a share above 0% and below 100%, such as 85%, was {text!r}")
    return share


def _require_sensible(name: str, value: float, unit: str) -> None:
    from polyhead_load.errors import LoadError

    if not _LEAST <= value <= _MOST:
        raise LoadError(f"{name} must be from {_LEAST:g} to {_MOST:g}, {unit}, was {value:g}")


def _run_folder(run: Path | None) -> "RunFolder":
    from polyhead_load.errors import SweepError
    from polyhead_load.sweep.folder import RunFolder

    if run is not None:
        return RunFolder(run)
    found = sorted(file.parent for file in _RUNS.glob("*/sweep.json"))
    if len(found) != 1:
        there = "it has none" if not found else f"it has {', '.join(str(path) for path in found)}"
        raise SweepError(
            f"give the folder of a sweep's run: {_RUNS} must have one for it to be left out, {there}"
        )
    return RunFolder(found[0])
