"""`make gpu-check`: what a GPU makes of polyhead's graphs, measured on this machine, as one page.

Needs an NVIDIA GPU, torch with CUDA and onnxruntime-gpu; the versions in use are written down. `--device cpu
--tiny` tries the code without a GPU.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from gpu.page import page

PARTS = {"machine": 40, "families": 200, "parity": 80, "kernels": 60, "speed": 180, "served": 150}
"""Each part, a module of `gpu`, and the seconds after which it is ended."""
_NO_DEVICE = 3

console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, or one part of it in this process."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, to try the code")
    parser.add_argument(
        "--models", type=Path, default=Path("build/gpu-models"), help="where exports are kept"
    )
    parser.add_argument("--out", type=Path, help="the page (default: named after the GPU)")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    return _run_part(chosen) if chosen.part else _check(chosen)


def _check(chosen: argparse.Namespace) -> int:
    """Run each part in a process of its own: one that crashes or hangs takes nothing with it."""
    parts = [part for part in PARTS if part in {"machine", *chosen.parts}]
    if set(parts) - {"machine"}:
        parts = [part for part in PARTS if part in {"families", *parts}]  # what the others measure
    journal = Path("build/gpu-check") / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    journal.mkdir(parents=True)
    failed = []
    for part in parts:
        start = time.monotonic()
        with console.status(f"{part} …"):
            status = _run(part, chosen, journal)
        found = _read(journal, parts)
        problems = [row for row in found[part] if row["kind"] == "problem"]
        console.print(
            f"{part}: {time.monotonic() - start:.0f} s, {len(found[part]) - len(problems)} results"
            + "".join(f"\n  {row['what']}: {row['reason']}" for row in problems),
            markup=False,
            highlight=False,
        )
        if status == _NO_DEVICE:
            console.print("nothing was measured", style="bold red")
            return 1
        if status != 0 or len(problems) == len(found[part]):
            failed.append(part)
        out = _out(chosen, found)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(found, tiny=chosen.tiny))
    console.print(f"{out}; results and logs are in {journal}", highlight=False)
    for part in failed:
        console.print(f"{part} failed: see {journal / part}.log", style="bold red", highlight=False)
    return 1 if failed else 0


def _run(part: str, chosen: argparse.Namespace, journal: Path) -> int:
    own = [sys.executable, str(Path(__file__)), "--part", part, "--journal", str(journal / f"{part}.jsonl")]
    own += ["--device", chosen.device, "--models", str(chosen.models), *(["--tiny"] if chosen.tiny else [])]
    with (
        (journal / f"{part}.log").open("w") as log,
        # A process group of its own, with the servers and callers that it starts.
        subprocess.Popen(own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        reason = ""
        try:
            status = process.wait(PARTS[part])
            if status not in {0, _NO_DEVICE}:
                reason = f"it ended with status {status}"
        except subprocess.TimeoutExpired:
            status, reason = -signal.SIGKILL, f"it was ended after {PARTS[part]} s"
        finally:
            _end_group(process)
    if reason or status == _NO_DEVICE:
        lines = (journal / f"{part}.log").read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        _append(
            journal / f"{part}.jsonl", "problem", what=part, reason=f"{reason}: {last}".lstrip(": ")[:300]
        )
    return status


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _run_part(chosen: argparse.Namespace) -> int:
    from gpu.device import Device, NoDeviceError
    from gpu.plan import Check, full, tiny

    # One GPU: a server would take all.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        device = Device(chosen.device)
    except NoDeviceError as error:
        print(error)
        return _NO_DEVICE
    check = Check(
        device=device,
        plan=(tiny if chosen.tiny else full)(chosen.device),
        models=chosen.models / ("tiny" if chosen.tiny else "full"),
        write=lambda kind, **facts: _append(chosen.journal, kind, **facts),
    )
    importlib.import_module(f"gpu.{chosen.part}").run(check)
    return 0


def _append(journal: Path, kind: str, **facts: object) -> None:
    """Add a line at once: a crash keeps everything that was measured."""
    with journal.open("a") as file:
        file.write(json.dumps({"kind": kind, **facts}) + "\n")


def _read(journal: Path, parts: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """Each part's results so far."""
    files = {part: journal / f"{part}.jsonl" for part in parts if (journal / f"{part}.log").exists()}
    return {
        part: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        for part, file in files.items()
    }


def _out(chosen: argparse.Namespace, found: Mapping[str, Sequence[Mapping[str, object]]]) -> Path:
    """Where the page goes: beside the other results when it is a GPU's and whole."""
    if chosen.out is not None:
        return Path(chosen.out)
    name = next((str(row["device"]) for row in found["machine"] if row["kind"] == "machine"), "unknown")
    slug = "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())
    whole = set(chosen.parts) == set(PARTS) and chosen.device == "cuda" and not chosen.tiny
    folder = Path(__file__).parent / "results" if whole else Path("build/bench")
    return folder / f"gpu-{slug.removeprefix('nvidia-')}.md"


if __name__ == "__main__":
    sys.exit(main())
