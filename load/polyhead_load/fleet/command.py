"""`polyhead plan`: how many machines carry a rate within a limit on p99."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from polyhead_load.sweep.folder import RunFolder

app = App(name="plan")

_RUNS = Path("sweeps")
_MOST_SPARE = 1_000_000


@app.default
def plan(
    run: Path | None = None,
    /,
    *,
    rate: float,
    p99: str,
    tokens: str | None = None,
    family: str | None = None,
    batch: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    attention: str | None = None,
    utilisation: str | None = None,
    spare: Annotated[int, Parameter(validator=Number(gte=0, lte=_MOST_SPARE))] = 0,
    price: float | None = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    picture: Path | None = None,
) -> None:
    """Say how many machines carry a rate within a limit on p99, from a sweep.

    A machine like the sweep's is simulated: the server's scheduling, the run times that were measured, and
    requests at Poisson times. Where the sweep has measured open loops, they correct the simulation. Several
    configurations are shown side by side, as in the report of the sweep; one with all that its plan rests on.

        polyhead plan sweeps/heads --rate 500 --p99 50ms

        polyhead plan sweeps/lengths --rate 5000 --tokens 64 --p99 50ms

    Parameters
    ----------
    run
        The folder of a sweep's run, or a model repository that `polyhead sweep` has measured. Default: the
        only run in sweeps.
    rate
        Requests a second of all callers together.
    p99
        The latency that 99 of 100 requests must keep, such as 50ms or 0.2s.
    tokens
        T: 64, or log-normal lengths: median=29,sigma=0.6,low=8,high=128. Default: all that were measured.
    family
        The only family to plan for. Default: all that were measured.
    batch
        The only B, sequences in a request. Default: all that were measured.
    attention
        The only attention that is asked for, as the sweep calls it. Default: all that were measured.
    utilisation
        The largest share of its capacity that a machine may be given. Default: 85%.
    spare
        Machines that may fail without the limit being missed.
    price
        Price of a machine for an hour, in any currency.
    seed
        The seed of the simulation.
    picture
        A file for a picture of latency against rate (.svg).
    """
    from rich.console import Console

    from polyhead_load.errors import LoadError
    from polyhead_load.fleet.recommendation import choose
    from polyhead_load.fleet.report import draw_fleet_plan
    from polyhead_load.fleet.sizing import MOST_SHARE
    from polyhead_load.options import parse_tokens
    from polyhead_load.report.recommendations import choose_lines, choose_table
    from polyhead_load.sweep.spec import LEAST_NUMBER, MOST_NUMBER, ServiceTarget

    target = ServiceTarget.of_flags(rate, p99)
    most_share = MOST_SHARE if utilisation is None else _share(utilisation)
    if price is not None and not LEAST_NUMBER <= price <= MOST_NUMBER:
        raise LoadError(
            f"--price must be from {LEAST_NUMBER:g} to {MOST_NUMBER:g}, for a machine and hour, was {price:g}"
        )
    folder = _run_folder(run)
    with Console(stderr=True).status("reading what was measured") as status:
        options = choose(
            folder,
            target,
            tokens=None if tokens is None else parse_tokens(tokens),
            family=family,
            batch=batch,
            attention=attention,
            most_share=most_share,
            spare=spare,
            price=price,
            seed=seed,
            on_step=status.update,
        )
    plans = [one.plan for one in options if one.plan is not None]
    if len(options) == 1 and not plans:
        raise options[0].error or LoadError("nothing was measured")
    only = plans[0] if len(options) == 1 else None
    if picture is not None and only is None:
        raise LoadError(
            f"--picture draws one configuration, and there are {len(options)}: choose one with --family, "
            "--tokens, --batch and --attention"
        )
    console = Console()
    if only is None:
        varied = folder.read()[0].varied
        console.print(choose_table(options, varied, target))
    for line in choose_lines(options, varied, target) if only is None else only.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if picture is not None and only is not None:
        picture.write_text(draw_fleet_plan(only).svg(), encoding="utf-8")
    if not plans:
        raise LoadError(f"no configuration carries {target}")


def _share(text: str) -> float:
    from polyhead_load.errors import LoadError

    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*%", text.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share < 1:
        raise LoadError(f"--utilisation must be a share above 0% and below 100%, such as 85%, was {text!r}")
    return share


def _run_folder(run: Path | None) -> "RunFolder":
    from polyhead_load.errors import SweepError
    from polyhead_load.sweep.folder import RunFolder
    from polyhead_load.sweep.spec import families_in, repository_run

    if run is not None and (families := families_in(run)):
        of_all = _RUNS / repository_run(run)
        if not (of_all / "sweep.json").exists():
            raise SweepError(
                f"a plan needs measurements, and {of_all} has none of the families in {run}: "
                f"`polyhead sweep {shlex.quote(str(run.resolve()))}` makes them"
            )
        folder = RunFolder(of_all)
        if missing := sorted(set(families) - set(folder.read()[0].labels("family"))):
            raise SweepError(
                f"{of_all} has no measurements of {', '.join(missing)}: remove it, and "
                f"`polyhead sweep {shlex.quote(str(run.resolve()))}` measures all families"
            )
        return folder
    if run is not None:
        return RunFolder(run)
    found = sorted(file.parent for file in _RUNS.glob("*/sweep.json"))
    if len(found) != 1:
        there = "it has none" if not found else f"it has {', '.join(str(path) for path in found)}"
        raise SweepError(
            f"give the folder of a sweep's run: {_RUNS} must have one for it to be left out, {there}"
        )
    return RunFolder(found[0])
