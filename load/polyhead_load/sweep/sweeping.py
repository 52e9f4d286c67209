"""A sweep from end to end: families, server, runs, report."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.sweep import memory
from polyhead_load.sweep.families import Family, provide
from polyhead_load.sweep.fingerprint import fingerprint, hashes
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.graphs import inspect, kernel
from polyhead_load.sweep.processes import generate
from polyhead_load.sweep.progress import Bar
from polyhead_load.sweep.runner import Group, Runner
from polyhead_load.sweep.server import RunningServer, Server, own_server
from polyhead_load.sweep.spec import Sweep

_SHARE_OF_MEMORY = 0.6
"""What the families that are served together may take of the free memory."""


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
    """Measures what `out` does not hold yet.

    Args:
        sweep: What.
        out: The run's folder.
        models: The model repository, for a server of the sweep's own.
        address: A server that runs; None starts one.
        access: What that server asks of its callers.
        command: What was called, for the report.
        bar: Is told how far it is.

    Raises:
        SweepError: It cannot begin, or go on.
    """
    folder = RunFolder(out)
    facts: dict[str, Any] = {"fingerprint": fingerprint(command)}
    families: Mapping[str, Family] = {}
    groups: list[Group]
    if address is None:
        if out.exists():
            folder.begin(sweep, {})  # before anything is exported for a folder that is another sweep's
        provided = provide(sweep, models, on_step=bar.say)
        families = provided.families
        groups = grouped(list(families.values()), int(_SHARE_OF_MEMORY * memory.available()))
        facts |= {
            "skipped": dict(provided.skipped),
            "families": {name: _about(family.manifest) for name, family in families.items()},
            "hashes": hashes({name: family.manifest for name, family in families.items()}),
            "server": "its own: polyhead serve " + " ".join(sweep.serve),
        }
        for name, why in provided.skipped.items():
            bar.skipped(name, why)
    else:
        groups = [tuple(sweep.families)]
        facts |= {"skipped": {}, "families": {}, "server": f"at {address}"}
        RunningServer(address, access)  # before the folder is made
    facts = folder.begin(sweep, facts)
    start = partial(_running, address, access) if address else partial(_own, families, folder, sweep.serve)
    with Runner(
        sweep, folder, groups, start=start, own=address is None, generate=generate, watcher=bar
    ) as runner:
        bar.say("starting the server")
        try:
            runner.run()
        finally:
            facts = {**facts, "skipped": {**facts["skipped"], **runner.skipped}}
            facts = _learned(facts, runner.properties)
            folder.note(facts)
    if "graphs" not in facts and families:
        bar.say("looking at the graphs")
        facts["graphs"] = _graphs(families.values(), facts["providers"], _asked(sweep))
        folder.note(facts)
    return folder


def grouped(families: Sequence[Family], most_bytes: int) -> list[Group]:
    """Families that fit into the memory together, in their order; each in one group."""
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
    """What a report says about a family."""
    encoder = {name: value for name, value in manifest["encoder"].items() if value is not None}
    return {
        "encoder": encoder,
        "precision": manifest.get("precision"),
        "parameters": manifest.get("numbers", {}).get("parameters"),
        "tools": manifest.get("tools", {}),
    }


def _learned(facts: dict[str, Any], properties: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Adds what the server has said about its families."""
    said = {
        name: {
            "encoder": {
                field: int(value) if value.isdecimal() else value
                for field in ("d_model", "heads", "head_width", "layers", "causal", "pooling")
                if (value := its.get(field, ""))
            },
            "precision": its.get("precision"),
            "parameters": int(its["parameters"]) if its.get("parameters", "").isdecimal() else None,
        }
        for name, its in properties.items()
    }
    providers = {name: its.get("execution_provider", "") for name, its in properties.items()}
    return {
        **facts,
        "families": {**said, **facts["families"]},
        "providers": {**facts.get("providers", {}), **providers},
    }


def _asked(sweep: Sweep) -> set[str]:
    """Which graphs the sweep calls."""
    return {"fast" if mode.layers is None else "attention" for mode in sweep.attention}


def _graphs(
    families: Collection[Family],
    providers: Mapping[str, str],
    asked: Collection[str],
    inspecting: Callable[[Sequence[Path], str], dict[str, Any]] = inspect,
) -> dict[str, Any]:
    """Family → graph → its operators and the kind of its kernel."""
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
