"""`make gpu-check`: everything that polyhead promises of a GPU, measured on this machine in eight minutes.

Needs an NVIDIA GPU, torch with CUDA and onnxruntime-gpu, but not polyhead's own set of versions: those in use
are written down. `--device cpu --tiny` tries the code without a GPU.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpu.budget import Budget, Deadline
from gpu.journal import Found, Journal
from gpu.plan import PARTS, SECONDS, SHARES, Plan, full, tiny
from gpu.report import card_of, write
from gpu.runner import NO_CARD, NoDeviceError, Runner
from gpu.targets import Target, judge

console = Console()
if not console.is_terminal:
    console.width = 140


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check, or one part of it; what it does not know is for `polyhead serve`."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders: a try-out")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument("--models", type=Path, help="where exports are kept (default: build/gpu-models)")
    parser.add_argument("--out", type=Path, help="without its ending (default: named after the card)")
    parser.add_argument("--work", type=Path, default=Path("build/gpu-check"), help="for the journal and logs")
    for hidden in ("--part", "--export"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--allowed", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    chosen, serve_arguments = parser.parse_known_args(arguments)
    chosen.models = chosen.models or Path("build/gpu-models-tiny" if chosen.tiny else "build/gpu-models")
    plan = tiny(chosen.device) if chosen.tiny else full(chosen.device)
    if chosen.export:
        return _export(plan, chosen)
    if chosen.part:
        return _run_part(plan, chosen, serve_arguments)
    return _check(plan, chosen, serve_arguments)


def _check(plan: Plan, chosen: argparse.Namespace, serve_arguments: Sequence[str]) -> int:
    """Runs the parts, each in a process of its own, and writes the report as it grows."""
    # One card: a server would take all.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    # The environment always: a report without it says nothing.
    parts = [part for part in SHARES if part in {"environment", "export", *chosen.parts}]
    if set(parts) <= {"environment", "export", "kernels"}:
        parts.remove("export")
    journal = Journal(chosen.work / f"{time.strftime('%Y%m%dT%H%M%S')}.jsonl")
    budget = Budget(chosen.seconds, {part: SHARES[part] for part in parts})
    own = [sys.executable, str(Path(__file__)), "--device", chosen.device, "--models", str(chosen.models)]
    own += ["--tiny"] if chosen.tiny else []

    def command(part: str, allowed: float) -> list[str]:
        mine = ["--part", part, "--journal", str(journal.path), "--allowed", str(allowed)]
        return [*own, *mine, "--parts", *chosen.parts, *serve_arguments]

    columns = (TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console) as progress:
        tasks = {part: progress.add_task(part, start=False, total=None, state="") for part in parts}
        written = -1

        def seen(part: str) -> None:
            nonlocal written
            found = journal.read()
            one = found[part]
            progress.start_task(tasks[part])
            state = one.state if one.state != "running" else f"{len(one.rows)} results"
            progress.update(tasks[part], state=state)
            if one.state != "running":
                progress.stop_task(tasks[part])
            size = journal.path.stat().st_size
            if size != written and "environment" in found and found["environment"].state != "running":
                written = size
                write(_out(chosen, found), found, judge(found, plan), tiny=chosen.tiny)

        runner = Runner(
            journal=journal, budget=budget, command=command, logs=journal.path.with_suffix(""), seen=seen
        )
        try:
            runner.run(parts)
        except NoDeviceError as error:
            console.print(f"[bold]nothing was measured[/]: {error}", highlight=False)
            return 1
        except KeyboardInterrupt:
            console.print(f"interrupted; what was measured is in {journal.path}", highlight=False)
            return 130
    found = journal.read()
    targets, out = judge(found, plan), _out(chosen, found)
    write(out, found, targets, tiny=chosen.tiny)
    console.print(_summary(targets))
    console.print(f"{out}.md and .json; what the parts printed is in {journal.path.with_suffix('')}")
    for part, one in found.items():
        for note in one.notes:
            console.print(f"{part}: {note}", style="yellow", markup=False)
    broken = [f"{part}: {one.problem}" for part, one in found.items() if one.state not in {"done", "in part"}]
    for line in broken:
        console.print(line, style="bold red", markup=False)
    return 1 if broken else 0


def _run_part(plan: Plan, chosen: argparse.Namespace, serve_arguments: Sequence[str]) -> int:
    """Runs one part in this process."""
    deadline = Deadline(chosen.allowed)  # before what takes a while to import
    from gpu.card import NoCardError, open_card
    from gpu.exporting import export_all
    from gpu.part import Bench, reason
    from gpu.parts import needed_by, run_part

    try:
        card = open_card(chosen.device)
    except NoCardError as error:
        print(error)
        return NO_CARD
    bench = Bench(
        part=chosen.part,
        card=card,
        plan=plan,
        models=chosen.models,
        journal=Journal(chosen.journal),
        deadline=deadline,
        serve_arguments=tuple(serve_arguments),
    )
    try:
        if chosen.part == "export":
            own = [sys.executable, str(Path(__file__)), "--device", chosen.device]
            own += ["--models", str(chosen.models), *(["--tiny"] if chosen.tiny else [])]
            export_all(
                bench,
                needed_by(plan, chosen.parts),
                lambda family, threads: [*own, "--export", family.key, "--threads", str(threads)],
            )
        else:
            run_part(bench)
    except NoCardError as error:
        print(error)
        return NO_CARD
    except Exception as error:
        bench.journal.end(chosen.part, "failed", chosen.allowed - deadline.left, reason(error))
        raise
    state, problem = bench.journal.read().get(chosen.part, Found()).outcome(chosen.part)
    bench.journal.end(chosen.part, state, chosen.allowed - deadline.left, problem)
    return 0


def _export(plan: Plan, chosen: argparse.Namespace) -> int:
    """Exports one family in this process."""
    import torch

    from gpu.families import by_key, export

    torch.set_num_threads(chosen.threads)
    export(by_key(plan, chosen.export), chosen.models)
    return 0


def _out(chosen: argparse.Namespace, found: Mapping[str, Found]) -> Path:
    """Where the report goes: beside the others if it is a card's and whole, else where it is thrown away."""
    if chosen.out is not None:
        return Path(chosen.out)
    whole = set(chosen.parts) == set(PARTS) and chosen.device == "cuda" and not chosen.tiny
    folder = Path(__file__).parent / "results" if whole else Path("build/bench")
    return folder / f"gpu-{_slug(card_of(found) or 'unknown')}"


def _slug(name: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return "-".join(word for word in words if word != "nvidia")


def _summary(targets: Sequence[Target]) -> Table:
    shown = Table("target", "met", "seen")
    for target in targets:
        shown.add_row(target.name, {True: "yes", False: "[bold red]no", None: "–"}[target.met], target.seen)
    return shown


if __name__ == "__main__":
    sys.exit(main())
