"""An encoder's forward pass, step by step: shapes and all costs are read from this. Needs no torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from polyhead_model.attention_steps import cross_attention, self_attention
from polyhead_model.config import EncoderConfig
from polyhead_model.step import ParameterTensor, Section, Step, linear_step, norm_step
from polyhead_model.task_heads import Dense

ATTENTION = ("attention", "cross_attention")
"""The roles of attention weights."""


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
    if config.kv_heads is not None:
        sizes["G"] = config.kv_heads
    sizes["L"] = config.layers

    def sizes_of(layer: int) -> dict[str, int]:
        own = {**sizes, "H": len(config.heads_of(layer))}
        if config.kv_heads is not None:
            own["G"] = len(set(config.kv_heads_of(layer)))
            own["(H+2G)"] = own["H"] + 2 * own["G"]
        if config.head_widths is not None:
            own["ΣK"] = sum(config.widths_of(layer))
        return own

    return (
        Section(stage="input", steps=tuple(_input_steps(config)), sizes=sizes),
        *(
            Section(
                stage="layers",
                steps=tuple(_layer_steps(config, layers[0])),
                sizes=sizes_of(layers[0]),
                layers=layers,
            )
            for layers in _equal_layers(config)
        ),
        Section(stage="output", steps=tuple(_output_steps(config)), sizes=sizes),
    )


def _equal_layers(config: EncoderConfig) -> Iterable[Sequence[int]]:
    """Divide the layers into those with the same steps and sizes."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for layer in range(config.layers):
        kind = (
            _has_attention_norm(config, layer),
            layer == 0 and config.convolution is not None,
            config.is_local(layer),
            len(config.heads_of(layer)),
            len(set(config.kv_heads_of(layer))),
            sum(config.widths_of(layer)),
        )
        kinds.setdefault(kind, []).append(layer)
    return kinds.values()


def _has_attention_norm(config: EncoderConfig, layer: int) -> bool:
    return layer > 0 or config.first_attention_norm


def _input_steps(config: EncoderConfig) -> Iterator[Step]:
    if config.vocabulary is not None:
        yield Step(name="token ids", axes="B T", reads=())
        yield from _beside_layers(config)
        yield from _embeddings(config, config.vocabulary)
        return
    yield Step(name="x" if config.cross_attention is None else "x = query", axes="B T D", reads=())
    if config.cross_attention is not None:
        yield Step(name="memory", axes="B S D", reads=())
    yield from _beside_layers(config)


def _beside_layers(config: EncoderConfig) -> Iterator[Step]:
    """Yield what layers get beside their tokens, made once for all of them."""
    if config.relative_buckets is not None:
        table = ParameterTensor(name="table", part="relative positions", axes=f"{config.relative_buckets} H")
        yield Step(name="bias (by distance)", axes="H T T", reads=(), parameters=(table,))
    if (its := config.disentangled) is not None:
        part, axes = "relative positions", f"{2 * its.span} D"
        table = ParameterTensor(name="table", part=part, axes=axes)
        yield Step(name="p = relative positions", axes=axes, reads=(), parameters=(table,))
        if its.norm:
            yield norm_step("p", "p", axes, part=part, bias=config.norm_bias)
    given = ["given"] if config.mask_input else []
    own = [*(["causal"] if config.causal else []), "padding", *given]
    is_local = [config.is_local(layer) for layer in range(config.layers)]
    if config.cross_attention != "alone" and not all(is_local):
        yield Step(name=f"mask ({', '.join(own)})", axes="B T T", reads=())
    if any(is_local):
        window = f"window {config.local_window}"
        yield Step(name=f"local mask ({', '.join([window, *own])})", axes="B T T", reads=())
    if config.cross_attention is not None:
        yield Step(name=f"memory mask ({', '.join(['padding', *given])})", axes="B T S", reads=())
    bases = (("angles", config.rotary_base), ("local angles", config.local_rotary_base))
    for angles, base in bases:
        if base is not None:
            yield Step(name=f"{angles} (base {base:,.10g})", axes="T K", reads=())
    if config.head_mask_input:
        yield Step(name="head mask", axes="B L H", reads=())


def _embeddings(config: EncoderConfig, vocabulary: int) -> Iterator[Step]:
    """Yield the steps from token ids to the first layer."""
    width = "D" if config.embedding_width is None else "E"
    x, axes = ("x" if width == "D" else "e"), f"B T {width}"

    def table(of: str, rows: int) -> tuple[ParameterTensor, ...]:
        name = f"{of} embeddings"
        return (ParameterTensor(name=name, part=name, axes=f"{rows} {width}"),)

    yield Step(
        name=f"{x} = token embeddings",
        axes=axes,
        reads=("token ids",),
        parameters=table("token", vocabulary),
    )
    if config.token_dropout_id is not None:
        yield Step(name=f"{x} = {x} · dropout factors", axes=axes)
    for of, rows in (("type", config.types), ("position", config.position_rows)):
        if rows:
            yield Step(name=f"{x} = {x} + {of} embeddings", axes=axes, parameters=table(of, rows))
    projection = linear_step(
        "x = e W_E",
        "B T D",
        over="E",
        reads=("e",),
        part="embedding projection",
        matrix="E",
        bias=not config.projection_first,
    )
    if config.projection_first:
        yield projection
        x, axes = "x", "B T D"
    if config.embedding_norm:
        yield norm_step(x, x, axes, part="embedding norm", bias=config.norm_bias)
    if width == "E" and not config.projection_first:
        yield projection


Sublayer = Callable[[EncoderConfig, int, str, str], Iterator[Step]]
"""Yields the steps of a part of a layer, from the symbol of what it reads to that of its result."""


def _layer_steps(config: EncoderConfig, layer: int) -> Iterator[Step]:
    convolution = config.convolution if layer == 0 else None
    if convolution is not None:
        yield Step(name="n = neighbours(x)", axes=f"B T {convolution.width}·D", reads=("x",))
    attentions: list[Sublayer] = [self_attention, cross_attention]
    if config.cross_attention != "after_self":
        attentions = [self_attention if config.cross_attention is None else cross_attention]
    if config.feed_forward is None:
        yield from attentions[0](config, layer, "x", "x")
        return
    for number, sublayer in enumerate([*attentions, _feed_forward], 1):
        result = "f" if sublayer is _feed_forward else "a"
        part = "layer norms" if config.norm_type == "layer" else "RMS norms"
        norm = partial(norm_step, x="x", part=part, bias=config.norm_bias, suffix=f"_{number}")
        is_normed = config.norm != "post" and (number > 1 or _has_attention_norm(config, layer))
        if is_normed:
            yield norm("h")
        yield from sublayer(config, layer, "h" if is_normed else "x", result)
        if config.norm == "both":
            yield norm(result, x=result, suffix=f"_{number}′")
        yield Step(name=f"x = x + {result}", axes="B T D", reads=("x", result))
        if config.norm == "post":
            yield norm("x")
    if convolution is not None:
        part, own = "convolution", "D" if convolution.groups == 1 else config.d_model // convolution.groups
        yield linear_step(
            f"c = {convolution.activation}(n W_c)",
            "B T D",
            over=f"{convolution.width}·{own}",
            reads=("n",),
            part=part,
            matrix="c",
        )
        yield Step(name="x = x + c", axes="B T D", reads=("x", "c"))
        yield norm_step("x", "x", part=part, bias=config.norm_bias, suffix="_c")


def _feed_forward(config: EncoderConfig, _layer: int, x: str, result: str) -> Iterator[Step]:
    def linear(symbol: str, reads: str, matrix: str, axes: str, over: str) -> Step:
        return linear_step(
            f"{symbol} = {reads} W_{matrix}",
            axes,
            over=over,
            reads=(reads,),
            part="feed-forward",
            matrix=matrix,
            group="feed-forward",
            bias=config.bias and (config.up_bias or matrix == "down"),
        )

    if config.gated:
        yield linear("gate", x, "gate", "B T F", "D")
    yield linear("up", x, "up", "B T F", "D")
    if config.gated:
        yield Step(name=f"hidden = {config.activation}(gate) · up", axes="B T F", reads=("gate", "up"))
    else:
        yield Step(name=f"hidden = {config.activation}(up)", axes="B T F")
    yield linear(result, "hidden", "down", "B T D", "F")


def _output_steps(config: EncoderConfig) -> Iterator[Step]:
    if config.final_norm:
        yield norm_step("x", "x", part="final norm", bias=config.norm_bias and config.final_norm_bias)
    yield Step(name="output", axes="B T D", reads=("x",), role="output")
    if config.token_vectors is not None:
        dense = config.token_vectors.dense
        *before, last = _dense_steps(
            config, dense, "v", "output", part="token vectors", axes="B T", unit=True
        )
        yield from (*before, replace(last, role="token_vectors"))
    if config.pooling is not None:
        yield from _pooled_steps(config, config.pooling)
    if (head := config.classifier) is not None:
        of_tokens = head.pooling is None or head.pools_logits
        of, axes = ("each token", "B T") if of_tokens else (head.pooling, "B")
        yield Step(name=f"c = {of} of output", axes=f"{axes} D", reads=("output",))
        layers = (*head.dense, Dense(width=len(head.labels), bias=head.bias))
        *before, last = _dense_steps(config, layers, "c", "c", part="classifier", axes=axes)
        if head.pools_logits:
            yield from (*before, last)
            before, last = [], Step(name=f"c = {head.pooling} of c", axes=f"B {len(head.labels)}")
        yield from (*before, replace(last, name=last.name.replace("c = ", "logits = ", 1), role="logits"))
    if config.splade is not None:
        part = "vocabulary head"
        hidden = f"h = {config.activation}(output W_h)"
        yield linear_step(hidden, "B T D", over="D", reads=("output",), part=part, matrix="h")
        yield norm_step("h", "h", part=part, bias=config.norm_bias)
        bias = ParameterTensor(name="b_words", part=part, axes=str(config.vocabulary))
        words = f"B T {config.vocabulary}"
        yield Step(
            name="logits of words = h embeddingsᵀ", axes=words, part=part, over="D", parameters=(bias,)
        )
        yield Step(name=f"words = {config.splade.pooling} log(1 + relu)", axes=f"B {config.vocabulary}")
    if config.lexical is not None:
        weights = "weights of tokens = relu(output W_t)"
        yield linear_step(weights, "B T 1", over="D", reads=("output",), part="lexical weights", matrix="t")
        yield Step(name="words = max weights", axes=f"B {config.vocabulary}")


def _pooled_steps(config: EncoderConfig, pooling: str) -> Iterator[Step]:
    dense = _dense_steps(config, config.dense, "pooled", "pooled", part="dense layers", unit=config.normalise)
    steps = [Step(name=f"pooled ({pooling})", axes="B D", reads=("output",)), *dense]
    if config.truncate_dim is not None:
        steps.append(Step(name=f"pooled = pooled[:{config.truncate_dim}]", axes=f"B {config.truncate_dim}"))
    *before, last = steps
    yield from (*before, replace(last, role="pooled"))


def _dense_steps(
    config: EncoderConfig,
    layers: Sequence[Dense],
    symbol: str,
    source: str,
    *,
    part: str,
    axes: str = "B",
    unit: bool = False,
) -> Iterator[Step]:
    """Yield dense layers on vectors of width D; `axes` are those before it, `unit` scales to length 1."""
    width, x = "D", source
    for number, layer in enumerate(layers, 1):
        if layer.normalise:
            yield Step(name=f"{symbol} = {x} / ‖{x}‖", axes=f"{axes} {width}", reads=(x,))
            x = symbol
        product = f"{x} W_{number}"
        activated = product if layer.activation == "identity" else f"{layer.activation}({product})"
        yield linear_step(
            f"{symbol} = {activated}",
            f"{axes} {layer.width}",
            over=width,
            reads=(x,),
            part=part,
            matrix=str(number),
            bias=layer.bias,
        )
        width, x = str(layer.width), symbol
        if layer.norm:
            has_bias = config.norm_bias or layer.norm_epsilon is not None
            yield norm_step(symbol, x, f"{axes} {width}", part=part, suffix=f"_{number}", bias=has_bias)
    if unit:
        yield Step(name=f"{symbol} = {x} / ‖{x}‖", axes=f"{axes} {width}", reads=(x,))
