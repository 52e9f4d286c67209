"""Both graphs against the same encoder in PyTorch, eager and compiled, on one stream."""

import gc
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.device import TimedDevice
from benchmarks.gpu.families import ATTENTION, FAST, GRAPHS, build, feeds_of, open_graph
from benchmarks.gpu.plan import Check, EncoderFamily, Size
from benchmarks.rounds import ratio_of, spell_number
from polyhead_model import Encoder, flops
from polyhead_model.attention import PADDED
from polyhead_model.packing import TokenLayout

EAGER, COMPILED, CAPTURED = "torch eager", "torch.compile", "torch.compile, CUDA graph"
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def run(check: Check) -> None:
    """Time every family at every size; all sequences have T tokens."""
    gains: list[float] = []
    text = "Medians of the rounds; ratios with the lowest and the highest round, or a 95 % interval."
    check.write("line", text=text)
    for family in check.plan.timed:
        with check.attempt(f"speed of {family.key}"):
            sessions = {graph: open_graph(check.device, family, check.models, graph) for graph in GRAPHS}
            encoder = build(family).fuse().to(check.device.torch, _DTYPES[family.precision]).eval()
            for size in check.plan.speed_sizes:
                with check.attempt(f"speed of {family.key} at B, T = {size}"):
                    gains += _measure(check, family, size, sessions, encoder)
    if gains:
        name = "fast graph ≥ torch.compile + SDPA, at its best"
        check.judge(name, min(gains) >= 1, spell_number(min(gains)))


def attend_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    /,
    *,
    bias: Tensor | None = None,
    layouts: tuple[TokenLayout, TokenLayout] = PADDED,
) -> tuple[Tensor, None]:
    """Compute attention by PyTorch's fused operator."""
    queries, keys = layouts
    q, k, v = queries.by_head(query, heads), keys.by_head(key, heads), keys.by_head(value, heads)
    added = None if mask is None else mask[:, None]
    if bias is not None:
        added = bias if added is None else bias.masked_fill(~added, -torch.inf)
    return queries.merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=added)), None


def _measure(
    check: Check,
    family: EncoderFamily,
    size: Size,
    sessions: Mapping[str, ort.InferenceSession],
    encoder: Encoder,
) -> list[float]:
    """Write a row; return how many times as fast as PyTorch's best the fast graph is, if both ran."""
    (batch, tokens), device, config = size, check.device, family.encoder.config
    inputs = {
        name: torch.from_numpy(value).to(device.torch)
        for name, value in feeds_of(config, [tokens] * batch, seed=tokens).items()
    }
    shapes: dict[str, tuple[int, ...]] = {
        "output": (batch, tokens, config.d_model),
        "pooled": (batch, config.d_model),
    }
    maps = {f"attention.{layer}": (batch, config.heads, tokens, tokens) for layer in range(config.layers)}
    calls: dict[str, Callable[[], object]] = {}
    makes: dict[str, Callable[[], Callable[[], object]]] = {
        FAST: partial(_bound_call, device, sessions[FAST], inputs, shapes),
        ATTENTION: partial(_bound_call, device, sessions[ATTENTION], inputs, shapes | maps),
        EAGER: partial(_torch_call, encoder, inputs),
        COMPILED: partial(_compiled_call, device, encoder, inputs),
        CAPTURED: partial(_captured_call, device, encoder, inputs),
    }
    if device.kind == "cpu":
        del makes[CAPTURED]
    for name, make in makes.items():
        with check.attempt(f"{name}, {family.key} at B, T = {size}"):
            call = make()
            device.milliseconds(call, 1)
            calls[name] = call
    samples = device.compare(calls, sample_ms=check.plan.sample_ms, rounds=check.rounds)
    compiled = {name: median(samples[name]) for name in (COMPILED, CAPTURED) if name in samples}
    best = min(compiled, key=lambda name: compiled[name], default=COMPILED)
    gain, costs = (
        ratio_of(samples[slower], samples[faster]) if {slower, faster} <= samples.keys() else None
        for slower, faster in ((best, FAST), (ATTENTION, FAST))
    )
    speed = flops(config, batch, tokens) / median(samples[FAST]) / 1e9 if FAST in samples else None
    check.write(
        "row",
        cells={
            "family": family.key,
            "B": batch,
            "T": tokens,
            **{
                f"{name}, ms": spell_number(median(samples[name])) if name in samples else "–"
                for name in makes
            },
            "fast × best of torch": str(gain or "–"),
            "attention ×": str(costs or "–"),
            "TFLOP/s": "–" if speed is None else spell_number(speed),
        },
    )
    if device.kind == "cuda":
        calls.clear()
        torch.cuda.empty_cache()
    return [gain.value] if gain else []


def _bound_call(
    device: TimedDevice,
    session: ort.InferenceSession,
    inputs: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
) -> Callable[[], object]:
    """Bind a session's inputs and FP32 outputs to the device's memory; a call queues one run."""
    binding, options = session.io_binding(), ort.RunOptions()
    # The stream orders the runs; to wait after each would time the host as well.
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    outputs = {name: torch.empty(shape, device=device.torch) for name, shape in shapes.items()}
    for name, tensor in inputs.items():
        dtype = np.int32 if tensor.dtype == torch.int32 else np.int64
        binding.bind_input(name, device.kind, 0, dtype, tuple(tensor.shape), tensor.data_ptr())
    for name, tensor in outputs.items():
        binding.bind_output(name, device.kind, 0, np.float32, tuple(tensor.shape), tensor.data_ptr())

    def call() -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        session.run_with_iobinding(binding, options)
        return inputs, outputs  # onnxruntime has only their addresses: the closure keeps them alive

    return call


def _torch_call(encoder: Encoder, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with torch.no_grad():
            result = encoder(
                inputs["input_ids"], token_type_ids=inputs.get("token_type_ids"), attend=attend_sdpa
            )
            pooled: Tensor = result.pooled
            return pooled

    return call


def _compiled_call(
    device: TimedDevice, encoder: Encoder, inputs: Mapping[str, Tensor]
) -> Callable[[], Tensor]:
    """Compile a second encoder over the same weights, for exactly this size.

    Layer by layer, since equal layers share compiled code: whole encoders would take minutes. A captured
    graph has no overhead between layers.
    """
    torch.compiler.reset()
    with torch.device("meta"):
        twin = Encoder(encoder.config)
    twin.load_state_dict(encoder.state_dict(), assign=True)
    backend = "inductor" if device.kind == "cuda" else "eager"  # tracing is enough to try the code
    for layer in twin.eval().layers:
        layer.compile(backend=backend, dynamic=False, fullgraph=True)
    return _torch_call(twin, inputs)


def _captured_call(
    device: TimedDevice, encoder: Encoder, inputs: Mapping[str, Tensor]
) -> Callable[[], object]:
    """Capture the compiled call as a CUDA graph, which the host starts with one launch."""
    call = _compiled_call(device, encoder, inputs)
    with device.on_stream():
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # A session that is collected meanwhile frees its memory, which CUDA forbids during a capture.
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=device.stream):
            kept = call()
    finally:
        gc.enable()

    def replay() -> Tensor:
        graph.replay()
        return kept  # the graph writes into it, so it must stay alive

    return replay
