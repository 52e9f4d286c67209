"""An encoder's forward pass, step by step: shapes and all costs are read from this. Needs no torch.

Shapes are written in letters: B batch, T tokens, D d_model, H heads, K head width, F feed-forward width.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from polyhead_model.config import EncoderConfig


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
    is_attention: bool = False
    """Whether the attention graph returns it."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Steps that follow each other: the input, equal layers, or the output."""

    stage: Literal["input", "layers", "output"]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int]
    """The size of every letter."""
    layers: tuple[int, ...] | None = None
    """The numbers of the layers that take these steps; None = they are not in a layer."""

    def shape(self, axes: str) -> tuple[int, ...]:
        """Return a shape in numbers."""
        return tuple(math.prod(self._factors(axis)) for axis in axes.split())

    def count(self, axes: str) -> int:
        """Return how many numbers a tensor of this shape has; 1 without axes."""
        return math.prod(self._factors(axes))

    def _factors(self, axes: str) -> Iterator[int]:
        return (self.sizes[each] if each in self.sizes else int(each) for each in factors(axes))


def factors(axes: str) -> list[str]:
    """Split a shape in letters into its factors, numbers among them: "B 3·H·K" gives B, 3, H and K."""
    return re.findall(r"[^ ·]+", axes)


def forward_sections(config: EncoderConfig, batch: int = 1, tokens: int = 1) -> tuple[Section, ...]:
    """List the steps of a forward pass, from input to output.

    Raises:
        ValueError: `batch` or `tokens` is not positive, or T is more than the encoder's positions.
    """
    for name, size in (("batch", batch), ("tokens", tokens)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, was {size}")
    if config.positions is not None and tokens > config.positions:
        raise ValueError(f"tokens must be at most {config.positions}, the model's positions, was {tokens}")
    sizes = {
        "B": batch,
        "T": tokens,
        "D": config.d_model,
        "H": config.heads,
        "K": config.head_size,
        "F": config.feed_forward or 0,
    }
    return (
        Section(stage="input", steps=_input_steps(config), sizes=sizes),
        Section(stage="layers", steps=_layer_steps(config), sizes=sizes, layers=tuple(range(config.layers))),
        Section(stage="output", steps=_output_steps(config), sizes=sizes),
    )


def _input_steps(config: EncoderConfig) -> tuple[Step, ...]:
    if config.vocabulary is None:
        return (Step(name="x", axes="B T D"),)
    tables = (("token", config.vocabulary), ("position", config.position_rows), ("type", config.types))
    weights = [(f"{name} embeddings", f"{rows} D") for name, rows in tables if rows]
    if config.embedding_norm:
        weights.append(("embedding norm", "2·D"))
    return (
        Step(name="token ids", axes="B T"),
        Step(name="x = embeddings", axes="B T D", weights=tuple(weights)),
    )


def _layer_steps(config: EncoderConfig) -> tuple[Step, ...]:
    attention = _attention_steps(config)
    if config.feed_forward is None:
        return (*attention, _output_projection(config, "x = heads W_o"))
    hidden = _linear(
        config, "hidden = act(x W_up)", "B T F", over="D", part="feed-forward", group="feed-forward"
    )
    down = _linear(
        config, "x = x + hidden W_down", "B T D", over="F", part="feed-forward", group="feed-forward"
    )
    heads = _output_projection(config, "x = x + heads W_o")
    norm = Step(name="x = norm(x)", axes="B T D", weights=(("layer norms", "2·D"),))
    if config.norm == "pre":
        norm = replace(norm, name="norm(x)")
        return (norm, *attention, heads, norm, hidden, down)
    return (*attention, heads, norm, hidden, down, norm)


def _attention_steps(config: EncoderConfig) -> tuple[Step, ...]:
    """List the steps from x to the concatenated heads."""

    def projection(name: str, axes: str) -> Step:
        return _linear(config, name, axes, over="D", part="q, k, v", group="attention")

    return (
        *(
            (projection("q, k, v = x W_qkv", "B T 3·H·K"),)
            if config.fused
            else (projection(f"{each} = x W_{each}", "B T H·K") for each in "qkv")
        ),
        Step(name="q by head", axes="B H T K"),
        Step(name="kᵀ by head", axes="B H K T"),
        Step(name="v by head", axes="B H T K"),
        Step(name="scores = q kᵀ / √K", axes="B H T T", part="scores", over="K"),
        Step(name="weights = softmax", axes="B H T T", is_attention=True),
        Step(name="heads = weights v", axes="B H T K", part="weighted values", over="T"),
        Step(name="concatenated heads", axes="B T H·K"),
    )


def _output_steps(config: EncoderConfig) -> tuple[Step, ...]:
    steps = [Step(name="output", axes="B T D")]
    if config.final_norm:
        steps.insert(0, Step(name="x = norm(x)", axes="B T D", weights=(("final norm", "2·D"),)))
    if config.pooling is not None:
        steps.append(Step(name=f"pooled ({config.pooling})", axes="B D"))
    return tuple(steps)


def _output_projection(config: EncoderConfig, name: str) -> Step:
    return _linear(config, name, "B T D", over="H·K", part="output projection", group="attention")


def _linear(config: EncoderConfig, name: str, axes: str, *, over: str, part: str, group: str) -> Step:
    """Return a product with a matrix of parameters, and a bias where the encoder has biases."""
    width = axes.rsplit(maxsplit=1)[-1]
    weights = [(f"{group} matrices", f"{over} {width}")]
    if config.bias:
        weights.append((f"{group} biases", width))
    return Step(name=name, axes=axes, part=part, over=over, weights=tuple(weights))
