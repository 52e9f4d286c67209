"""A sweep from end to end: families, server, runs, report."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.sweep.families import Family, available_bytes, provide
from polyhead_load.sweep.fingerprint import fingerprint, hashes
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.graphs import inspect, kernel
from polyhead_load.sweep.processes import generate
from polyhead_load.sweep.progress import Bar
from polyhead_load.sweep.runner import Group, Runner
from polyhead_load.sweep.server import RunningServer, Server, own_server, serve_arguments
from polyhead_load.sweep.spec import Sweep
from polyhead_proto.names import Property

_SHARE_OF_MEMORY = 0.6
"""What the families that are served together may take of the free memory."""

_ENCODER_PROPERTIES = (
    Property.D_MODEL,
    Property.HEADS,
    Property.HEAD_WIDTH,
    Property.LAYERS,
    Property.CAUSAL,
    Property.POOLING,
)
"""Properties that describe a family's encoder."""


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    models: Path,
    address: str | None,
    access: Access = OPEN_ACCESS,
    command: Sequence[str],
    bar: Bar,
) -> RunFolder:
    """Measure what `out` does not hold yet.

    Args:
        sweep: What.
        out: The run's folder.
        models: The model repository, for a server of the sweep's own.
        address: A server that runs; None starts one.
        access: What that server asks of its callers.
        command: What was called, for the report.
        bar: Shows the progress.

    Raises:
        SweepError: It cannot begin, or go on.
    """
    folder = RunFolder(out)
    if address is not None:
        version = RunningServer(address, access).version  # before the folder is made
        server = f"at {address}, version {version}"
    else:
        arguments = serve_arguments("MODELS", "PORT", ["--metrics-port", "off", *sweep.serve])
        server = f"its own: polyhead {' '.join(arguments)}"
    with folder.locked():
        folder.begin(sweep, {"fingerprint": _machine(command, address), "server": server, "skipped": {}})
        if address is None:
            families, facts = _provided(sweep, models, folder, bar)
            groups = grouped(list(families.values()), int(_SHARE_OF_MEMORY * available_bytes()))
            start = partial(_own, families, folder, sweep.serve)
        else:
            families, facts = {}, {"skipped": {}, "families": {}}
            groups = [tuple(sweep.families)]
            start = partial(_running, address, access)
        with Runner(
            sweep, folder, groups, start=start, own=address is None, generate=generate, bar=bar
        ) as runner:
            _measure(runner, folder, facts, bar)
        facts = folder.read()[1]
        if "graphs" not in facts and families:
            bar.say("looking at the graphs")
            folder.note({"graphs": _graphs(families.values(), facts["providers"], _asked(sweep))})
    return folder


def _machine(command: Sequence[str], address: str | None) -> dict[str, Any]:
    found = fingerprint(command)
    if address is not None:
        found["machine"] = "the generator's; what of the server's is known is what the server says"
    return found


def _provided(
    sweep: Sweep, models: Path, folder: RunFolder, bar: Bar
) -> tuple[Mapping[str, Family], dict[str, Any]]:
    """Return the families for a server of the sweep's own, and what the report says of them."""
    provided = provide(sweep, models, on_step=bar.say)
    for name, why in provided.skipped.items():
        bar.skipped(name, why)
    known = {"hashes": hashes({name: family.manifest for name, family in provided.families.items()})}
    folder.require(known)
    held = folder.read()[1]
    about = {name: _about(family.manifest) for name, family in provided.families.items()}
    facts = {
        "skipped": dict(provided.skipped),
        "families": {**held.get("families", {}), **about},
        "hashes": {**held.get("hashes", {}), **known["hashes"]},
    }
    folder.note(facts)
    return provided.families, facts


def _measure(runner: Runner, folder: RunFolder, facts: dict[str, Any], bar: Bar) -> None:
    measured = folder.journal().measurements
    if measured and not runner.missing:
        bar.remark(
            f"all is measured already, the last on {measured[-1].started}: give another --out for a new run"
        )
    else:
        bar.say("starting the server")
    try:
        runner.run()
    finally:
        held = folder.read()[1]
        skipped = {**facts["skipped"], **runner.skipped}
        families = {**held.get("families", {}), **facts["families"]}
        known = {**held, **facts, "skipped": skipped, "families": families}
        folder.note(_learned(known, runner.properties))


def grouped(families: Sequence[Family], most_bytes: int) -> list[Group]:
    """Group families that fit into the memory together, in their order."""
    groups: list[list[str]] = []
    left = 0
    for family in families:
        if not groups or family.serving_bytes > left:
            groups.append([])
            left = most_bytes
        groups[-1].append(family.name)
        left -= family.serving_bytes
    return [tuple(group) for group in groups]


@contextmanager
def _own(
    families: Mapping[str, Family], folder: RunFolder, flags: Sequence[str], group: Group
) -> Iterator[Server]:
    with own_server([families[name] for name in group], folder.log, flags) as server:
        yield server


@contextmanager
def _running(address: str, access: Access, _: Group) -> Iterator[Server]:
    yield RunningServer(address, access)


def _about(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report says about a family."""
    encoder = {name: value for name, value in manifest["encoder"].items() if value is not None}
    return {
        "encoder": encoder,
        "precision": manifest.get("precision"),
        "parameters": manifest.get("numbers", {}).get("parameters"),
        "tools": manifest.get("tools", {}),
    }


def _learned(facts: dict[str, Any], properties: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Add what the server has said about its families."""
    said = {
        name: {
            "encoder": {
                field: int(value) if value.isdecimal() else value
                for field in _ENCODER_PROPERTIES
                if (value := its.get(field, ""))
            },
            "precision": its.get(Property.PRECISION),
            "parameters": int(count) if (count := its.get(Property.PARAMETERS, "")).isdecimal() else None,
        }
        for name, its in properties.items()
    }
    providers = {name: its.get(Property.EXECUTION_PROVIDER, "") for name, its in properties.items()}
    return {
        **facts,
        "families": {**said, **facts["families"]},
        "providers": {**facts.get("providers", {}), **providers},
    }


def _asked(sweep: Sweep) -> set[str]:
    """Return which graphs the sweep calls."""
    return {"fast" if mode.layers is None else "attention" for mode in sweep.attention}


def _graphs(
    families: Collection[Family],
    providers: Mapping[str, str],
    asked: Collection[str],
    inspecting: Callable[[Sequence[Path], str], dict[str, Any]] = inspect,
) -> dict[str, Any]:
    """Return family → graph → its operators and the kind of its kernel."""
    found: dict[str, Any] = {}
    for family in families:
        provider = providers.get(family.name, "")
        if not provider:
            continue
        files = {
            name: family.folder / graph["file"]
            for name, graph in family.manifest["graphs"].items()
            if name in asked
        }
        seen = inspecting(list(files.values()), provider)
        if "problem" in seen:
            return {"problem": seen["problem"]}
        found[family.name] = {
            name: {**seen[str(path)], "kernel": kernel(seen[str(path)]["operators"], provider)}
            for name, path in files.items()
        }
    return found
