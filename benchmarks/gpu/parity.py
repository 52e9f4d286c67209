"""Deviation of each graph, in each precision, from PyTorch in fp32 on the CPU: ragged, at unseen sizes."""

from benchmarks.gpu.families import GRAPHS, build, open_graph
from benchmarks.gpu.plan import Check, EncoderFamily
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.parity import deviation, reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.session import placed, slow_on_cpu


def run(check: Check) -> None:
    """Compare every family."""
    for family in check.plan.families:
        with check.attempt(f"parity of {family.key}"):
            _compare(check, family)


def _compare(check: Check, family: EncoderFamily) -> None:
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
            worst: dict[str, float] = {}
            for sample, wanted in zip(samples, expected, strict=True):
                values = session.run(names, {name: value.numpy() for name, value in sample.items()})
                for name, value in zip(names, values, strict=True):
                    if value.shape != wanted[name].shape:
                        raise ValueError(f"{name} must have shape {wanted[name].shape}, was {value.shape}")
                    kind = name.partition(".")[0]
                    worst[kind] = max(worst.get(kind, 0.0), deviation(value, wanted[name]))
            operators = placed(session)
            check.write(
                "graph",
                family=family.key,
                graph=graph,
                worst=worst,
                on_cpu=device.left_to_cpu(operators),
                slow_on_cpu=slow_on_cpu(operators, device),
            )
