"""Attention against a plain loop, and against both of PyTorch's own implementations."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoders import draw_all, seeded
from tests.numerics import close
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig, MultiHeadAttention, scaled_dot_product_attention

examples = settings(max_examples=40)

TERMS = 4.0
"""About the largest of what cases add up. Where a case has one output, it may be what is left of them."""


def loop_head(
    q: list[list[float]], k: list[list[float]], v: list[list[float]], mask: list[list[bool]]
) -> tuple[list[list[float]], list[list[float]]]:
    """One head by the textbook: q is Tq × K, k and v are Tk × K, mask is Tq × Tk. Plain Python floats."""
    outputs, weights = [], []
    for query, visible in zip(q, mask, strict=True):
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in k]
        highest = max((s for s, see in zip(scores, visible, strict=True) if see), default=0.0)
        powers = [math.exp(s - highest) if see else 0.0 for s, see in zip(scores, visible, strict=True)]
        row = [power / (sum(powers) or 1.0) for power in powers]
        weights.append(row)
        outputs.append([sum(w * value[j] for w, value in zip(row, v, strict=True)) for j in range(len(v[0]))])
    return outputs, weights


def loop_attention(
    attention: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Multi-head attention, a sequence and a head at a time, in double precision; mask is [B, Tq, Tk]."""
    state = {name: tensor.double() for name, tensor in attention.split().state_dict().items()}

    def project(x: Tensor, name: str) -> Tensor:
        return F.linear(x.double(), state[f"{name}.weight"], state.get(f"{name}.bias"))

    def normed_together(x: Tensor, name: str) -> Tensor:
        if attention.qk_layer_norm is None:
            return x
        rows = []
        for row in x.tolist():
            mean = sum(row) / len(row)
            spread = math.sqrt(sum((each - mean) ** 2 for each in row) / len(row) + attention.qk_layer_norm)
            factors = state[f"{name}.weight"].tolist()
            rows.append([(one - mean) / spread * factor for one, factor in zip(row, factors, strict=True)])
        return torch.tensor(rows).double().reshape(x.shape)

    def normed(x: Tensor, name: str) -> Tensor:
        if attention.qk_norm is None:
            return x
        rows = [
            [
                one * factor / math.sqrt(sum(each**2 for each in row) / len(row) + attention.qk_norm)
                for one, factor in zip(row, state[f"{name}.weight"].tolist(), strict=True)
            ]
            for row in x.tolist()
        ]
        return torch.tensor(rows).double().reshape(x.shape)

    widths = list(attention.head_widths or [attention.head_width] * attention.heads)
    shared = attention.heads // attention.kv_heads
    outputs, weights = [], []
    for b in range(len(query)):
        heads = []
        for h in range(attention.heads):
            own = slice(sum(widths[:h]), sum(widths[: h + 1]))
            group = h // shared  # as many heads in a row share keys and values
            its = own if shared == 1 else slice(group * widths[0], (group + 1) * widths[0])
            q = normed(normed_together(project(query[b], "w_q"), "q_norm")[:, own], "q_norm")
            k = normed(normed_together(project(key[b], "w_k"), "k_norm")[:, its], "k_norm")
            v = project(value[b], "w_v")[:, its]
            heads.append(loop_head(q.tolist(), k.tolist(), v.tolist(), mask[b].tolist()))
        concatenated = torch.cat([torch.tensor(output).double() for output, _ in heads], dim=1)
        outputs.append(project(concatenated, "w_o"))
        weights.append(torch.tensor([weight for _, weight in heads]).double())
    return torch.stack(outputs), torch.stack(weights)


@dataclass(frozen=True)
class Case:
    """Inputs of a multi-head attention."""

    attention: MultiHeadAttention
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cross-attention of any small size, with a mask of any density, some rows of which see nothing."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    batch, tq, tk = (draw(st.integers(1, 4)) for _ in range(3))
    heads, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    d_model = draw(st.integers(1, 9))
    kinds: list[dict[str, Any]] = [
        {},
        {"kv_heads": draw(st.sampled_from([each for each in (1, 2, 3, 4) if heads % each == 0]))},
        {"head_widths": draw(st.lists(st.integers(1, width), min_size=heads, max_size=heads))},
    ]
    kind = draw(st.sampled_from(kinds))
    norms: list[dict[str, Any]] = [{}, {"qk_norm": 1e-6}, {"qk_layer_norm": 1e-5}]
    attention = MultiHeadAttention(
        d_model,
        heads,
        head_width=width,
        bias=draw(st.booleans()),
        fused=draw(st.booleans()),
        **kind,
        **({} if "head_widths" in kind else draw(st.sampled_from(norms))),
    )
    for name, parameter in attention.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter)
    density = draw(st.sampled_from([0.2, 0.7, 1.0]))
    return Case(
        attention.eval(),
        torch.randn(batch, tq, d_model),
        torch.randn(batch, tk, d_model),
        torch.randn(batch, tk, d_model),
        torch.rand(batch, tq, tk) < density,
    )


@examples
@given(cases())
def test_multi_head_attention_is_the_loop(case: Case) -> None:
    with torch.no_grad():
        output, weights = case.attention(case.query, case.key, case.value, mask=case.mask, need_weights=True)
    expected, expected_weights = loop_attention(case.attention, case.query, case.key, case.value, case.mask)

    close(output, expected, scale=TERMS)
    close(weights, expected_weights, scale=1)


@examples
@given(cases())
def test_pure_function_is_torch_sdpa(case: Case) -> None:
    q, k, v = (
        x.reshape(len(x), x.shape[1], 1, -1).transpose(1, 2) for x in (case.query, case.key, case.value)
    )
    mask = case.mask[:, None]

    output, _ = scaled_dot_product_attention(q, k, v, mask)

    close(output, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), scale=TERMS)
    output, _ = scaled_dot_product_attention(q, k, v)
    close(output, F.scaled_dot_product_attention(q, k, v), scale=TERMS)


@pytest.mark.parametrize("fused", [False, True])
def test_a_row_with_nothing_to_attend_to_gives_zeros(fused: bool) -> None:
    torch.manual_seed(3)
    attention = MultiHeadAttention(12, 3, fused=fused).eval()
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[0, 1] = False
    mask[1] = False

    q = torch.randn(2, 4, 12)
    output, weights = scaled_dot_product_attention(q, q, q, mask)
    assert torch.all(output[0, 1] == 0)
    assert torch.all(output[1] == 0)
    assert torch.all(weights[1] == 0)
    assert torch.all(output[0, 0] != 0)

    output, weights = attention(q, mask=mask, need_weights=True)
    assert torch.all(weights[0, :, 1] == 0)
    assert torch.equal(output[1], attention.w_o.bias.expand(4, 12))  # the heads' zeros, through W_o


def test_gradients_are_finite_where_a_row_sees_nothing() -> None:
    x: Any = torch.randn(1, 3, 8, requires_grad=True)
    mask = torch.tensor([[[True, False, False], [False, False, False], [True, True, True]]])
    MultiHeadAttention(8, 2)(x, mask=mask)[0].sum().backward()

    assert torch.all(x.grad.isfinite())


def test_dropout_drops_weights_and_scales_the_rest() -> None:
    torch.manual_seed(4)
    q = torch.randn(2, 50, 8)
    plain, weights = scaled_dot_product_attention(q, q, torch.eye(50).expand(2, 50, 50))
    dropped, same = scaled_dot_product_attention(q, q, torch.eye(50).expand(2, 50, 50), dropout=0.25)

    close(plain, weights, scale=1)
    assert torch.equal(same, weights)  # as the softmax gave them
    gone = dropped == 0
    assert 0.2 < gone.float().mean() < 0.3
    close(dropped[~gone], weights[~gone] / 0.75, scale=1)


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(5)
    attention = MultiHeadAttention(16, 2, dropout=0.5)
    x = torch.randn(2, 9, 16)
    one, other = attention(x)[0], attention(x)[0]
    assert not torch.allclose(one, other)

    attention.eval()
    without = MultiHeadAttention(16, 2)
    without.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x)[0], attention(x)[0])
    assert torch.equal(attention(x)[0], without(x)[0])
    assert torch.equal(without.train()(x)[0], without.eval()(x)[0])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 8)], "query must have the shape [B, T, D = 8], was [2, 8]"),
        ([(2, 3, 9)], "query must have the shape [B, T, D = 8], was [2, 3, 9]"),
        ([(2, 3, 8), (1, 3, 8)], "key must have the shape [B = 2, T, D = 8], was [1, 3, 8]"),
        ([(2, 3, 8), (2, 5, 8), (2, 5, 7)], "value must have the shape [B = 2, T, D = 8], was [2, 5, 7]"),
        ([(2, 3, 8), (2, 5, 8), (2, 4, 8)], "value must have key's shape, [2, 5, 8]: one value a key"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MultiHeadAttention(8, 2)(*(torch.zeros(shape) for shape in shapes))


def test_heads_must_divide_into_groups() -> None:
    with pytest.raises(ValueError, match=re.escape("kv_heads (3) must divide heads (4)")):
        MultiHeadAttention(8, 4, kv_heads=3)


GROUPED = [
    {"rotary_base": 50.0, "local_window": 4, "global_every": 2, "local_rotary_base": 9.0},
    {"causal": True, "qk_norm": True, "rotary_base": 50.0},
    {"relative_buckets": 6, "relative_distance": 9, "fused": True},
    {"cross_attention": "alone"},
]


@pytest.mark.parametrize("fields", GROUPED)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_that_share_keys_are_heads_with_the_same_keys(kv_heads: int, fields: dict[str, Any]) -> None:
    config = EncoderConfig(d_model=16, heads=4, layers=2, head_width=6, kv_heads=kv_heads, **fields)
    grouped = seeded(config, change=draw_all).split()
    state = dict(grouped.state_dict())
    for name, tensor in state.items():
        if "w_k" in name or "w_v" in name:
            by_group = tensor.reshape(kv_heads, 6, -1).repeat_interleave(4 // kv_heads, 0)
            state[name] = by_group.reshape(24, *tensor.shape[1:])
    separate = Encoder(replace(config, kv_heads=None, fused=False)).eval()
    separate.load_state_dict(state)
    inputs: dict[str, Tensor] = {"x": torch.randn(3, 7, 16), "lengths": torch.tensor([7, 2, 0])}
    if config.cross_attention:
        inputs |= {"memory": torch.randn(3, 5, 16), "memory_lengths": torch.tensor([1, 5, 3])}
        inputs["memory_mask"] = torch.rand(3, 7, 5) < 0.7
    else:
        inputs["mask"] = torch.rand(3, 7, 7) < 0.7

    with torch.no_grad():
        ours, theirs = (each(**inputs, need_weights=True) for each in (grouped, separate))
        packed = grouped(**inputs, pack=True)

    close(ours.output, theirs.output)
    close(packed.output, theirs.output)
    for weights, others in zip(ours.attention, theirs.attention, strict=True):
        close(weights, others, scale=1)


def test_masks_that_do_not_fit_are_named() -> None:
    attention = MultiHeadAttention(8, 2)
    x = torch.zeros(2, 3, 8)
    for shape in ((3, 3), (3, 3, 3), (2, 2, 3), (2, 3, 4), (2, 2, 3, 3)):
        with pytest.raises(ValueError, match=r"\[B or 1, Tq or 1, Tk\] with B = 2, Tq = 3, Tk = 3, was \["):
            attention(x, mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(
        TypeError, match=r"boolean with True = may attend, was torch.float32; polyhead_model.masks"
    ):
        attention(x, mask=torch.zeros(2, 3, 3))
