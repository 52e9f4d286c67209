"""The page of a check: targets first, then the results of each part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from benchmarks.frame import markdown_table, spell_number

Rows = Sequence[Mapping[str, Any]]
"""The results of one part."""

_PARITY = {"fp32": ("every output", 1e-5), "fp16": ("pooled output", 1e-3)}


def page(found: Mapping[str, Rows], *, tiny: bool) -> str:
    """Return the page in Markdown.

    Args:
        found: The results by part, in order.
        tiny: Whether the encoders are tiny ones, to try the code.
    """
    device = next((row["device"] for row in _of(found, "machine", "machine")), "unknown")
    lines = [f"# {device}: polyhead's graphs", ""]
    lines += ["Made by `make gpu-check`. Ratios compare within this run; the rest is this machine's.", ""]
    if tiny:
        lines += ["**Tiny encoders, to try the code: the numbers mean nothing.**", ""]
    lines += ["## Targets", "", *markdown_table(_targets(found))]
    for part in found:
        title, section = _SECTIONS[part]
        lines += [f"## {title}", "", *section(found)]
        problems = [f"- **{row['what']}**: {row['reason']}" for row in _of(found, part, "problem")]
        lines += [*problems, ""] if problems else []
    return "\n".join(lines).rstrip() + "\n"


def _targets(found: Mapping[str, Rows]) -> Iterable[dict[str, str]]:
    def target(name: str, met: bool | None, seen: str) -> dict[str, str]:
        return {"target": name, "met": {None: "–", True: "yes", False: "**no**"}[met], "seen": seen}

    def bounded(name: str, value: float | None, met: bool) -> dict[str, str]:
        if value is None:
            return target(name, None, "not measured")
        return target(name, isfinite(value) and met, _number(value))

    graphs = _of(found, "parity", "graph")
    for precision, (what, limit) in _PARITY.items():
        # 16 bits drift in every token's vector; people use the pooled ones.
        kinds = ("output", "pooled", "attention") if precision == "fp32" else ("pooled",)
        deviations = [
            value
            for row in graphs
            if row["family"].endswith(precision)
            for kind, value in row["worst"].items()
            if kind in kinds
        ]
        worst = max(deviations, default=None)
        name = f"{precision}: {what} within {limit:g} of PyTorch"
        yield bounded(name, worst, worst is not None and worst <= limit)

    left = {operator: count for row in graphs for operator, count in row["slow_on_cpu"].items()}
    yield target(
        "nothing but operators on shapes left to the CPU",
        not left if graphs else None,
        _spell(left) or f"{len(graphs)} graphs",
    )

    fused = {
        row["attention"] or "unknown"
        for row in _of(found, "kernels", "kernels")
        if row["graph"] == "model" and row["longest"] and not row["family"].endswith("fp32")
    }
    yield target(
        "16 bits: the fast graph's attention is fused",
        not fused & {"unfused", "unknown"} if fused else None,
        ", ".join(sorted(fused)) or "not measured",
    )

    ratios = [row["against_torch"][0] for row in _of(found, "speed", "size") if row["against_torch"]]
    slowest = min(ratios, default=None)
    yield bounded("fast graph ≥ torch.compile + SDPA, at its best", slowest, (slowest or 0) >= 1)

    limits = [row["sequences_per_second"] for row in _of(found, "served", "in_process")]
    rates = [row["sequences_per_second"] for row in _of(found, "served", "load") if not row["errors"]]
    share = max(rates) / max(limits) if rates and limits else None
    yield bounded("served ≥ 0.9 × onnxruntime in process, without errors", share, (share or 0) >= 0.9)


def _machine(found: Mapping[str, Rows]) -> list[str]:
    facts = [item for row in _of(found, "machine", "machine") for item in row.items() if item[0] != "kind"]
    lines = markdown_table({"fact": name, "value": value} for name, value in facts)
    for row in _of(found, "machine", "libraries"):
        lines += [f"Libraries in the process: {', '.join(row['loaded']) or 'none of CUDA'}.", ""]
    products = [
        f"{_number(row['teraflops'])} TFLOP/s in {row['dtype']}" for row in _of(found, "machine", "product")
    ]
    return lines + ([f"A large matrix product: {', '.join(products)}.", ""] if products else [])


def _families(found: Mapping[str, Rows]) -> list[str]:
    rows = _of(found, "families", "exported")
    return markdown_table({"family": row["family"], "seconds": _number(row["seconds"])} for row in rows)


def _parity(found: Mapping[str, Rows]) -> list[str]:
    lines = ["Largest |difference| / max(1, |PyTorch|), ragged, at sizes that the exporter never saw.", ""]
    return lines + markdown_table(
        {
            "family": row["family"],
            "graph": row["graph"],
            **{kind: _number(row["worst"].get(kind)) for kind in ("output", "pooled", "attention")},
            "on the CPU": _spell(row["on_cpu"]) or "–",
        }
        for row in _of(found, "parity", "graph")
    )


def _kernels(found: Mapping[str, Rows]) -> list[str]:
    return markdown_table(
        {
            "family": row["family"],
            "graph": row["graph"],
            "B, T": "{}, {}".format(*row["size"]),
            "attention": row["attention"] or "–",
            "onnxruntime says": ", ".join(row["messages"]) or "nothing",
            "longest kernels, µs": ", ".join(
                f"`{name[:50]}` {_number(spent)}" for name, spent in row["longest"].items()
            ),
        }
        for row in _of(found, "kernels", "kernels")
    )


def _speed(found: Mapping[str, Rows]) -> list[str]:
    rows = _of(found, "speed", "size")
    names = dict.fromkeys(name for row in rows for name in row["ms"])
    lines = ["Medians of the rounds; ratios with the lowest and the highest round in brackets.", ""]
    return lines + markdown_table(
        {
            "family": row["family"],
            "B": row["batch"],
            "T": row["tokens"],
            **{f"{name}, ms": _number(row["ms"].get(name)) for name in names},
            "fast × best of torch": _range(row["against_torch"]),
            "attention ×": _range(row["attention_costs"]),
            "TFLOP/s": _number(row["teraflops"]),
        }
        for row in rows
    )


def _served(found: Mapping[str, Rows]) -> list[str]:
    rates = [
        f"{_number(row['sequences_per_second'])} at B = {row['batch']}"
        for row in _of(found, "served", "in_process")
    ]
    lines = [f"onnxruntime in process, sequences/s: {', '.join(rates)}.", ""] if rates else []
    differences = {row["workers"]: row["difference"] for row in _of(found, "served", "answer")}
    return lines + markdown_table(
        {
            "workers": row["workers"],
            "B of a call": row["batch"],
            "in flight": row["in_flight"],
            "sequences/s": _number(row["sequences_per_second"]),
            "p50 / p99 ms": f"{_number(row['p50_ms'])} / {_number(row['p99_ms'])}",
            "errors": row["errors"],
            "callers' cores": _number(row["cores"]),
            "difference": _number(differences.get(row["workers"])),
        }
        for row in _of(found, "served", "load")
    )


_SECTIONS: Mapping[str, tuple[str, Callable[[Mapping[str, Rows]], list[str]]]] = {
    "machine": ("The machine", _machine),
    "families": ("Exports", _families),
    "parity": ("Parity with PyTorch in fp32 on the CPU", _parity),
    "kernels": ("Which kernel computes attention", _kernels),
    "speed": ("Against PyTorch, on one stream", _speed),
    "served": ("Served", _served),
}


def _of(found: Mapping[str, Rows], part: str, kind: str) -> Rows:
    return [row for row in found.get(part, ()) if row["kind"] == kind]


def _number(value: float | None) -> str:
    return "–" if value is None else spell_number(value)


def _range(values: Sequence[float] | None) -> str:
    return "–" if values is None else f"{values[0]:.2f} ({values[1]:.2f}–{values[2]:.2f})"


def _spell(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in operators.items())
