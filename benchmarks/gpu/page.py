"""The page of a check: targets first, then what each part found."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

Rows = Sequence[Mapping[str, Any]]

TITLES = {
    "machine": "The machine",
    "families": "Exports",
    "parity": "Parity with PyTorch in fp32 on the CPU",
    "kernels": "Which kernel computes attention",
    "speed": "Against PyTorch, on one stream",
    "served": "Served",
}
_PARITY = {"fp32": 1e-5, "fp16": 1e-3}
# What onnxruntime computes shapes with: a few numbers, rather on the CPU.
_SHAPES = frozenset(
    {"Cast", "Concat", "Constant", "ConstantOfShape", "Gather", "Identity", "Range", "Shape", "Size"}
    | {"Slice", "Squeeze", "Unsqueeze"}
)


def page(found: Mapping[str, Rows], *, tiny: bool) -> str:
    """Return the page in markdown.

    Args:
        found: Each part's results, in order.
        tiny: The encoders are tiny ones, to try the code.
    """
    device = next((row["device"] for row in _of(found, "machine", "machine")), "unknown")
    lines = [f"# {device}: polyhead's graphs", ""]
    lines += ["Made by `make gpu-check`. Ratios compare within this run; the rest is this machine's.", ""]
    if tiny:
        lines += ["**Tiny encoders, to try the code: the numbers mean nothing.**", ""]
    lines += ["## Targets", "", *_table(("target", "met", "seen"), _targets(found))]
    for part, rows in found.items():
        lines += [f"## {TITLES[part]}", "", *_SECTIONS[part](found)]
        lines += [f"- **{row['what']}**: {row['reason']}" for row in rows if row["kind"] == "problem"]
        lines += [""] if lines[-1] else []
    return "\n".join(lines).rstrip() + "\n"


def _targets(found: Mapping[str, Rows]) -> Iterable[tuple[str, str, str]]:
    graphs = _of(found, "parity", "graph")
    for precision, limit in _PARITY.items():
        # 16 bits drift in every token's vector; what people use are the pooled ones.
        wanted = ("output", "pooled", "attention") if precision == "fp32" else ("pooled",)
        worst = [
            value
            for row in graphs
            if row["family"].endswith(precision)
            for name, value in row["worst"].items()
            if name in wanted
        ]
        what = "every output" if precision == "fp32" else "pooled output"
        yield _judged(
            f"{precision}: {what} within {limit:g} of PyTorch", worst, lambda x, m=limit: x <= m, max
        )
    left = {
        operator: count
        for row in graphs
        if len(row["operators"]) > 1
        for operator, count in row["operators"].get("CPUExecutionProvider", {}).items()
        if operator not in _SHAPES
    }
    met = "–" if not graphs else "**no**" if left else "yes"
    yield "nothing but operators on shapes left to the CPU", met, _spell(left) or f"{len(graphs)} graphs"
    fast = [row for row in _of(found, "kernels", "kernels") if row["graph"] == "model" and row["longest"]]
    kinds = {row["attention"] or "unknown" for row in fast if not row["family"].endswith("fp32")}
    met = "–" if not kinds else "**no**" if kinds & {"unfused", "unknown"} else "yes"
    yield "16 bits: the fast graph's attention is fused", met, ", ".join(sorted(kinds)) or "not measured"
    ratios = [row["against_torch"][0] for row in _of(found, "speed", "size") if row["against_torch"]]
    yield _judged("fast graph ≥ torch.compile + SDPA, at its best", ratios, lambda x: x >= 1.0, min)
    inside = max((row["sequences_per_second"] for row in _of(found, "served", "in_process")), default=None)
    loads = [row for row in _of(found, "served", "load") if not row["errors"]]
    served = [max(row["sequences_per_second"] for row in loads) / inside] if loads and inside else []
    yield _judged("served ≥ 0.9 × onnxruntime in process, without errors", served, lambda x: x >= 0.9, max)


def _judged(name: str, values: Sequence[float], good: Any, worst: Any) -> tuple[str, str, str]:
    if not values:
        return name, "–", "not measured"
    finite = all(isfinite(value) for value in values)
    seen = worst(values)
    return name, "yes" if finite and good(seen) else "**no**", _number(seen)


def _machine(found: Mapping[str, Rows]) -> list[str]:
    lines: list[str] = []
    for row in _of(found, "machine", "machine"):
        lines += _table(("", ""), [(name, value) for name, value in row.items() if name != "kind"])
    for row in _of(found, "machine", "libraries"):
        lines += [f"Libraries in the process: {', '.join(row['loaded']) or 'none of CUDA'}.", ""]
    products = _of(found, "machine", "product")
    said = [f"{_number(row['teraflops'])} TFLOP/s in {row['dtype']}" for row in products]
    return lines + ([f"A large matrix product: {', '.join(said)}.", ""] if said else [])


def _families(found: Mapping[str, Rows]) -> list[str]:
    rows = _of(found, "families", "exported")
    return _table(("family", "seconds"), [(row["family"], _number(row["seconds"])) for row in rows])


def _parity(found: Mapping[str, Rows]) -> list[str]:
    columns = ("family", "graph", "output", "pooled", "attention", "on the CPU")
    lines = ["Largest |difference| / max(1, |PyTorch|), ragged, at sizes that the exporter never saw.", ""]
    return lines + _table(
        columns,
        [
            (
                row["family"],
                row["graph"],
                *(_number(row["worst"].get(name)) for name in ("output", "pooled", "attention")),
                _spell(row["operators"].get("CPUExecutionProvider", {}))
                if len(row["operators"]) > 1
                else "–",
            )
            for row in _of(found, "parity", "graph")
        ],
    )


def _kernels(found: Mapping[str, Rows]) -> list[str]:
    columns = ("family", "graph", "B, T", "attention", "onnxruntime says", "longest kernels, µs")
    return _table(
        columns,
        [
            (
                row["family"],
                row["graph"],
                "{}, {}".format(*row["size"]),
                row["attention"] or "–",
                ", ".join(row["said"]) or "nothing",
                ", ".join(f"`{name[:50]}` {_number(spent)}" for name, spent in row["longest"].items()),
            )
            for row in _of(found, "kernels", "kernels")
        ],
    )


def _speed(found: Mapping[str, Rows]) -> list[str]:
    rows = _of(found, "speed", "size")
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    columns = (
        "family",
        "B",
        "T",
        *(f"{name}, ms" for name in names),
        "fast × best of torch",
        "attention ×",
        "TFLOP/s",
    )
    lines = ["Medians of the rounds; ratios with the lowest and the highest round in brackets.", ""]
    return lines + _table(
        columns,
        [
            (
                row["family"],
                row["batch"],
                row["tokens"],
                *(_number(row["ms"].get(name)) for name in names),
                _range(row["against_torch"]),
                _range(row["attention_costs"]),
                _number(row["teraflops"]),
            )
            for row in rows
        ],
    )


def _served(found: Mapping[str, Rows]) -> list[str]:
    inside = _of(found, "served", "in_process")
    said = [f"{_number(row['sequences_per_second'])} at B = {row['batch']}" for row in inside]
    lines = [f"onnxruntime in process, sequences/s: {', '.join(said)}.", ""] if said else []
    differences = {row["workers"]: row["difference"] for row in _of(found, "served", "answer")}
    columns = (
        "workers",
        "B of a call",
        "in flight",
        "sequences/s",
        "p50 / p99 ms",
        "errors",
        "callers' cores",
        "difference",
    )
    return lines + _table(
        columns,
        [
            (
                row["workers"],
                row["batch"],
                row["in_flight"],
                _number(row["sequences_per_second"]),
                f"{_number(row['p50_ms'])} / {_number(row['p99_ms'])}",
                row["errors"],
                _number(row["cores"]),
                _number(differences.get(row["workers"])),
            )
            for row in _of(found, "served", "load")
        ],
    )


_SECTIONS = {
    "machine": _machine,
    "families": _families,
    "parity": _parity,
    "kernels": _kernels,
    "speed": _speed,
    "served": _served,
}


def _of(found: Mapping[str, Rows], part: str, kind: str) -> Rows:
    return [row for row in found.get(part, ()) if row["kind"] == kind]


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""] if lines else []


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _range(values: Sequence[float] | None) -> str:
    return "–" if values is None else f"{values[0]:.2f} ({values[1]:.2f}–{values[2]:.2f})"


def _spell(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in operators.items())
