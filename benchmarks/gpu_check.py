"""`make gpu-check`: polyhead's graphs on this machine's GPU, measured and written as one page.

Needs an NVIDIA GPU, torch with CUDA and onnxruntime-gpu; the versions in use are on the page. `--device cpu
--tiny` tries the code without a GPU.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.gpu.page import page
from benchmarks.rounds import console

_PARTS = {"machine": 40, "families": 200, "parity": 80, "kernels": 60, "speed": 180, "served": 150}
"""The parts, each a module of `gpu`, and their time limits in seconds."""
_NO_DEVICE = 3
_PROCESSES = get_context("forkserver")


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, to try the code")
    parser.add_argument(
        "--models", type=Path, default=Path("build/gpu-models"), help="where exports are stored"
    )
    parser.add_argument("--out", type=Path, help="the page (default: named after the GPU)")
    chosen = parser.parse_args()
    # What all parts import, once. It does not touch the GPU.
    _PROCESSES.set_forkserver_preload(["torch", "onnxruntime", "polyhead_export"])
    return _check(chosen)


def _check(chosen: argparse.Namespace) -> int:
    """Run each part in a process of its own, so that a crash or a hang ends only that part."""
    wanted = {"machine", *chosen.parts}
    if wanted != {"machine"}:
        wanted.add("families")  # exports the graphs of the others
    journal = Path("build/gpu-check") / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    journal.mkdir(parents=True)
    found: dict[str, list[dict[str, object]]] = {}
    failed = []
    for part in _PARTS:
        if part not in wanted:
            continue
        start = time.monotonic()
        with console.status(f"{part} …"):
            status = _run(part, chosen, journal)
        file = journal / f"{part}.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        found[part] = rows
        problems = [row for row in rows if row["kind"] == "problem"]
        console.print(
            f"{part}: {time.monotonic() - start:.0f} s, {len(rows) - len(problems)} results"
            + "".join(f"\n  {row['what']}: {row['reason']}" for row in problems),
            markup=False,
            highlight=False,
        )
        if status == _NO_DEVICE:
            console.print("nothing was measured", style="bold red")
            return 1
        if status != 0 or len(problems) == len(rows):
            failed.append(part)
        out = _out(chosen, found)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(found, tiny=chosen.tiny))
    console.print(f"{out}; results and logs are in {journal}", highlight=False)
    for part in failed:
        console.print(f"{part} failed: see {journal / part}.log", style="bold red", highlight=False)
    return 1 if failed else 0


def _run(part: str, chosen: argparse.Namespace, journal: Path) -> int:
    """Run a part in a process of its own; return its status."""
    results, log = journal / f"{part}.jsonl", journal / f"{part}.log"
    process = _PROCESSES.Process(target=_run_part, args=(part, chosen, results, log))
    log.touch()
    process.start()
    assert process.pid is not None
    try:
        process.join(_PARTS[part])
        if process.exitcode is None:
            status, reason = -signal.SIGKILL, f"it was ended after {_PARTS[part]} s: "
        else:
            status = process.exitcode
            reason = "" if status in {0, _NO_DEVICE} else f"it ended with status {status}: "
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    if status:
        printed = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = printed[-1] if printed else "it printed nothing"
        _append(results, "problem", what=part, reason=(reason + last)[:300])
    return status


def _run_part(part: str, chosen: argparse.Namespace, journal: Path, log: Path) -> None:
    """Run a part in this process, which ends with its status."""
    os.setsid()  # a process group, with the servers and callers that the part starts
    with log.open("w") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    from benchmarks.gpu.device import NoDeviceError, TimedDevice
    from benchmarks.gpu.plan import Check, full, tiny

    # One GPU, since a server would use all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        device = TimedDevice(chosen.device)
    except NoDeviceError as error:
        print(error)
        sys.exit(_NO_DEVICE)
    check = Check(
        device=device,
        plan=(tiny if chosen.tiny else full)(chosen.device),
        models=chosen.models / ("tiny" if chosen.tiny else "full"),
        write=lambda kind, **facts: _append(journal, kind, **facts),
    )
    importlib.import_module(f"benchmarks.gpu.{part}").run(check)


def _append(journal: Path, kind: str, **facts: object) -> None:
    """Write a result at once, so that a crash loses nothing."""
    with journal.open("a") as file:
        file.write(json.dumps({"kind": kind, **facts}) + "\n")


def _out(chosen: argparse.Namespace, found: Mapping[str, Sequence[Mapping[str, object]]]) -> Path:
    """Return the page's path: among the committed results if it is a GPU's, and complete."""
    if chosen.out is not None:
        return Path(chosen.out)
    name = next((str(row["name"]) for row in found["machine"] if row["kind"] == "device"), "unknown")
    slug = "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())
    complete = set(chosen.parts) == set(_PARTS) and chosen.device == "cuda" and not chosen.tiny
    folder = Path(__file__).parent / "results" if complete else Path("build/bench")
    return folder / f"gpu-{slug.removeprefix('nvidia-')}.md"


if __name__ == "__main__":
    sys.exit(main())
