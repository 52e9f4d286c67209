"""`polyhead sweep`: measure what each head configuration costs, and what it can carry."""

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.options import OPEN_ACCESS, Access

if TYPE_CHECKING:
    from polyhead_load.report.page import SweepReport

app = App(name="sweep")

_RUNS = Path("sweeps")
_MODELS = _RUNS / "model-repository"
"""Not `sweeps/models`: that is the folder of the preset `models`."""
_AtLeastOne = Parameter(validator=Number(gte=1))


@app.default
def sweep(
    sweep: str,
    /,
    *,
    out: Path | None = None,
    models: Path = _MODELS,
    address: str | None = None,
    access: Access = OPEN_ACCESS,
    blocks: Annotated[int | None, _AtLeastOne] = None,
    seconds: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    seed: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    loads: str | None = None,
    families: str | None = None,
    tokens: str | None = None,
    batch: str | None = None,
    outputs: str | None = None,
    serve: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    p99: str | None = None,
    rate: float | None = None,
    headroom: str | None = None,
    rounds: Annotated[int | None, Parameter(validator=Number(gte=3))] = None,
    search_seconds: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    foreign_cpu: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
) -> None:
    """Measure what each head configuration costs in latency, and report it.

    Missing families are exported, and a server is started for them. Measurements are kept as they are made:
    after a crash or Ctrl-C, the same command continues. Each family is measured alone; `polyhead load --model
    a,b` loads several together.

    ```sh
    polyhead sweep presets
    polyhead sweep ./models --rate 50 --p99 50ms
    polyhead sweep heads --out sweeps/heads
    ```

    Parameters
    ----------
    sweep
        A preset (`polyhead sweep presets` lists them), a .toml file, or a model repository: all its families.
    out
        The run's folder. Default: sweeps/NAME. A folder that holds this sweep already is continued.
    models
        The model repository, if the sweep starts its own server and is not of a repository itself.
    address
        A running server that has the families. Default: the sweep starts its own.
    access
        Certificates and the token for that server.
    blocks
        How often each cell is measured. Default: as the sweep says.
    seconds
        How long each measurement takes. Default: as the sweep says.
    seed
        The seed of order, arrivals, contents, and weights of what is exported. Default: as the sweep says. A
        second run needs another.
    loads
        How the configurations are called, such as "single,50%". Default: as the sweep says.
    families
        Which of the sweep's families to measure, such as minilm,minilm-int8. Default: all.
    tokens
        T: 64, or log-normal lengths: median=29,sigma=0.6,low=8,high=128; several are compared. Default: as
        the sweep says.
    batch
        B, sequences in a request: 20 for a reranker of 20 passages; several, such as 1,20, are compared.
        Default: as the sweep says, 1.
    outputs
        What is fetched of each reply, such as pooled; several, such as output,output+attention, are compared.
        Default: as the sweep says; otherwise pooled where a family has it, else logits, else output.
    serve
        Flags for the sweep's own server, such as "--threads 1 --device cpu".
    p99
        Search the largest rate at which 99 of 100 requests keep this latency, such as 50ms: the capacity.
    rate
        Choose the configurations whose capacity is enough for this many requests a second, with the headroom.
    headroom
        The share of a machine's capacity that is left free. Default: as the sweep says, 30%.
    rounds
        How often the capacity is searched. Default: as the sweep says, 5.
    search_seconds
        How long a run of that search takes, at least. Default: as the sweep says, 10.
    foreign_cpu
        Most cores that other processes may use; a run meanwhile is void. Default: as the sweep says, 0.15.
    """
    from rich.console import Console

    from polyhead_load.errors import SweepError
    from polyhead_load.options import parse_batch, parse_tokens
    from polyhead_load.report.page import write_report
    from polyhead_load.sweep.progress import SweepProgress
    from polyhead_load.sweep.reading import read_sweep, repository_run
    from polyhead_load.sweep.sweeping import run_sweep
    from polyhead_load.sweep.target import choose_target

    flags = None if serve is None else tuple(shlex.split(serve))
    only = None if loads is None else tuple(loads.split(","))
    changes = {
        "blocks": blocks,
        "seconds": seconds,
        "seed": seed,
        "tokens": None if tokens is None else parse_tokens(tokens),
        "batch": None if batch is None else parse_batch(batch),
        "outputs": None if outputs is None else tuple(outputs.split(",")),
        "rounds": rounds,
        "search_seconds": search_seconds,
    }
    chosen = None if families is None else families.split(",")
    name, what = read_sweep(
        sweep, families=chosen, **changes, loads=only, serve=flags, foreign_cpu=foreign_cpu
    )
    target = choose_target(what.target, p99=p99, rate=rate, headroom=headroom)
    what = what.model_copy(update={"target": target})
    path = out or _RUNS / name
    models = Path(sweep) if name == repository_run(Path(sweep)) else models
    # So that the sweep stops its server.
    signal.signal(signal.SIGTERM, _exit)
    command = ["polyhead", *map(shlex.quote, sys.argv[1:])]
    try:
        with SweepProgress(Console(stderr=True)) as progress:
            folder = run_sweep(
                what,
                path,
                models=models,
                address=address,
                access=access,
                command=command,
                progress=progress,
            )
            progress.step("writing the report")
            written = write_report(folder)
    except (KeyboardInterrupt, SystemExit):
        sys.stderr.write(f"{_interrupted(path)}\n")
        raise
    _show(written)
    if not any(row.valid for row in written.findings.rows):
        raise SweepError(
            "no run counts, so nothing was measured: the reasons are above; when they are gone, "
            "give the same command again"
        )


@app.command
def report(
    run: Path, /, *, p99: str | None = None, rate: float | None = None, headroom: str | None = None
) -> None:
    """Write the report of a run again, of what was measured so far.

    Parameters
    ----------
    run
        The run's folder.
    p99
        The latency whose capacity was searched. Default: as the sweep says.
    rate
        Choose the configurations whose capacity is enough for this many requests a second, with the headroom.
    headroom
        The share of a machine's capacity that is left free. Default: 30%.
    """
    from rich.console import Console

    from polyhead_load.report.page import write_report
    from polyhead_load.sweep.folder import RunFolder

    with Console(stderr=True).status("reading what was measured"):
        written = write_report(RunFolder(run), p99=p99, rate=rate, headroom=headroom)
    _show(written)


@app.command
def presets(name: str | None = None, /) -> None:
    """List the presets, or print one as the file that it is.

    Parameters
    ----------
    name
        The preset to print, as a start for a file of your own.
    """
    from rich.console import Console

    from polyhead_load.errors import SweepError
    from polyhead_load.sweep.reading import preset_files, read_sweep
    from polyhead_model.description import near

    texts = preset_files()
    if name is not None:
        if name not in texts:
            raise SweepError(f"the preset must be one of {', '.join(texts)}, was {name!r}{near(name, texts)}")
        sys.stdout.write(texts[name])
        return
    console = Console()
    for preset in texts:
        _, what = read_sweep(preset)
        console.print(f"[bold]{preset}[/]: {what.title}", highlight=False)
        console.print(f"  {what.about}", highlight=False, style="dim")


def _show(report: "SweepReport") -> None:
    from rich.console import Console

    from polyhead_load.report.choice import choose_lines, choose_table
    from polyhead_load.report.tables import remarks, terminal_table
    from polyhead_load.sweep.intervals import FEWEST_BLOCKS

    console, findings = Console(), report.findings
    console.print(terminal_table(findings))
    console.print(choose_table(report.options, findings.sweep.varied, report.target))
    lines = [*choose_lines(report.options, report.target), *remarks(findings)]
    lines.append(f"{report.page}, and report.json, plots/ beside it")
    if findings.sweep.blocks < FEWEST_BLOCKS:
        lines.append(
            f"next: fewer than {FEWEST_BLOCKS} blocks show that measuring works, not what differs; `polyhead "
            "sweep heads` compares 1 to 24 heads, `polyhead sweep presets` lists more"
        )
    elif report.target is None:
        lines.append(
            "next: the same command with --p99 50ms measures the largest rate that each configuration holds"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _interrupted(path: Path) -> str:
    """Return what is kept of an interrupted sweep, and how to go on."""
    from polyhead_load.sweep.folder import RunFolder

    count = len(RunFolder(path).journal().measurements)
    if not count:
        return "interrupted before the first run: give the same command again to start over"
    return (
        f"interrupted: {count} runs are kept in {path}; give the same command again to go on, or "
        f"`polyhead sweep report {shlex.quote(str(path))}` to see what they say"
    )


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
