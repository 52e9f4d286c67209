"""An encoder's parameters, operations, attention bytes and tensor shapes. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

from polyhead_model.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class Count:
    """One part of a total."""

    name: str
    formula: str
    each: int
    layers: int | None = None
    """The number of layers with this part; None = it occurs once, outside the layers."""

    @property
    def total(self) -> int:
        """The count over all layers."""
        return self.each * (1 if self.layers is None else self.layers)


def parameter_counts(config: EncoderConfig) -> tuple[Count, ...]:
    """List an encoder's parameters, part by part."""
    d, inner = config.d_model, config.inner_size
    layers = 1 if config.shared_layers else config.layers
    norm, norm_formula = (2 * d, "2·D") if config.norm_bias else (d, "D")
    counts = [Count(name="attention matrices", formula="4·D·H·K", each=4 * d * inner, layers=layers)]
    if config.bias:
        counts.append(Count(name="attention biases", formula="3·H·K + D", each=3 * inner + d, layers=layers))
    if config.feed_forward is not None:
        f, up = config.feed_forward, 2 if config.gated else 1
        matrices = Count(
            name="feed-forward matrices", formula=f"{up + 1}·D·F", each=(up + 1) * d * f, layers=layers
        )
        counts.append(matrices)
        if config.bias:
            formula = "2·F + D" if config.gated else "F + D"
            counts.append(Count(name="feed-forward biases", formula=formula, each=up * f + d, layers=layers))
        if config.first_attention_norm:
            formula = "4·D" if config.norm_bias else "2·D"
            counts.append(Count(name="layer norms", formula=formula, each=2 * norm, layers=layers))
        else:
            counts.append(Count(name="attention norms", formula=norm_formula, each=norm, layers=layers - 1))
            counts.append(Count(name="feed-forward norms", formula=norm_formula, each=norm, layers=layers))
    if config.relative_buckets is not None:
        each = config.relative_buckets * config.heads
        counts.append(Count(name="relative positions", formula=f"{config.relative_buckets}·H", each=each))
    width, letter = (d, "D") if config.embedding_width is None else (config.embedding_width, "E")
    for name, rows in (
        ("token embeddings", config.vocabulary),
        ("position embeddings", config.position_rows),
        ("type embeddings", config.types),
    ):
        if rows:
            counts.append(Count(name=name, formula=f"{rows:,}·{letter}", each=rows * width))
    if config.embedding_norm:
        formula = norm_formula.replace("D", letter)
        counts.append(Count(name="embedding norm", formula=formula, each=norm // d * width))
    if config.embedding_width is not None:
        counts.append(Count(name="embedding projection", formula="E·D + D", each=width * d + d))
    if config.final_norm:
        counts.append(Count(name="final norm", formula=norm_formula, each=norm))
    return tuple(counts)


def parameters(config: EncoderConfig) -> int:
    """Count all parameters of an encoder."""
    return sum(count.total for count in parameter_counts(config))


def flop_counts(config: EncoderConfig, batch: int, tokens: int) -> tuple[Count, ...]:
    """List the floating-point operations of one forward pass, part by part.

    Only matrix products are counted, at two operations for each multiplication and addition. Padding and
    scores that are hidden, causally or outside a window, are computed too, so they count.
    """
    _require_sizes(config, batch, tokens)
    d, inner, layers = config.d_model, config.inner_size, config.layers
    rows = batch * tokens
    counts = [
        Count(name="q, k, v", formula="6·B·T·D·H·K", each=6 * rows * d * inner, layers=layers),
        Count(name="scores", formula="2·B·H·T²·K", each=2 * rows * tokens * inner, layers=layers),
        Count(name="weighted values", formula="2·B·H·T²·K", each=2 * rows * tokens * inner, layers=layers),
        Count(name="output projection", formula="2·B·T·D·H·K", each=2 * rows * d * inner, layers=layers),
    ]
    if config.feed_forward is not None:
        factor = 6 if config.gated else 4
        each = factor * rows * d * config.feed_forward
        counts.append(Count(name="feed-forward", formula=f"{factor}·B·T·D·F", each=each, layers=layers))
    if config.embedding_width is not None:
        each = 2 * rows * config.embedding_width * d
        counts.append(Count(name="embedding projection", formula="2·B·T·E·D", each=each))
    return tuple(counts)


def flops(config: EncoderConfig, batch: int, tokens: int) -> int:
    """Count the floating-point operations of one forward pass, see `flop_counts`."""
    return sum(count.total for count in flop_counts(config, batch, tokens))


def attention_bytes_per_layer(config: EncoderConfig, batch: int, tokens: int, *, itemsize: int = 4) -> int:
    """Return the bytes of one layer's attention weights [B, H, T, T]: B·H·T² numbers of `itemsize` bytes."""
    _require_sizes(config, batch, tokens)
    return batch * config.heads * tokens**2 * itemsize


def attention_bytes(config: EncoderConfig, batch: int, tokens: int, *, itemsize: int = 4) -> int:
    """Return the bytes of the attention weights of all layers."""
    return config.layers * attention_bytes_per_layer(config, batch, tokens, itemsize=itemsize)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A tensor of a forward pass."""

    stage: Literal["input", "each layer", "output"]
    name: str
    symbols: tuple[str, ...]
    """The shape in letters, such as ("B", "T", "D")."""
    sizes: tuple[int, ...]
    """The shape in numbers, such as (1, 128, 768)."""


def shape_trace(config: EncoderConfig, batch: int, tokens: int) -> tuple[Step, ...]:
    """List the tensors of a forward pass, from input to output.

    Raises:
        ValueError: `batch` or `tokens` is not positive, or T is more than the encoder's positions.
    """
    _require_sizes(config, batch, tokens)
    sizes = {
        "B": batch,
        "T": tokens,
        "D": config.d_model,
        "H": config.heads,
        "K": config.head_size,
        "H·K": config.inner_size,
        "3·H·K": 3 * config.inner_size,
        "F": config.feed_forward or 0,
        "E": config.embedding_size,
    }
    inputs = [("x", "B T D")]
    if config.embedding_width is not None:
        inputs = [("token ids", "B T"), ("e = embeddings", "B T E"), ("x = e W_E", "B T D")]
    elif config.vocabulary is not None:
        inputs = [("token ids", "B T"), ("x = embeddings", "B T D")]
    outputs = [("output", "B T D")]
    if config.final_norm:
        outputs.insert(0, ("x = norm(x)", "B T D"))
    if config.pooling is not None:
        outputs.append((f"pooled ({config.pooling})", "B D"))
    stages: tuple[tuple[Literal["input", "each layer", "output"], list[tuple[str, str]]], ...] = (
        ("input", inputs),
        ("each layer", _layer_steps(config)),
        ("output", outputs),
    )
    return tuple(
        Step(
            stage=stage,
            name=name,
            symbols=tuple(symbols.split()),
            sizes=tuple(sizes[symbol] for symbol in symbols.split()),
        )
        for stage, steps in stages
        for name, symbols in steps
    )


def _layer_steps(config: EncoderConfig) -> list[tuple[str, str]]:
    """List the tensors of one layer, each with its shape in letters."""
    fused = [("q, k, v = x W_qkv", "B T 3·H·K")]
    separate = [("q = x W_q", "B T H·K"), ("k = x W_k", "B T H·K"), ("v = x W_v", "B T H·K")]
    rotated = [("q rotated", "B T H·K"), ("k rotated", "B T H·K")]
    scores = "scores = q kᵀ / √K" + (" + bias" if config.relative_buckets else "")
    attention = [
        *(fused if config.fused else separate),
        *(rotated if config.rotary_base else ()),
        ("q by head", "B H T K"),
        ("kᵀ by head", "B H K T"),
        ("v by head", "B H T K"),
        (scores, "B H T T"),
        ("weights = softmax", "B H T T"),
        ("heads = weights v", "B H T K"),
        ("concatenated heads", "B T H·K"),
    ]
    if config.feed_forward is None:
        return [*attention, ("x = heads W_o", "B T D")]
    up = ("hidden = act(x W_gate) · (x W_up)" if config.gated else "hidden = act(x W_up)", "B T F")
    if config.norm == "pre":
        return [
            ("norm(x)", "B T D"),
            *attention,
            ("x = x + heads W_o", "B T D"),
            ("norm(x)", "B T D"),
            up,
            ("x = x + hidden W_down", "B T D"),
        ]
    return [
        *attention,
        ("x = norm(x + heads W_o)", "B T D"),
        up,
        ("x = norm(x + hidden W_down)", "B T D"),
    ]


def _require_sizes(config: EncoderConfig, batch: int, tokens: int) -> None:
    for name, size in (("batch", batch), ("tokens", tokens)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, was {size}")
    if config.positions is not None and tokens > config.positions:
        raise ValueError(f"tokens must be at most {config.positions}, the model's positions, was {tokens}")
