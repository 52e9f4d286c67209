"""An encoder's forward pass, step by step: shapes and all costs are read from this. Needs no torch.

Shapes are written in letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, K head width,
F feed-forward width, E embedding width.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyhead_model.config import EncoderConfig
from polyhead_model.task_heads import Dense

ATTENTION = ("attention", "cross_attention")
"""The roles of attention weights."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A tensor of a forward pass, and how it is computed."""

    name: str
    axes: str
    """Its shape in letters, such as "B T H·K"."""
    part: str | None = None
    """What a matrix product is counted as; None = there is none."""
    over: str | None = None
    """What the product sums over: [B, T, D] times [D, H·K] sums over D."""
    weights: tuple[tuple[str, str], ...] = ()
    """The parameters that it reads, each as what they are counted as and their shape in letters."""
    role: str | None = None
    """What it is in a reply, such as "output" or "attention"; None = it is in none."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Steps that follow each other: the input, equal layers, or the output."""

    stage: Literal["input", "layers", "output"]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int]
    """The size of every letter."""
    layers: Sequence[int] | None = None
    """The numbers of the layers that take these steps; None = they are not in a layer."""

    def shape(self, axes: str) -> tuple[int, ...]:
        """Return a shape in numbers."""
        return tuple(math.prod(self._factors(axis)) for axis in axes.split())

    def count(self, axes: str) -> int:
        """Return how many numbers a tensor of this shape has."""
        return math.prod(self._factors(axes))

    def _factors(self, axes: str) -> Iterator[int]:
        return (self.sizes[each] if each in self.sizes else int(each) for each in factors(axes))


def factors(axes: str) -> list[str]:
    """Split a shape in letters into its factors, numbers among them: "B 3·H·K" gives B, 3, H and K."""
    return re.findall(r"[^ ·]+", axes)


def forward_sections(
    config: EncoderConfig, batch: int = 1, tokens: int = 1, memory: int | None = None
) -> tuple[Section, ...]:
    """List the steps of a forward pass, from input to output.

    Args:
        config: The encoder.
        batch: B.
        tokens: T.
        memory: S, for cross-attention; None = T.

    Raises:
        ValueError: A size is not positive, T is more than the encoder's positions, or S has no use.
    """
    if memory is not None and config.cross_attention is None:
        raise ValueError(f"memory must be left out for an encoder without cross-attention, was {memory}")
    for name, size in (("batch", batch), ("tokens", tokens), ("memory", memory)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, was {size}")
    if config.positions is not None and tokens > config.positions:
        raise ValueError(f"tokens must be at most {config.positions}, the model's positions, was {tokens}")
    sizes = {"B": batch, "T": tokens, "D": config.d_model, "H": config.heads, "K": config.head_size}
    if config.cross_attention is not None:
        sizes["S"] = memory or tokens
    if config.feed_forward is not None:
        sizes["F"] = config.feed_forward
    if config.embedding_width is not None:
        sizes["E"] = config.embedding_width
    return (
        Section(stage="input", steps=_input_steps(config), sizes=sizes),
        *(
            Section(
                stage="layers",
                steps=_layer_steps(config, layers[0]),
                sizes={**sizes, "H": len(config.heads_of(layers[0]))},
                layers=layers,
            )
            for layers in _equal_layers(config)
        ),
        Section(stage="output", steps=_output_steps(config), sizes=sizes),
    )


def _equal_layers(config: EncoderConfig) -> Iterable[Sequence[int]]:
    """Divide the layers into those with the same steps and sizes, of which there may be very many."""
    if config.kept_heads is not None:
        kinds: dict[tuple[bool, int], list[int]] = {}
        for layer, heads in enumerate(config.kept_heads):
            kinds.setdefault((_has_attention_norm(config, layer), len(heads)), []).append(layer)
        return kinds.values()
    first = 0 if _has_attention_norm(config, 0) else 1
    return filter(None, (range(first), range(first, config.layers)))


def _has_attention_norm(config: EncoderConfig, layer: int) -> bool:
    return layer > 0 or config.first_attention_norm


def _input_steps(config: EncoderConfig) -> tuple[Step, ...]:
    distances: tuple[Step, ...] = ()
    if config.relative_buckets is not None:
        table = ("relative positions", f"{config.relative_buckets} H")
        distances = (Step(name="bias by distance", axes="H T T", weights=(table,)),)
    if config.vocabulary is None:
        memory = (Step(name="memory", axes="B S D"),) if config.cross_attention else ()
        return (Step(name=config.main_input, axes="B T D"), *memory, *distances)
    width = "D" if config.embedding_width is None else "E"
    tables = (("token", config.vocabulary), ("position", config.position_rows), ("type", config.types))
    weights = [(f"{name} embeddings", f"{rows} {width}") for name, rows in tables if rows]
    if config.embedding_norm:
        weights.append(("embedding norm", _norm_shape(config, width)))
    vectors = "x" if width == "D" else "e"
    steps = [
        Step(name="token ids", axes="B T"),
        Step(name=f"{vectors} = embeddings", axes=f"B T {width}", weights=tuple(weights)),
    ]
    if width == "E":
        steps.append(_linear("x = e W_E", "B T D", over="E", part="embedding projection"))
    return (*steps, *distances)


def _layer_steps(config: EncoderConfig, layer: int) -> tuple[Step, ...]:
    attentions = {
        None: [_self_attention(config)],
        "alone": [_cross_attention(config)],
        "after_self": [_self_attention(config), _cross_attention(config)],
    }[config.cross_attention]
    if config.feed_forward is None:
        return attentions[0]
    transformed = _feed_forward(config)
    norm = Step(name="x = norm(x)", axes="B T D", weights=(("layer norms", _norm_shape(config, "D")),))
    steps: list[Step] = []
    for number, sublayer in enumerate([*attentions, transformed]):
        *inner, last = sublayer
        residual = replace(last, name=last.name.replace("x = ", "x = x + "))
        if config.norm == "post":
            steps += [*inner, residual, norm]
        elif number == 0 and not _has_attention_norm(config, layer):
            steps += [*inner, residual]
        else:
            steps += [replace(norm, name="norm(x)"), *inner, residual]
    return tuple(steps)


def _self_attention(config: EncoderConfig) -> tuple[Step, ...]:
    def projection(name: str, axes: str) -> Step:
        return _linear(name, axes, over="D", part="q, k, v", group="attention", bias=config.bias)

    projections = [projection(f"{each} = x W_{each}", "B T H·K") for each in "qkv"]
    if config.fused:
        projections = [projection("q, k, v = x W_qkv", "B T 3·H·K")]
    if config.rotary_base is not None:
        projections += [Step(name=f"{each} rotated", axes="B T H·K") for each in "qk"]
    bias = "" if config.relative_buckets is None else " + bias"
    return (*projections, *_heads(config, "T", scores=f"scores = q kᵀ / √K{bias}"))


def _cross_attention(config: EncoderConfig) -> tuple[Step, ...]:
    projections = (
        _linear(
            f"{each} = {source} W_{each}",
            f"B {length} H·K",
            over="D",
            part="cross q, k, v",
            group="cross-attention",
            bias=config.bias,
        )
        for each, source, length in (("q", "x", "T"), ("k", "memory", "S"), ("v", "memory", "S"))
    )
    return (*projections, *_heads(config, "S", scores="scores = q kᵀ / √K", prefix="cross "))


def _heads(config: EncoderConfig, keys: str, *, scores: str, prefix: str = "") -> tuple[Step, ...]:
    """Return the steps from q, k and v to the output projection, for keys that are T or S."""
    return (
        Step(name="q by head", axes="B H T K"),
        Step(name="kᵀ by head", axes=f"B H K {keys}"),
        Step(name="v by head", axes=f"B H {keys} K"),
        Step(name=scores, axes=f"B H T {keys}", part=f"{prefix}scores", over="K"),
        Step(
            name=f"{prefix}weights = softmax",
            axes=f"B H T {keys}",
            role="cross_attention" if keys == "S" else "attention",
        ),
        Step(name="heads = weights v", axes="B H T K", part=f"{prefix}weighted values", over=keys),
        Step(name="concatenated heads", axes="B T H·K"),
        _linear(
            "x = heads W_o",
            "B T D",
            over="H·K",
            part=f"{prefix}output projection",
            group="cross-attention" if prefix else "attention",
            bias=config.bias,
        ),
    )


def _feed_forward(config: EncoderConfig) -> tuple[Step, ...]:
    def linear(name: str, axes: str, over: str) -> Step:
        return _linear(name, axes, over=over, part="feed-forward", group="feed-forward", bias=config.bias)

    up = [linear("hidden = act(x W_up)", "B T F", "D")]
    if config.gated:
        up = [linear("gate = act(x W_gate)", "B T F", "D"), linear("hidden = gate · (x W_up)", "B T F", "D")]
    return (*up, linear("x = hidden W_down", "B T D", "F"))


def _output_steps(config: EncoderConfig) -> tuple[Step, ...]:
    steps = [Step(name="output", axes="B T D", role="output")]
    if config.final_norm:
        norm = ("final norm", _norm_shape(config, "D"))
        steps.insert(0, Step(name="x = norm(x)", axes="B T D", weights=(norm,)))
    if config.token_vectors is not None:
        layers = config.token_vectors.dense
        vectors = _dense_steps(config, layers, part="token vectors", name="v = act(v W)", axes="B T")
        vectors = vectors or [Step(name="v = output", axes="B T D")]
        steps += [*vectors[:-1], replace(vectors[-1], role="token_vectors")]
    if config.pooling is not None:
        pooled = [Step(name=f"pooled ({config.pooling})", axes="B D")]
        pooled += _dense_steps(config, config.dense, part="dense layers", name="pooled = act(pooled W)")
        if config.truncate_dim is not None:
            pooled.append(Step(name="pooled, cut", axes=f"B {config.truncate_dim}"))
        steps += [*pooled[:-1], replace(pooled[-1], role="pooled")]
    if (head := config.classifier) is not None:
        of, axes = ("each token", "B T") if head.pooling is None else (head.pooling, "B")
        steps.append(Step(name=f"c = {of} of output", axes=f"{axes} D"))
        layers = (*head.dense, Dense(width=len(head.labels), bias=head.bias))
        dense = _dense_steps(config, layers, part="classifier", name="c = act(c W)", axes=axes)
        steps += [*dense[:-1], replace(dense[-1], name="logits = c W", role="logits")]
    if config.splade is not None:
        norm = ("vocabulary head", _norm_shape(config, "D"))
        hidden = _linear("h = act(x W)", "B T D", over="D", part="vocabulary head")
        words = f"B T {config.vocabulary}"
        steps += [
            replace(hidden, name="h = norm(act(x W))", weights=(*hidden.weights, norm)),
            Step(
                name="logits of words = h embeddingsᵀ",
                axes=words,
                part="vocabulary head",
                over="D",
                weights=(("vocabulary head", str(config.vocabulary)),),
            ),
            Step(name=f"words = {config.splade.pooling} log(1 + relu)", axes=f"B {config.vocabulary}"),
        ]
    if config.lexical is not None:
        steps.append(_linear("weights of tokens = relu(x w)", "B T 1", over="D", part="lexical weights"))
        steps.append(Step(name="words = max weights", axes=f"B {config.vocabulary}"))
    return tuple(steps)


def _dense_steps(
    config: EncoderConfig, layers: Sequence[Dense], *, part: str, name: str, axes: str = "B"
) -> list[Step]:
    """Return dense layers on vectors of width D; `axes` are those before it."""
    steps, width = [], "D"
    for layer in layers:
        step = _linear(name, f"{axes} {layer.width}", over=width, part=part, bias=layer.bias)
        width = str(layer.width)
        shape = _norm_shape(config, width) if layer.norm_epsilon is None else f"2·{width}"
        norm = ((part, shape),) if layer.norm else ()
        steps.append(replace(step, weights=(*step.weights, *norm)))
    return steps


def _norm_shape(config: EncoderConfig, width: str) -> str:
    return f"2·{width}" if config.norm_bias else width


def _linear(
    name: str, axes: str, *, over: str, part: str, group: str | None = None, bias: bool = True
) -> Step:
    """Return a product with a matrix of parameters, and maybe a bias, which are counted as `group`."""
    width = axes.rsplit(maxsplit=1)[-1]
    matrices, biases = (f"{group} matrices", f"{group} biases") if group else (part, part)
    weights = ((matrices, f"{over} {width}"), (biases, width))
    return Step(name=name, axes=axes, part=part, over=over, weights=weights if bias else weights[:1])
