"""What holds for every encoder that `EncoderConfig` describes: padding, batch-mates, order, masks, heads."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoders import draw_all, seeded
from tests.numerics import close
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig, EncoderOutput, prune_heads
from polyhead_model.attention_config import Disentangled, ScoreTerm
from polyhead_model.config import Activation, Norm, NormType
from polyhead_model.task_heads import Convolution, Pooling

examples = settings(max_examples=40)

D, VOCABULARY, POSITIONS = 12, 6, 16


@st.composite
def head_fields(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Heads of one width, alone or in groups, or heads of different widths."""
    heads = draw(st.sampled_from([1, 2, 3, 6]))
    if draw(st.integers(0, 3)) == 0:
        widths = [[4, *draw(st.lists(st.integers(1, 4), min_size=heads - 1, max_size=heads - 1))]] * layers
        return {"heads": heads, "head_width": 4, "head_widths": widths}
    return {
        "heads": heads,
        "head_width": draw(st.sampled_from([None, 4])),
        "kv_heads": draw(st.sampled_from([None, *(each for each in (1, 2, 3) if heads % each == 0)])),
        **draw(st.sampled_from([{}, {"qk_norm": True}, {"qk_layer_norm": True}])),
    }


@st.composite
def layer_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Attention alone, or blocks of any kind."""
    layers = draw(st.integers(1, 2))
    fields: dict[str, Any] = {
        "layers": layers,
        **draw(head_fields(layers)),
        "bias": draw(st.booleans()),
        "fused": draw(st.booleans()),
        "causal": draw(st.booleans()),
        "shared_layers": layers > 1 and draw(st.booleans()),
    }
    if draw(st.booleans()):
        return fields
    norm = draw(st.sampled_from(get_args(Norm)))
    norm_type = draw(st.sampled_from(get_args(NormType)))
    norm_bias = norm_type == "layer" and draw(st.booleans())
    final_norm = draw(st.booleans())
    return fields | {
        "feed_forward": 8,
        "norm": norm,
        "norm_type": norm_type,
        "norm_bias": norm_bias,
        "first_attention_norm": norm != "pre" or fields["shared_layers"] or draw(st.booleans()),
        "final_norm": final_norm,
        "final_norm_bias": not (final_norm and norm_bias) or draw(st.booleans()),
        "gated": draw(st.booleans()),
        "up_bias": not fields["bias"] or draw(st.booleans()),
        "activation": draw(st.sampled_from(get_args(Activation))),
    }


@st.composite
def position_fields(draw: st.DrawFn, *, can_rotate: bool, plain: bool) -> dict[str, Any]:
    """What attention knows of positions; `plain` heads are neither in groups nor normed nor of any widths."""
    fields: dict[str, Any] = {}
    if plain and draw(st.integers(0, 2)) == 0:
        fields["disentangled"] = Disentangled(
            terms=tuple(draw(st.lists(st.sampled_from(get_args(ScoreTerm)), min_size=1, unique=True))),
            **draw(st.sampled_from([{"span": 3}, {"span": 4, "distance": 5}])),
            shared=draw(st.booleans()),
            norm=draw(st.booleans()),
        )
    elif can_rotate and draw(st.booleans()):
        fields |= {"rotary_base": 50.0}
    if "disentangled" not in fields and draw(st.booleans()):
        fields |= {"relative_buckets": 6, "relative_distance": 5}
    if draw(st.booleans()):
        fields |= {
            "local_window": draw(st.sampled_from([1, 3, 4])),
            "global_every": (every := draw(st.just(2) | st.none())),
            "first_global": 0 if every is None else draw(st.integers(0, 1)),
        }
        if "rotary_base" in fields and draw(st.booleans()):
            fields |= {"local_rotary_base": 7.0}
    return fields


@st.composite
def embedding_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Vectors, or token ids with embeddings of any kind."""
    if draw(st.booleans()):
        return {}
    norm, width = draw(st.booleans()), draw(st.sampled_from([None, 5]))
    return {
        "vocabulary": VOCABULARY,
        "positions": draw(st.sampled_from([None, POSITIONS])),
        "position_embeddings": draw(st.booleans()),
        "types": draw(st.sampled_from([0, 2])),
        "embedding_norm": norm,
        "embedding_width": width,
        "projection_first": norm and width is not None and draw(st.booleans()),
        "token_dropout_id": draw(st.none() | st.just(4)),
    }


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    fields = draw(layer_fields())
    cross = draw(st.sampled_from([None, None, "alone", "after_self"]))
    if cross is None:
        alike = "head_widths" not in fields
        plain = alike and not any(fields.get(name) for name in ("kv_heads", "qk_norm", "qk_layer_norm"))
        fields |= draw(position_fields(can_rotate=alike, plain=plain)) | draw(embedding_fields())
        if fields.get("positions") and "rotary_base" not in fields and fields["position_embeddings"]:
            fields["padding_id"] = draw(st.none() | st.just(1))
        if fields.get("norm") == "post" and not fields["causal"] and draw(st.booleans()):
            fields["convolution"] = Convolution(
                width=draw(st.sampled_from([1, 3, 5])),
                groups=draw(st.sampled_from([1, 2])),
                activation=draw(st.sampled_from(["tanh", "sigmoid"])),
            )
    elif cross == "alone":
        fields |= {"cross_attention": cross, "causal": False, "fused": False}
    elif "feed_forward" in fields:
        fields |= {"cross_attention": cross}
    pooling = draw(st.none() | st.sampled_from(get_args(Pooling)))
    return EncoderConfig(
        d_model=D, **fields, pooling=pooling, normalise=pooling is not None and draw(st.booleans())
    )


def build(config: EncoderConfig) -> Encoder:
    """An encoder in which every parameter is random, norms and biases too."""
    return seeded(config, change=draw_all)


@dataclass(frozen=True)
class Case:
    """An encoder with a ragged batch for it."""

    encoder: Encoder
    lengths: list[int]
    memory_lengths: list[int]
    inputs: dict[str, Tensor]

    def run(self, encoder: Encoder | None = None, /, **changes: Tensor) -> Any:
        """The result, with attention."""
        with torch.no_grad():
            return (encoder or self.encoder)(**{**self.inputs, **changes}, need_weights=True)

    def alone(self, row: int) -> Any:
        """The result of one sequence without padding."""
        length, memory_length = self.lengths[row], self.memory_lengths[row]
        cut: dict[str, Tensor] = {}
        for name, value in self.inputs.items():
            if name in {"lengths", "memory_lengths"}:
                continue
            own = value[row : row + 1] if len(value) > 1 else value
            if name in {"x", "token_type_ids"}:
                own = own[:, :length]
            elif name == "memory":
                own = own[:, :memory_length]
            elif name in {"mask", "memory_mask"}:
                own = own[:, :length, : length if name == "mask" else memory_length]
            cut[name] = own
        with torch.no_grad():
            return self.encoder(**cut, need_weights=True)

    def visible(self, layer: int, *, memory: bool) -> Tensor:
        """Who sees whom in a layer, worked out one pair at a time: boolean [B, T, T], or [B, T, S]."""
        config = self.encoder.config
        mask = self.inputs.get("memory_mask" if memory else "mask")
        batch, tokens = self.inputs["x"].shape[:2]
        keys = self.inputs["memory"].shape[1] if memory else tokens
        key_lengths = self.memory_lengths if memory else self.lengths
        if mask is not None:
            mask = mask.expand(batch, tokens, keys)

        def sees(row: int, query: int, key: int) -> bool:
            window = (config.local_window or 0) // 2
            near = memory or not config.is_local(layer) or abs(query - key) <= window
            ordered = memory or not config.causal or key <= query
            there = query < self.lengths[row] and key < key_lengths[row]
            return near and ordered and there and (mask is None or bool(mask[row, query, key]))

        return torch.tensor(
            [[[sees(b, q, k) for k in range(keys)] for q in range(tokens)] for b in range(batch)]
        )


@st.composite
def cases(draw: st.DrawFn, *, of_memory_alone: bool = True, prunable: bool = True) -> Case:
    """An encoder and a batch of random lengths, 0 among them, with and without masks."""
    described = draw(configs().filter(lambda one: of_memory_alone or one.cross_attention != "alone"))
    encoder = build(described)
    prunable = prunable and described.cross_attention != "after_self" and not described.qk_layer_norm
    if prunable and draw(st.booleans()):
        heads = draw(st.sets(st.integers(0, described.heads - 1), max_size=described.heads - 1))
        only = draw(st.integers(0, described.layers - 1))
        layers = range(described.layers) if described.shared_layers else [only]
        encoder = prune_heads(encoder, [(layer, head) for layer in layers for head in heads])
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    batch, tokens = len(lengths), max(1, *lengths, 1) + draw(st.integers(0, 2))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    inputs = {"x": torch.randn(batch, tokens, D), "lengths": torch.tensor(lengths)}
    memory_lengths = [0] * batch
    if described.vocabulary is not None:
        inputs["x"] = torch.randint(VOCABULARY, (batch, tokens))
        if described.types:
            inputs["token_type_ids"] = torch.randint(described.types, (batch, tokens))
    if described.cross_attention is not None:
        memory_lengths = draw(st.lists(st.integers(1, 5), min_size=batch, max_size=batch))
        keys = max(memory_lengths) + draw(st.integers(0, 2))
        inputs |= {"memory": torch.randn(batch, keys, D), "memory_lengths": torch.tensor(memory_lengths)}
        if draw(st.booleans()):
            inputs["memory_mask"] = torch.rand(batch, tokens, keys) < 0.6
    if described.cross_attention != "alone" and draw(st.booleans()):
        shape = draw(st.sampled_from([(batch, tokens), (1, tokens), (batch, 1)]))
        inputs["mask"] = torch.rand(*shape, tokens) < 0.6
    if described.cross_attention != "after_self" and draw(st.booleans()):
        inputs["head_mask"] = torch.rand(batch, described.layers, described.heads)
    return Case(encoder, lengths, memory_lengths, inputs)


def tensors(result: EncoderOutput) -> list[Tensor]:
    """Everything of a result that is there, in order."""
    pooled = [] if result.pooled is None else [result.pooled]
    return [result.output, *pooled, *(result.attention or ()), *(result.cross_attention or ())]


@examples
@given(cases())
def test_a_sequence_alone_equals_itself_in_a_batch(case: Case) -> None:
    together = case.run()

    for row, length in enumerate(case.lengths):
        memory_length = case.memory_lengths[row]
        assert torch.all(together.output[row, length:] == 0)
        if length == 0:
            assert together.pooled is None or torch.all(together.pooled[row] == 0)
            continue
        alone = case.alone(row)
        close(together.output[row, :length], alone.output[0])
        if case.encoder.config.pooling is not None:
            close(together.pooled[row], alone.pooled[0])
        to_memory = case.encoder.config.cross_attention == "alone"
        for weights, own in zip(together.attention, alone.attention, strict=True):
            close(weights[row, :, :length, : memory_length if to_memory else length], own[0], scale=1)
        for weights, own in zip(together.cross_attention or (), alone.cross_attention or (), strict=True):
            close(weights[row, :, :length, :memory_length], own[0], scale=1)


@examples
@given(cases())
def test_what_stands_in_the_padding_changes_nothing(case: Case) -> None:
    hostile = {name: value.clone() for name, value in case.inputs.items() if name in {"x", "memory"}}
    for name, value in hostile.items():
        for row, length in enumerate(case.lengths if name == "x" else case.memory_lengths):
            what = [float("nan"), float("inf"), -float("inf")][row % 3]
            value[row, length:] = 10**9 if value.ndim == 2 else what

    for clean, dirty in zip(tensors(case.run()), tensors(case.run(**hostile)), strict=True):
        assert torch.equal(clean, dirty)


@examples
@given(cases())
def test_rows_sum_to_one_over_what_is_visible(case: Case) -> None:
    result = case.run()

    alone = case.encoder.config.cross_attention == "alone"
    for memory, layers in ((alone, result.attention), (True, result.cross_attention)):
        for layer, weights in enumerate(layers or ()):
            visible = case.visible(layer, memory=memory)
            assert torch.all(weights.masked_select(~visible[:, None].expand_as(weights)) == 0)
            sees = visible.any(dim=-1)[:, None].expand(weights.shape[:-1])
            close(weights.sum(dim=-1), sees.float(), scale=1)


@examples
@given(cases(of_memory_alone=False), st.integers(0, 6))
def test_a_causal_position_does_not_see_later_tokens(case: Case, position: int) -> None:
    config = replace(case.encoder.config, causal=True, token_dropout_id=None, convolution=None)
    encoder = build(config)
    x = case.inputs["x"]
    changed = (x + 7) % VOCABULARY if x.ndim == 2 else 1 - x
    later = torch.cat([x[:, :position], changed[:, position:]], dim=1)

    before, after = case.run(encoder), case.run(encoder, x=later)

    assert torch.equal(before.output[:, :position], after.output[:, :position])
    for weights, others in zip(before.attention, after.attention, strict=True):
        assert torch.equal(weights[:, :, :position], others[:, :, :position])
        assert torch.all(weights.triu(1) == 0)


def with_heads_in_order(encoder: Encoder, orders: list[list[int]]) -> Encoder:
    """A copy whose layer l has the encoder's heads in the order `orders[l]`."""
    config, state = encoder.config, dict(encoder.split().state_dict())
    by_head = {
        "w_q",
        "w_k",
        "w_v",
        "w_o",
        "w_pq",
        "w_pk",
        *(("q_norm", "k_norm") if config.qk_layer_norm else ()),
    }
    for name, tensor in state.items():
        parts = name.split(".")
        if "relative_bias" in parts:
            state[name] = tensor[:, orders[0]]
        if parts[-2] not in by_head:
            continue
        layer, order = int(parts[1]), orders[int(parts[1])]
        widths = [*config.widths_of(layer)]
        if parts[-2] == "w_o":
            if parts[-1] == "weight":  # what it adds is not split into heads
                state[name] = torch.cat([tensor.split(widths, dim=1)[head] for head in order], dim=1)
        elif parts[-2] in ("w_q", "q_norm") or config.kv_heads is None:
            state[name] = torch.cat([tensor.split(widths)[head] for head in order])
        else:
            groups = dict.fromkeys(config.kv_heads_of(layer)[head] for head in order)
            state[name] = torch.cat([tensor.split(config.head_size)[group] for group in groups])
    widths_in_order = config.head_widths and tuple(
        tuple(widths[head] for head in order)
        for widths, order in zip(config.head_widths, orders, strict=True)
    )
    copy = Encoder(replace(config, fused=False, head_widths=widths_in_order)).eval()
    copy.load_state_dict(state)
    return copy


def order_of_heads(config: EncoderConfig, random: Any) -> list[int]:
    """Any order in which heads that share keys stay together."""
    size = config.heads // config.groups
    groups = random.sample(range(config.groups), config.groups)
    return [group * size + place for group in groups for place in random.sample(range(size), size)]


@examples
@given(cases(prunable=False), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_weights_and_leaves_the_output(case: Case, random: Any) -> None:
    config = case.encoder.config
    orders = [order_of_heads(config, random) for _ in range(config.layers)]
    if config.shared_layers or config.relative_buckets is not None:  # what layers share has one order
        orders = [orders[0]] * config.layers
    changes = {}
    if (head_mask := case.inputs.get("head_mask")) is not None:
        by_layer = zip(head_mask.unbind(1), orders, strict=True)
        changes["head_mask"] = torch.stack([own[:, order] for own, order in by_layer], dim=1)

    before, after = case.run(), case.run(with_heads_in_order(case.encoder, orders), **changes)

    close(after.output, before.output)
    if before.pooled is not None:
        close(after.pooled, before.pooled)
    for ours, theirs in (
        (after.attention, before.attention),
        (after.cross_attention, before.cross_attention),
    ):
        for layer, order in enumerate(orders if theirs is not None else ()):
            close(ours[layer], theirs[layer][:, order], scale=1)


@examples
@given(cases(of_memory_alone=False))
def test_fusing_and_splitting_lose_nothing(case: Case) -> None:
    separate = case.encoder.split()
    fused = separate.fuse()
    back = fused.split().state_dict()

    assert fused.config == replace(case.encoder.config, fused=True)
    assert not fused.training
    assert list(back) == list(separate.state_dict())
    assert all(torch.equal(back[name], tensor) for name, tensor in separate.state_dict().items())
    before = case.run(separate)
    for one, other in zip(tensors(case.run(fused)), tensors(before), strict=True):
        close(one, other)
    with torch.no_grad():  # they are copies, not views
        for parameter in fused.parameters():
            parameter.zero_()
    assert torch.equal(case.run(separate).output, before.output)
