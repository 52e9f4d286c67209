"""`make gpu-check`: polyhead's graphs on this machine's GPU, measured and written as one page.

Needs an NVIDIA GPU, torch with CUDA and onnxruntime-gpu; the versions in use are on the page. `--device cpu
--tiny` tries the code without a GPU.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.page import begun, finish, options
from benchmarks.rounds import Condition, console, markdown_table, spell_number

_PARTS = {
    "families": ("Exports", 95),
    "kinds": ("The machine, and where graphs are computed", 35),
    "parity": ("Parity with PyTorch", 40),
    "shapes": ("New shapes", 15),
    "lengths": ("Natural lengths, and attention", 90),
    "outputs": ("Outputs of a server", 50),
    "served": ("Served", 35),
}
"""The parts, each a module of `gpu`, in the order of their value, with their headings and their time limits
in seconds: six minutes in all."""
_PATIENCE = 5
"""How many times as long parts may take where only the code is tried."""
_NO_DEVICE = 3
_PROCESSES = get_context("forkserver")


def main() -> int:
    """Run the check: each part in a process of its own, so that a crash or a hang ends only that part."""
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    chosen = begun(parser.parse_args(), seconds=4.0, rounds=5)
    # What all parts import, once. It does not touch the GPU.
    _PROCESSES.set_forkserver_preload(["torch", "onnxruntime", "polyhead_export"])
    found: dict[str, list[dict[str, Any]]] = {}
    for part in (part for part in _PARTS if part in chosen.parts):
        status, found[part] = _run(part, chosen)
        if status == _NO_DEVICE:
            console.print(found[part][-1]["reason"], "nothing was measured", style="bold red")
            return 1
    failed = [part for part, rows in found.items() if not _of(rows, "row")]
    seen = ", ".join(f"{part} did not: see {chosen.out}/gpu-{part}.log" for part in failed)
    every = [row for rows in found.values() for row in rows]
    device = next((row["name"] for row in _of(every, "device")), "unknown")
    slug = "-".join("".join(letter if letter.isalnum() else " " for letter in device.lower()).split())
    status = finish(
        chosen,
        f"gpu-{slug.removeprefix('nvidia-')}",
        "make gpu-check",
        f"{device}: polyhead's graphs",
        [line for part, rows in found.items() for line in _section(_PARTS[part][0], rows)],
        conditions=[
            *conditions_of(_of(every, "target")),
            Condition(name="every part measured something", holds=not failed, seen=seen or "all did"),
        ],
        facts={"parts": found},
    )
    return 1 if failed else status


def conditions_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[Condition]:
    """Yield every target with the worst of its values: met, missed or not run."""
    from benchmarks.gpu.plan import TARGETS

    for key, (name, sign, limit) in TARGETS.items():
        values = sorted(row["value"] for row in rows if row["key"] == key)
        worst = values[0 if sign == "≥" else -1] if values else None
        holds = None if worst is None else worst >= limit if sign == "≥" else worst <= limit
        seen = "" if worst is None else spell_number(worst)
        yield Condition(name=f"{name} {sign} {limit:g}", holds=holds, seen=seen)


def _section(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a part: its table, its remarks and its problems."""
    yield from (f"## {title}", "", *markdown_table(row["cells"] for row in _of(rows, "row")))
    for row in _of(rows, "line"):
        yield from (row["text"], "")
    for row in _of(rows, "problem"):
        yield from (f"**{row['what']}**: {row['reason']}", "")


def _of(rows: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def _run(part: str, chosen: Namespace) -> tuple[int, list[dict[str, Any]]]:
    """Run a part in a process of its own, and show how far it is; return its status, and its results."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    results, log = (chosen.out / f"gpu-{part}.{suffix}" for suffix in ("jsonl", "log"))
    results.write_text("")
    log.write_text("")
    # What `begun` has added cannot be sent.
    sent = Namespace(**{name: value for name, value in vars(chosen).items() if name != "disturbance"})
    process = _PROCESSES.Process(target=_run_part, args=(part, sent, results, log))
    process.start()
    assert process.pid is not None
    began, limit = time.monotonic(), _PARTS[part][1] * (_PATIENCE if chosen.tiny else 1)
    try:
        with console.status("") as shown:
            while process.is_alive() and (seconds := time.monotonic() - began) < limit:
                count = results.read_text().count("\n")
                shown.update(f"{part}: {seconds:.0f} of {limit} s, {count} results")
                process.join(0.2)
        status = -signal.SIGKILL if process.exitcode is None else process.exitcode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    if status:
        last = (log.read_text(errors="replace").strip() or "it printed nothing").splitlines()[-1]
        _append(results, "problem", what=part, reason=f"it ended with status {status}: {last}"[:300])
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    console.print(f"{part}: {time.monotonic() - began:.0f} s, {len(rows)} results")
    return status, rows


def _run_part(part: str, chosen: Namespace, results: Path, log: Path) -> None:
    """Run a part in this process, which ends with its status."""
    os.setsid()  # a process group, with the servers and callers that the part starts
    with log.open("w") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    import torch

    from benchmarks.gpu.plan import Check, device_of, families_of
    from polyhead_server.errors import DeviceError

    # One GPU, since a server would use all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        device = device_of(chosen.device)
    except DeviceError as error:
        print(error)
        sys.exit(_NO_DEVICE)
    _append(results, "device", name="cpu" if device.host_memory else torch.cuda.get_device_name())
    check = Check(
        device=device,
        families=families_of(device, chosen.models.with_name(f"{chosen.models.name}-gpu"), tiny=chosen.tiny),
        tiny=chosen.tiny,
        seconds=chosen.seconds,
        write=lambda kind, **facts: _append(results, kind, **facts),
    )
    importlib.import_module(f"benchmarks.gpu.{part}").run(check)
    # Everything is written. Sessions, streams and compiled code need not be taken down in any order.
    sys.stdout.flush()
    os._exit(0)


def _append(results: Path, kind: str, **facts: object) -> None:
    """Write a result at once, so that a crash loses nothing."""
    with results.open("a") as file:
        file.write(json.dumps({"kind": kind, **facts}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
