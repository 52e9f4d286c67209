"""Deviation of each graph, in each precision, from PyTorch in fp32 on the CPU: ragged, at unseen sizes."""

from collections import Counter
from collections.abc import Mapping

from benchmarks.gpu.families import GRAPHS, build, open_graph
from benchmarks.gpu.plan import Check, EncoderFamily
from benchmarks.rounds import spell_number
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.parity import reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_proto.drift import deviation
from polyhead_server.engine.device import CPU
from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.session import placed, slow_on_cpu

_LIMITS = {
    "fp32": ("every output", ("output", "pooled", "attention"), 1e-5),
    # 16 bits drift in every token's vector; people use the pooled ones.
    "fp16": ("pooled output", ("pooled",), 1e-3),
}


def run(check: Check) -> None:
    """Compare every family."""
    text = "Largest |difference| / max(1, |PyTorch|), ragged, at sizes that the exporter never saw."
    check.write("line", text=text)
    found: dict[str, list[tuple[str, float]]] = {}
    slow: dict[str, int] = {}
    for family in check.plan.families:
        with check.attempt(f"parity of {family.key}"):
            _compare(check, family, found.setdefault(family.precision, []), slow)
    for precision, (what, kinds, limit) in _LIMITS.items():
        deviations = [value for kind, value in found.get(precision, ()) if kind in kinds]
        if deviations:
            worst = max(deviations)
            name = f"{precision}: {what} within {limit:g} of PyTorch"
            check.judge(name, worst <= limit, spell_number(worst))
    if any(found.values()):
        check.judge("nothing but operators on shapes left to the CPU", not slow, _spelt(slow) or "none")


def _compare(
    check: Check, family: EncoderFamily, found: list[tuple[str, float]], slow: dict[str, int]
) -> None:
    encoder, kind = build(family), AttentionGraph()
    samples = [
        sample_inputs(encoder.config, kind, *size, seed=seed)
        for seed, size in enumerate(check.plan.parity_sizes, start=100)
    ]
    expected = [reference_outputs(encoder, kind, sample) for sample in samples]
    device = on_cuda("") if check.device.kind == "cuda" else on_cpu("")
    for graph in GRAPHS:
        with check.attempt(f"parity of {family.key}, {graph}.onnx"):
            session = open_graph(check.device, family, check.models, graph)
            names = [value.name for value in session.get_outputs()]
            own: list[tuple[str, float]] = []
            for sample, wanted in zip(samples, expected, strict=True):
                values = session.run(names, {name: value.numpy() for name, value in sample.items()})
                for name, value in zip(names, values, strict=True):
                    if value.shape != wanted[name].shape:
                        raise ValueError(f"{name} must have shape {wanted[name].shape}, was {value.shape}")
                    own.append((name.partition(".")[0], deviation(value, wanted[name])))
            found += own
            path = family.encoder.graph(check.models / family.key).with_name(f"{graph}.onnx")
            slow |= slow_on_cpu(path, session, device)
            nodes = () if check.device.kind == "cpu" else placed(session).get(CPU, ())
            left = Counter(sorted(operator for _, operator in nodes))
            worst = {
                output: [value for kind, value in own if kind == output]
                for output in ("output", "pooled", "attention")
            }
            check.write(
                "row",
                cells={
                    "family": family.key,
                    "graph": graph,
                    **{
                        output: spell_number(max(values)) if values else "–"
                        for output, values in worst.items()
                    },
                    "on the CPU": _spelt(left) or "–",
                },
            )


def _spelt(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in operators.items())
