"""The stream graph reads and edits what PyTorch's hooks read and edit, and nothing else."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from tests.export.test_pooled import BERT, ENCODERS, build
from tests.exports import run, session_of
from tests.numerics import close
from torch import Tensor, nn

from polyhead_export.graphs import build_graph
from polyhead_export.interventions import ADD, NOTHING, PROJECT_OUT, REPLACE
from polyhead_export.kinds.stream import StreamGraph
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention import MultiHeadAttention

KIND = StreamGraph()
ALBERT = dataclasses.replace(BERT, embedding_width=8, shared_layers=True, classifier=None)
VECTORS = EncoderConfig(d_model=16, heads=4, head_width=8, layers=2)  # attention alone
CONFIGS = ENCODERS | {
    "ALBERT": ALBERT,
    "attention alone, wide heads": VECTORS,
    "pruned": dataclasses.replace(BERT, heads=4, head_width=4, kept_heads=((0, 2, 3), (1,))),
    "to a memory": dataclasses.replace(VECTORS, feed_forward=24, cross_attention="alone"),
    "decoder": dataclasses.replace(VECTORS, feed_forward=24, cross_attention="after_self"),
}
CAUSAL = "GPT-2"
Arrays = dict[str, Any]
Session = tuple[Encoder, ort.InferenceSession]


def traced(name: str) -> Session:
    encoder = build(CONFIGS[name])
    return encoder, session_of(build_graph(encoder, KIND, pack=encoder.config.feed_forward is not None))


@pytest.fixture(scope="module")
def causal() -> Session:
    """A causal encoder, and its graph."""
    return traced(CAUSAL)


def edited(x: Tensor, mode: int, vector: Tensor) -> Tensor:
    return {NOTHING: x, ADD: x + vector, REPLACE: vector, PROJECT_OUT: x - (x @ vector) * vector}[mode]


def with_hooks(encoder: Encoder, inputs: Mapping[str, Tensor], row: int) -> Arrays:
    """What PyTorch gives for one sequence, without padding, read and edited by hooks."""
    config = encoder.config
    own = {name: value[row : row + 1] for name, value in inputs.items()}
    length, memory_length = int(own["lengths"]), int(own.get("memory_lengths", torch.tensor(0)))

    def column(name: str) -> list[Any]:
        return list(own[name][0])

    edits = list(zip(*(column(f"edit_{x}") for x in ("layers", "tokens", "modes", "vectors")), strict=True))
    names = ("layers", "tokens", "heads", "modes", "vectors")
    of_heads = list(zip(*(column(f"head_edit_{x}") for x in names), strict=True))
    stream: dict[int, Tensor] = {}
    heads: dict[int, Tensor] = {}

    def last(found: Sequence[tuple[Any, ...]], *place: int) -> tuple[Any, ...] | None:
        here = [each for each in found if tuple(map(int, each[: len(place)])) == place and each[-2]]
        return here[-1] if here else None

    def visit(x: Tensor) -> Tensor:
        layer, x = len(stream), x.clone()
        for token in range(length):
            if (found := last(edits, layer, token)) is not None:
                x[0, token] = edited(x[0, token], int(found[-2]), found[-1])
        stream[layer] = x
        return x

    def visit_heads(context: Tensor) -> Tensor:
        layer, kept = len(heads), config.heads_of(len(heads))
        by_head = context.clone().reshape(1, length, len(kept), -1)
        for token in range(length):
            for place, head in enumerate(kept):
                if (found := last(of_heads, layer, token, head)) is not None:
                    x = by_head[0, token, place]
                    by_head[0, token, place] = edited(x, int(found[-2]), found[-1])
        heads[layer] = by_head
        return by_head.flatten(2)

    def hook(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda _module, given: (change(given[0]), *given[1:])

    def after_the_last(_module: nn.Module, _given: Any, given: Any) -> Any:
        calls.append(0)
        return (visit(given[0]), *given[1:]) if len(calls) == config.layers else None

    calls: list[int] = []
    hooks = []
    for layer in encoder.layers:
        hooks += [layer.register_forward_pre_hook(hook(visit)), layer.register_forward_hook(after_the_last)]
        first = next(each for each in layer.modules() if isinstance(each, MultiHeadAttention))
        hooks.append(first.w_o.register_forward_pre_hook(hook(visit_heads)))
    try:
        with torch.inference_mode():
            result = encoder(
                own[config.main_input][:, :length],
                memory=own["memory"][:, :memory_length] if "memory" in own else None,
                token_type_ids=own["token_type_ids"][:, :length] if config.types else None,
                mask=own["mask"][:, :length, :length] if config.mask_input else None,
            )
    finally:
        for each in hooks:
            each.remove()
    reads = torch.zeros(len(column("read_layers")), config.d_model)
    for at, (layer, token) in enumerate(zip(column("read_layers"), column("read_tokens"), strict=True)):
        if token < length:
            reads[at] = stream[int(layer)][0, token]
    head_reads = torch.zeros(len(column("head_read_layers")), config.head_size)
    places = zip(*(column(f"head_read_{x}") for x in names[:3]), strict=True)
    for at, (layer, token, head) in enumerate(places):
        kept = config.heads_of(int(layer))
        if token < length and head in kept:
            head_reads[at] = heads[int(layer)][0, token, kept.index(int(head))]
    found: Arrays = {"output": result.output[0], "stream": reads, "head_outputs": head_reads}
    for name, value in (("pooled", result.pooled), ("logits", result.logits)):
        if value is not None:
            found[name] = value[0]
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == CAUSAL else pytest.mark.slow) for each in CONFIGS]
)
def test_the_graph_is_pytorch_with_hooks(name: str, causal: Session) -> None:
    encoder, session = causal if name == CAUSAL else traced(name)
    changed = 0
    for seed, size in enumerate([(1, 1), (2, 12), (4, 9)]):
        inputs = sample_inputs(encoder.config, KIND, *size, seed=seed)
        if "head_mask" in inputs:  # which comes between an edit and W_o, and has tests of its own
            inputs["head_mask"] = torch.ones_like(inputs["head_mask"])
        for what in ("lengths", "memory_lengths"):  # hooks see no sequence of length 0
            if what in inputs:
                inputs[what] = inputs[what].clamp(min=1)
        got, plain = run(session, inputs), run(session, inputs | unedited(inputs))
        for row in range(size[0]):
            for output, expected in with_hooks(encoder, inputs, row).items():
                found = got[output][row]
                close(found[: len(expected)] if output == "output" else found, expected)
        changed += int((got["output"] != plain["output"]).any())
    assert changed == 3


def unedited(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No edit in place of those of the inputs."""
    return {name: torch.zeros_like(inputs[name]) for name in inputs if name.endswith("edit_modes")}


def three(config: EncoderConfig) -> dict[str, Tensor]:
    """Three sequences, whose edits do nothing, and reads of the third of their tokens before each layer."""
    inputs = sample_inputs(config, KIND, 3, 8, seed=5)
    inputs["lengths"] = torch.tensor([8, 6, 8], dtype=torch.int32)
    inputs["read_layers"] = torch.arange(config.layers + 1).expand(3, -1).clone()
    inputs["read_tokens"] = torch.full_like(inputs["read_layers"], 2)
    return inputs | unedited(inputs)


def same(found: Arrays, expected: Arrays, index: Any = np.s_[:]) -> None:
    """Assert that outputs are equal bit by bit."""
    for name, value in found.items():
        assert value[index].tobytes() == expected[name][index].tobytes(), name


@pytest.mark.parametrize("prefix", ["", "head_"])
def test_to_add_nothing_is_no_edit(causal: Session, prefix: str) -> None:
    encoder, session = causal
    inputs = three(encoder.config)
    modes = torch.full_like(inputs[f"{prefix}edit_modes"], ADD)
    vectors = torch.zeros_like(inputs[f"{prefix}edit_vectors"])
    plain = run(session, inputs)

    same(run(session, inputs | {f"{prefix}edit_modes": modes, f"{prefix}edit_vectors": vectors}), plain)
    tokens = torch.full_like(inputs[f"{prefix}edit_tokens"], 7)  # behind the end of the second
    found = run(session, inputs | {f"{prefix}edit_modes": modes, f"{prefix}edit_tokens": tokens})
    same(found, plain, np.s_[1])
    assert (found["output"][0] != plain["output"][0]).any()


def test_only_what_is_downstream_of_an_edit_changes(causal: Session) -> None:
    encoder, session = causal
    inputs = three(encoder.config)
    plain = run(session, inputs)
    for name, value in (("layers", 1), ("tokens", 3), ("modes", REPLACE)):
        inputs[f"edit_{name}"][1] = value

    found = run(session, inputs)

    same(found, plain, np.s_[[0, 2]])  # the other sequences
    assert (found["output"][1, :3] == plain["output"][1, :3]).all()  # those before it, as this one is causal
    assert (found["output"][1, 3:6] != plain["output"][1, 3:6]).any(axis=-1).all()
    inputs["read_tokens"][:] = 5
    reads, before = run(session, inputs)["stream"][1], run(session, inputs | unedited(inputs))["stream"][1]
    assert (reads[:2] == before[:2]).all()  # up to the layer of the edit
    assert (reads[2] != before[2]).any()


def test_the_last_of_several_edits_of_a_place_counts(causal: Session) -> None:
    encoder, session = causal
    inputs = three(encoder.config)
    inputs |= {"edit_layers": inputs["edit_layers"] * 0 + 1, "edit_tokens": inputs["edit_tokens"] * 0 + 2}
    modes = torch.tensor([[REPLACE, ADD, NOTHING]]).expand(3, -1)
    last = torch.tensor([[NOTHING, ADD, NOTHING]]).expand(3, -1)

    found = run(session, inputs | {"edit_modes": modes})

    same(found, run(session, inputs | {"edit_modes": last}))
    assert (found["output"] != run(session, inputs)["output"]).any()
