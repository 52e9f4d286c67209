"""Counted from the steps of a forward pass, against what PyTorch has and does."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoders import BERT, MODERN
from tests.model.test_properties import configs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from polyhead_model import (
    PRESETS,
    Classifier,
    Dense,
    Encoder,
    EncoderConfig,
    EncoderOutput,
    Splade,
    TokenVectors,
    attention_bytes,
    flop_counts,
    flops,
    longest_sequence,
    parameter_counts,
    parameters,
    summary,
)
from polyhead_model.describe import REPLY_LIMIT
from polyhead_model.task_heads import LexicalWeights
from polyhead_server.settings import Settings

TOKENS = replace(BERT, d_model=12, layers=3, feed_forward=20, positions=16, pooling="mean")


sizes = st.tuples(st.integers(2, 7), st.integers(2, 5))
"""(T, S): torch computes products of width 1 in other ways."""


class MatrixProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of operands and results of matrix products."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.bytes += sum(each.nbytes for each in (*args, result) if isinstance(each, Tensor))
        return result


def run(encoder: Encoder, batch: int, tokens: int, memory: int, **options: Any) -> EncoderOutput:
    """A forward pass on tensors without memory: the largest presets have gigabytes."""
    width = encoder.config.d_model
    with torch.device("meta"), torch.no_grad():
        x = torch.zeros(batch, tokens, width)
        if encoder.config.vocabulary is not None:
            x = torch.zeros(batch, tokens, dtype=torch.int64)
        if encoder.config.cross_attention is not None:
            options["memory"] = torch.zeros(batch, memory, width)
        result: EncoderOutput = encoder(x, need_weights=True, **options)
    return result


def check(config: EncoderConfig, batch: int, tokens: int, memory: int) -> None:
    with torch.device("meta"), torch.no_grad():
        encoder = Encoder(config).eval()
        of_positions = encoder.position_vectors()  # they are the same in each pass
    # A mean is counted as such, though it is computed as a product.
    with (
        pytest.MonkeyPatch.context() as patch,
        FlopCounterMode(display=False) as counter,
        MatrixProducts() as products,  # type: ignore[no-untyped-call]
    ):
        patch.setattr(
            "polyhead_model.pooling.sum_tokens",
            lambda x, weights, _longest=None: (x * weights[..., None]).sum(1),
        )
        result = run(encoder, batch, tokens, memory, position_vectors=of_positions)
    length = None if config.cross_attention is None else memory
    numbers = summary("any", config, batch, tokens, length)

    assert numbers["parameters"]["total"] == parameters(config)
    assert parameters(config) == sum(each.numel() for each in encoder.state_dict().values())
    tensors = Counter[int]()
    for count in parameter_counts(config):
        tensors.update(each.each for each in count.tensors for _ in range(count.times))
        assert sum(each.each for each in count.tensors) == count.each
    assert tensors == Counter(each.numel() for each in encoder.parameters())
    in_layers = sum(
        count.total
        for count in parameter_counts(config)
        if count.layers is not None and count.name != "convolution"  # which is beside the first one
    )
    assert in_layers == sum(each.numel() for each in encoder.layers.parameters())

    assert numbers["flops"]["total"] == counter.get_total_flops() == flops(config, batch, tokens, length)
    assert sum(part["share"] for part in numbers["flops"]["parts"]) == pytest.approx(1)
    assert numbers["flops"]["bytes"] == products.bytes

    attended = [each for each in (result.attention, result.cross_attention) if each is not None]
    for layer, weights in enumerate(zip(*attended, strict=True)):
        by_layer = attention_bytes(config, batch, tokens, length, layers=[layer])
        assert by_layer == sum(each.nbytes for each in weights)
    total = sum(each.numel() for one in attended for each in one)
    assert attention_bytes(config, batch, tokens, length, itemsize=1) == total

    shapes = {
        step["tensor"]: tuple(step["shape"])
        for section in reversed(numbers["sections"])  # of the first layer
        for step in section["steps"]
    }
    own = "cross weights = softmax" if config.cross_attention == "alone" else "weights = softmax"
    assert shapes[own] == attended[0][0].shape
    if result.cross_attention is not None:
        assert shapes["cross weights = softmax"] == result.cross_attention[0].shape
    assert shapes["output"] == result.output.shape
    if result.pooled is not None:
        assert shapes[f"pooled ({config.pooling})"] == result.pooled.shape
    for section in numbers["sections"]:
        first = None if section["layers"] is None else int(section["layers"][0])
        heads = config.heads if first is None else len(config.heads_of(first))
        inner = heads * config.head_size
        letters = numbers["sizes"] | {"H": heads, "H·K": inner, "3·H·K": 3 * inner}
        groups = len(set(config.kv_heads_of(first or 0)))
        letters |= {"G": groups, "G·K": groups * config.head_size}
        letters["(H+2G)·K"] = (heads + 2 * groups) * config.head_size
        letters["ΣK"] = sum(config.widths_of(first or 0))
        letters["3·ΣK"] = 3 * letters["ΣK"]
        letters["2·T"] = 2 * letters["T"]
        if config.disentangled is not None:
            letters[str(2 * config.disentangled.span)] = 2 * config.disentangled.span
        if config.convolution is not None:
            letters[f"{config.convolution.width}·D"] = config.convolution.width * letters["D"]
        for step in section["steps"]:
            assert [letters[axis] for axis in step["axes"]] == list(step["shape"])
    known: set[str] = set()
    for step in (step for section in numbers["sections"] for step in section["steps"]):
        assert known.issuperset(step["reads"])
        known.add(step["symbol"])
    assert json.loads(json.dumps(numbers))["encoder"]["d_model"] == config.d_model


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    check(PRESETS[name], 3, 7, 5)


@settings(max_examples=30)
@given(config=configs(), width=st.integers(4, 6), batch=st.integers(1, 3), sizes=sizes)
def test_any_configuration(config: EncoderConfig, width: int, batch: int, sizes: tuple[int, int]) -> None:
    # Another width than the heads' together, so that no letter can be taken for another.
    widths = config.head_widths and tuple((2 * width, *each[1:]) for each in config.head_widths)
    convolution = config.convolution and replace(config.convolution, groups=1)
    changed = replace(
        config, d_model=3 * width + 1, head_width=2 * width, head_widths=widths, convolution=convolution
    )
    check(changed, batch, *sizes)


def test_layers_differ_where_heads_are_pruned() -> None:
    config = replace(TOKENS, heads=3, head_width=4, kept_heads=((1,), (0, 1, 2), (2,)))
    check(config, 3, 7, 7)

    numbers = summary("pruned", config, 1, 7)
    layers = [(section["layers"], section["steps"][0]["shape"]) for section in numbers["sections"][1:-1]]
    assert layers == [("0, 2", (1, 7, 4)), ("1", (1, 7, 12))]
    matrices = [part for part in numbers["parameters"]["parts"] if part["part"] == "attention matrices"]
    assert [(part["each"], part["layers"]) for part in matrices] == [
        (4 * 12 * 4, "0, 2"),
        (4 * 12 * 12, "1"),
    ]
    norms = next(part for part in numbers["parameters"]["parts"] if part["part"] == "layer norms")
    assert norms["layers"] == "0-2"
    widest = numbers["attention"]["sent_as"]["FP32"]["a_layer"]["bytes"]
    assert widest == attention_bytes(config, 1, 7, layers=[1]) == 4 * 3 * 7**2


def steps_of_layer(config: EncoderConfig, layer: str = "0") -> list[tuple[str, str]]:
    """The steps of the kind of layers that begins with one, and their shapes."""
    sections = summary("any", config, 1, 7)["sections"]
    section = next(each for each in sections if (each["layers"] or "").split("-")[0].split(",")[0] == layer)
    return [(step["tensor"], " ".join(step["axes"])) for step in section["steps"]]


def test_steps_of_attention_in_their_order() -> None:
    config = replace(PRESETS["teaching"], causal=True, relative_buckets=4, relative_distance=8)

    assert steps_of_layer(config) == [
        ("q = x W_q", "B T H·K"),
        ("k = x W_k", "B T H·K"),
        ("v = x W_v", "B T H·K"),
        ("q = view(q)", "B T H K"),
        ("k = view(k)", "B T H K"),
        ("v = view(v)", "B T H K"),
        ("q = transpose(q)", "B H T K"),
        ("k = transpose(k)", "B H T K"),
        ("v = transpose(v)", "B H T K"),
        ("kᵀ = transpose(k)", "B H K T"),
        ("scores = q kᵀ", "B H T T"),
        ("scores = scores / √K", "B H T T"),
        ("scores = scores + bias", "B H T T"),
        ("scores = scores + mask", "B H T T"),
        ("weights = softmax", "B H T T"),
        ("heads = weights v", "B H T K"),
        ("heads = transpose(heads)", "B T H K"),
        ("heads = concat(heads)", "B T H·K"),
        ("x = heads W_o", "B T D"),
    ]


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (PRESETS["gpt2"], ["x", "mask (causal, padding)"]),
        (replace(PRESETS["cross"], mask_input=True), ["x = query", "memory", "memory mask (padding, given)"]),
        (
            MODERN,
            [
                "token ids",
                "mask (padding)",
                "local mask (window 8, padding)",
                "angles (base 160)",
                "local angles (base 100)",
                "x = token embeddings",
            ],
        ),
        (replace(PRESETS["teaching"], head_mask_input=True), ["x", "mask (padding)", "head mask"]),
    ],
)
def test_what_layers_get_beside_their_tokens(config: EncoderConfig, given: list[str]) -> None:
    first = summary("any", config, 1, 7)["sections"][0]
    assert [step["tensor"] for step in first["steps"]] == given


def test_steps_of_blocks() -> None:
    assert [name for name, _ in steps_of_layer(PRESETS["bert-base"])[-8:]] == [
        "a = heads W_o",
        "x = x + a",
        "x = norm(x)",
        "up = x W_up",
        "hidden = gelu(up)",
        "f = hidden W_down",
        "x = x + f",
        "x = norm(x)",
    ]
    gated = [name for name, _ in steps_of_layer(MODERN, "1")]
    assert gated[:6] == [
        "h = norm(x)",
        "q = h W_q",
        "k = h W_k",
        "v = h W_v",
        "q = rotate(q)",
        "k = rotate(k)",
    ]
    assert "scores = scores + local mask" in gated
    assert gated[-5:] == [
        "gate = h W_gate",
        "up = h W_up",
        "hidden = gelu(gate) · up",
        "f = hidden W_down",
        "x = x + f",
    ]
    assert steps_of_layer(MODERN)[0] == ("q = x W_q", "B T H·K")  # no norm comes before
    assert steps_of_layer(replace(PRESETS["gpt2"], head_mask_input=True))[-8:-6] == [
        ("heads = heads · head mask", "B T H·K"),
        ("a = heads W_o", "B T D"),
    ]


def test_matrices_one_by_one() -> None:
    def tensors(config: EncoderConfig) -> list[tuple[str, tuple[str, ...], tuple[int, ...], str]]:
        parts = [count for count in parameter_counts(config) if count.name.startswith("attention")]
        return [(each.name, each.axes, each.shape, each.formula) for part in parts for each in part.tensors]

    config = EncoderConfig(d_model=12, heads=2, layers=1, head_width=5)
    biases = [(f"b_{each}", ("H·K",), (10,), "H·K") for each in "qkv"]
    assert tensors(config) == [
        *((f"W_{each}", ("D", "H·K"), (12, 10), "D·H·K") for each in "qkv"),
        ("W_o", ("H·K", "D"), (10, 12), "D·H·K"),
        *biases,
        ("b_o", ("D",), (12,), "D"),
    ]
    assert tensors(replace(config, fused=True, bias=False)) == [
        ("W_qkv", ("D", "3·H·K"), (12, 30), "3·D·H·K"),
        ("W_o", ("H·K", "D"), (10, 12), "D·H·K"),
    ]


def test_tensors_of_heads_for_tasks() -> None:
    dense = (Dense(width=5, activation="tanh", normalise=True, norm=True), Dense(width=7, bias=False))
    heads = replace(
        TOKENS,
        dense=dense,
        normalise=True,
        truncate_dim=3,
        classifier=Classifier(labels=("a", "b"), dense=dense),
        token_vectors=TokenVectors(dense=dense),
        relative_buckets=4,
        relative_distance=8,
    )
    for config in (heads, replace(heads, splade=Splade()), replace(heads, lexical=LexicalWeights())):
        with torch.device("meta"):
            numels = Counter(each.numel() for each in Encoder(config).parameters())
        counted = Counter[int]()
        for count in parameter_counts(config):
            counted.update(each.each for each in count.tensors for _ in range(count.times))
        assert counted == numels

    steps = summary("any", heads, 2, 7)["sections"][-1]["steps"]
    assert [step["tensor"] for step in steps if step["symbol"] == "pooled"] == [
        "pooled (mean)",
        "pooled = pooled / ‖pooled‖",
        "pooled = tanh(pooled W_1)",
        "pooled = norm(pooled)",
        "pooled = pooled W_2",
        "pooled = pooled / ‖pooled‖",
        "pooled = pooled[:3]",
    ]
    vectors = next(step for step in steps if step["symbol"] == "v")
    assert (vectors["tensor"], vectors["reads"]) == ("v = output / ‖output‖", ("output",))


def test_logits_of_tokens_that_are_pooled() -> None:
    head = Classifier(
        labels=("a", "b"), pooling="mean", pools_logits=True, dense=(Dense(width=5, activation="gelu"),)
    )
    steps = summary("any", replace(TOKENS, classifier=head), 2, 7)["sections"][-1]["steps"]

    assert [(step["tensor"], step["shape"]) for step in steps[-4:]] == [
        ("c = each token of output", (2, 7, 12)),
        ("c = gelu(c W_1)", (2, 7, 5)),
        ("c = c W_2", (2, 7, 2)),
        ("logits = mean of c", (2, 2)),
    ]


def test_formulas_add_up() -> None:
    config = replace(TOKENS, head_width=5)

    assert {count.name: count.formula for count in parameter_counts(config)} == {
        "token embeddings": "30·D",
        "position embeddings": "16·D",
        "type embeddings": "2·D",
        "embedding norm": "2·D",
        "attention matrices": "4·D·H·K",
        "attention biases": "3·H·K + D",
        "layer norms": "4·D",
        "feed-forward matrices": "2·D·F",
        "feed-forward biases": "F + D",
    }
    assert [(count.name, count.formula) for count in flop_counts(config, 3, 7)] == [
        ("q, k, v", "6·B·T·D·H·K"),
        ("scores", "2·B·T²·H·K"),
        ("weighted values", "2·B·T²·H·K"),
        ("output projection", "2·B·T·D·H·K"),
        ("feed-forward", "4·B·T·D·F"),
    ]


def test_the_limit_of_a_reply_is_the_servers() -> None:
    assert Settings(models=Path()).max_reply_bytes == REPLY_LIMIT


def test_the_longest_sequence_is_the_last_that_fits() -> None:
    for layers, itemsize in ((None, 4), ([0], 1)):
        longest = longest_sequence(PRESETS["bert-base"], 2, 10**7, layers=layers, itemsize=itemsize)
        needed = [
            attention_bytes(PRESETS["bert-base"], 2, tokens, layers=layers, itemsize=itemsize)
            + 4 * 2 * tokens * 768
            for tokens in (longest, longest + 1)
        ]
        assert needed[0] <= 10**7 < needed[1]
    assert longest_sequence(TOKENS, 1, 10**9) == 16  # the model's positions
    assert longest_sequence(TOKENS, 1, 10) == 0


def test_sizes_that_do_not_fit_are_named() -> None:
    for batch, tokens, message in (
        (0, 5, "batch must be at least 1, was 0"),
        (1, -5, "tokens must be at least 1, was -5"),
        (1, 17, "tokens must be at most 16, the model's positions, was 17"),
    ):
        for describe in (flops, attention_bytes):
            with pytest.raises(ValueError, match=message):
                describe(TOKENS, batch, tokens)
