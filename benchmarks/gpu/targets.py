"""What a card should reach, and whether it did: ratios within one run, but for the precision."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isnan

from gpu.journal import Found, Row
from gpu.plan import Plan

_SHAPES = frozenset(
    {
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Gather", "Identity", "Range", "Shape", "Size"),
        *("Slice", "Squeeze", "Unsqueeze"),
    }
)
"""Operators on shapes, a few numbers: what may be left to the CPU."""
_SERVED_FORM = {"operator": "contrib Attention", "layout": "projected", "mask": "lengths"}
"""What the exporter's fast graph has."""
_GOOD_KERNELS = frozenset({"cuDNN", "FlashAttention"})
_KERNEL_DIFFERENCE = {"fp16": 1e-2, "bf16": 5e-2}
"""Of attention alone from the equation in fp32."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One of them."""

    name: str
    seen: str
    met: bool | None
    """None where it was not measured, or not all of it."""


def judge(found: Mapping[str, Found], plan: Plan) -> list[Target]:
    """Every target, measured or not."""
    table = _rows(found, "table", "size")
    sizes = len(plan.encoders) * len(plan.tokens) * len(plan.batches)
    largest, longest = plan.encoders[-1][0], max(plan.tokens)
    graphs = _rows(found, "parity", "graph")
    engine = _rows(found, "engine", "engine")
    return [
        _least(
            "fast graph ≥ torch.compile + SDPA, each at its best, at every size",
            1.0,
            [(_size(row), row["against_compiled"]) for row in table],
            of=sizes,
        ),
        _least(
            f"fast graph ≥ 0.5 of the matrix products' peak: {largest}, B = 32, T = {longest}",
            0.5,
            [
                (_size(row), max((row["share_of_peak"][name] for name in _fast(row)), default=None))
                for row in table
                if (row["family"], row["batch"], row["tokens"]) == (largest, 32, longest)
            ],
            of=1,
        ),
        _least(
            f"fast graph ≥ 1.5 × the attention graph at T = {longest}",
            1.5,
            [(_size(row), row["attention_costs"]) for row in table if row["tokens"] == longest],
            of=len(plan.encoders) * len(plan.batches),
        ),
        _served(found, plan),
        _most(
            "fp16: pooled output within 1e-3 of PyTorch in fp32",
            1e-3,
            [
                (f"{row['family']}, {row['graph']}", row["pooled"])
                for row in graphs
                if row["precision"] == "fp16" and row["family"] == plan.trained[0]
            ],
            of=2,
        ),
        _most(
            "fp32: every output within 1e-5 of PyTorch on the CPU",
            1e-5,
            [
                (f"{row['family']}, {row['graph']}", _worst(row))
                for row in graphs
                if row["precision"] == "fp32"
            ],
            of=2,
        ),
        _most(
            "16 bits: every output finite and within the drift that the export allows",
            1.0,
            [
                (f"{row['family']}-{row['precision']}, {row['graph']}", _drift(row))
                for row in graphs
                if row["precision"] != "fp32"
            ],
            of=2 * sum(family.precision != "fp32" for family in plan.compared),
            unit=" of the limit",
        ),
        _served_form(_rows(found, "kernels", "form"), plan),
        _placement(graphs, plan),
        _most(
            "the engine's pooled output within 1e-3 of onnxruntime alone, short of memory as well",
            1e-3,
            [(_check(row), row.get("pooled", inf)) for row in engine],
            of=plan.engine_checks,
        ),
        _most(
            "the engine's every output within 2e-2 of onnxruntime alone, so of the same run",
            2e-2,
            [(_check(row), row.get("rest", inf)) for row in engine],
            of=plan.engine_checks,
        ),
        _most(
            "served answers within 1e-3 of the graph's",
            1e-3,
            [(row["server"], row["difference"]) for row in _rows(found, "served", "server")],
            of=len(plan.servers),
        ),
    ]


def _served(found: Mapping[str, Found], plan: Plan) -> Target:
    """Against the faster of two: runs from the host's memory, and those of the table, on the card alone."""
    name = "served ≥ 0.9 × onnxruntime alone at its best, on the card as well"
    from_host = [float(row["sequences_per_second"]) for row in _rows(found, "served", "alone")]
    on_card = [
        float(rate)
        for row in _rows(found, "table", "size")
        if (row["family"], row["tokens"]) == (plan.served.name, plan.served_tokens)
        for contender, rate in row["sequences_per_second"].items()
        if contender.startswith("fast")
    ]
    loads = [row for row in _rows(found, "served", "load") if row["in_flight"] > 1]
    pooled = [row for row in loads if "a call" in row["traffic"]]
    if not from_host or not pooled:
        return Target(name=name, seen="not measured", met=None)
    failed = [
        f"{row['errors']} errors ({row['server']}, {row['traffic']})" for row in pooled if row["errors"]
    ]
    if failed:
        return Target(name=name, seen="; ".join(failed), met=False)
    best = max(pooled, key=lambda row: float(row["sequences_per_second"]))
    served = float(best["sequences_per_second"])
    where = f"{best['server']}, {best['traffic']}"
    seen = f"{served / max(from_host):.2f} of the host's, "
    seen += f"{served / max(on_card):.2f} of the card's ({where})" if on_card else f"no table ({where})"
    enough = served >= 0.9 * max(from_host + on_card)
    return Target(name=name, seen=seen, met=None if enough and not on_card else enough)


def _placement(graphs: Iterable[Row], plan: Plan) -> Target:
    name = "nothing but operators on shapes left to the CPU"
    known = [row for row in graphs if row["operators"]]
    if plan.device == "cpu" or not known:
        return Target(name=name, seen="not measured", met=None)
    left = [
        f"{row['family']}-{row['precision']}, {row['graph']}: {count} {operator}"
        for row in known
        for operator, count in row["operators"].get("CPUExecutionProvider", {}).items()
        if operator not in _SHAPES
    ]
    of = 2 * len(plan.compared)
    seen = "; ".join(left) or f"{len(known)} of {of} graphs"
    return Target(name=name, seen=seen, met=False if left else (True if len(known) >= of else None))


def _served_form(rows: Iterable[Row], plan: Plan) -> Target:
    """The form of attention that the fast graph has, with cuDNN as it is served."""
    name = "the fast graph's attention: right, its padding finite, by cuDNN or FlashAttention"
    looked_at = [row for row in rows if row.items() >= _SERVED_FORM.items() and not row["cudnn_off"]]
    sixteen = [row for row in looked_at if row["precision"] in _KERNEL_DIFFERENCE]
    if not sixteen:
        return Target(name=name, seen="not measured", met=None)
    wrong = [f"{row['precision']}: {problem}" for row in sixteen if (problem := _kernel_problem(row))]
    unnamed = [row["precision"] for row in sixteen if "problem" not in row and not row["ran"]]
    missing = set(plan.precisions) - {"fp32", *(row["precision"] for row in sixteen)}
    kernels = ", ".join(f"{row['precision']} {row.get('ran') or 'unknown'}" for row in sixteen)
    met = False if wrong else (None if unnamed or missing else True)
    return Target(name=name, seen="; ".join(wrong) or kernels, met=met)


def _kernel_problem(row: Row) -> str | None:
    if "problem" in row:
        return f"does not run: {row['problem']}"
    if not float(row["difference"]) <= _KERNEL_DIFFERENCE[row["precision"]]:
        return f"differs by {float(row['difference']):.2g}"
    if not row["padding_finite"]:
        return "padding is not finite"
    return None if row["ran"] in {"", *_GOOD_KERNELS} else f"computed by {row['ran']}"


def _least(name: str, limit: float, values: list[tuple[str, float | None]], *, of: int) -> Target:
    return _judge(name, values, of, worst=min, holds=lambda value: value >= limit)


def _most(
    name: str, limit: float, values: list[tuple[str, float | None]], *, of: int, unit: str = ""
) -> Target:
    return _judge(name, values, of, worst=max, holds=lambda value: value <= limit, unit=unit)


def _judge(
    name: str,
    values: list[tuple[str, float | None]],
    of: int,
    *,
    worst: Callable[..., tuple[str, float]],
    holds: Callable[[float], bool],
    unit: str = "",
) -> Target:
    """One that does not hold is enough to fail; to hold, all must have been measured."""
    measured = [(where, float(value)) for where, value in values if value is not None]
    if not measured:
        return Target(name=name, seen="not measured", met=None)
    broken = [each for each in measured if isnan(each[1])]  # neither least nor most
    where, value = broken[0] if broken else worst(measured, key=lambda each: each[1])
    seen = f"{value:.2g}{unit} ({where})" if value < 0.1 else f"{value:.2f}{unit} ({where})"
    if not holds(value):
        return Target(name=name, seen=seen, met=False)
    if len(measured) < of:
        return Target(name=name, seen=f"{seen}; {len(measured)} of {of} measured", met=None)
    return Target(name=name, seen=seen, met=True)


def _rows(found: Mapping[str, Found], part: str, kind: str) -> list[Row]:
    return found[part].of(kind) if part in found else []


def _size(row: Row) -> str:
    return f"{row['d_model']}/{row['heads']}, B = {row['batch']}, T = {row['tokens']}"


def _check(row: Row) -> str:
    return f"{row['graph']}{', CUDA graphs' if row['cuda_graphs'] else ''}, {row['check']}"


def _fast(row: Row) -> list[str]:
    return [name for name in row["share_of_peak"] if name.startswith("fast")]


def _drift(row: Row) -> float | None:
    """The largest difference of an output, as a share of what the export allows."""
    worst = _worst(row)
    return None if worst is None or row["drift_limit"] is None else worst / row["drift_limit"]


def _worst(row: Row) -> float | None:
    values = [float(row[name]) for name in ("output", "pooled", "attention") if row[name] is not None]
    return max(values, default=None)
