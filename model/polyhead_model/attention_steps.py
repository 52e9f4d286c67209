"""An encoder's attention, step by step, as `polyhead_model.steps` has the rest. Needs no torch."""

from collections.abc import Iterator

from polyhead_model.attention_config import Disentangled, ScoreTerm
from polyhead_model.config import EncoderConfig
from polyhead_model.step import ParameterTensor, Step, linear_step


def self_attention(config: EncoderConfig, layer: int, x: str, result: str) -> Iterator[Step]:
    """Yield the steps of the attention of a layer over x, whose result has a name."""

    def projection(symbols: str, matrix: str, axes: str) -> Step:
        return linear_step(
            f"{symbols} = {x} W_{matrix}",
            axes,
            over="D",
            reads=(x,),
            part="q, k, v",
            matrix=matrix,
            group="attention",
            bias=config.bias,
        )

    widths = _inner_widths(config)
    projections = [projection(each, each, f"B T {width}") for each, width in widths.items()]
    if config.fused:
        of_all = f"3·{widths['q']}" if config.kv_heads is None else "(H+2G)·K"
        projections = [
            projection("qkv", "qkv", f"B T {of_all}"),
            *(
                Step(name=f"{each} = part of qkv", axes=f"B T {width}", reads=("qkv",))
                for each, width in widths.items()
            ),
        ]
    yield from (*projections, *_norms_of_heads(config, "T"))
    local = "local " if config.is_local(layer) else ""
    if config.rotary_base is not None:
        angles = f"{local if config.local_rotary_base is not None else ''}angles"
        for each in "qk":
            yield Step(name=f"{each} = rotate({each})", axes=f"B T {widths[each]}", reads=(each, angles))
    yield from _heads(config, result, keys="T", mask=f"{local}mask")


def _norms_of_heads(config: EncoderConfig, keys: str, prefix: str = "") -> Iterator[Step]:
    """Yield the norms of queries and keys, head by head or of all heads together."""
    for each, length in (("q", "T"), ("k", keys)) if config.qk_norm or config.qk_layer_norm else ():
        width = _inner_widths(config)[each]
        of, factors = ("", width) if config.qk_layer_norm else (" of heads", "K")
        yield Step(
            name=f"{each} = norm{of}({each})",
            axes=f"B {length} {width}",
            reads=(each,),
            parameters=(ParameterTensor(name=f"γ_{each}", part=f"{prefix}norms of q, k", axes=factors),),
        )


def _inner_widths(config: EncoderConfig) -> dict[str, str]:
    """Return the letters of the columns of queries, keys and values."""
    if config.head_widths is not None:
        return dict.fromkeys("qkv", "ΣK")
    return {"q": "H·K"} | dict.fromkeys("kv", "H·K" if config.kv_heads is None else "G·K")


def cross_attention(config: EncoderConfig, _layer: int, x: str, result: str) -> Iterator[Step]:
    """Yield those of attention over a memory [B, S, D]."""
    projections = (
        linear_step(
            f"{each} = {source} W_{each}",
            f"B {length} {_inner_widths(config)[each]}",
            over="D",
            reads=(source,),
            part="cross q, k, v",
            matrix=each,
            group="cross-attention",
            bias=config.bias,
        )
        for each, source, length in (("q", x, "T"), ("k", "memory", "S"), ("v", "memory", "S"))
    )
    norms = _norms_of_heads(config, "S", "cross ")
    heads = _heads(config, result, keys="S", mask="memory mask", prefix="cross ")
    yield from (*projections, *norms, *heads)


def _heads(config: EncoderConfig, result: str, *, keys: str, mask: str, prefix: str = "") -> Iterator[Step]:
    """Yield the steps from q, k and v to the output projection, for keys that are T or S."""
    lengths = {"q": "T", "k": keys, "v": keys}
    heads = {"q": "H"} | dict.fromkeys("kv", "H" if config.kv_heads is None else "G")
    widened = ("q", "k", "v") if config.head_widths is not None else ()
    for each in widened:
        # Each head's queries are scaled, too: their scores are to be divided by the root of its own width.
        yield Step(name=f"{each} = pad({each})", axes=f"B {lengths[each]} H·K", reads=(each,))
    for each, length in lengths.items():
        yield Step(name=f"{each} = view({each})", axes=f"B {length} {heads[each]} K", reads=(each,))
    for each, length in lengths.items():
        yield Step(name=f"{each} = transpose({each})", axes=f"B {heads[each]} {length} K", reads=(each,))
    for each in ("k", "v") if config.kv_heads is not None else ():
        yield Step(name=f"{each} = repeat({each})", axes=f"B H {keys} K", reads=(each,))
    yield Step(name="kᵀ = transpose(k)", axes=f"B H K {keys}", reads=("k",))
    scores = f"B H T {keys}"
    yield Step(name="scores = q kᵀ", axes=scores, reads=("q", "kᵀ"), part=f"{prefix}scores", over="K")
    if config.disentangled is not None:
        for term in config.disentangled.terms:
            yield from _position_scores(config, config.disentangled, term)
    # The module divides q, of which there is less: the same by the associative law.
    yield Step(name="scores = scores / √K", axes=scores)
    if config.relative_buckets is not None:
        yield Step(name="scores = scores + bias", axes=scores, reads=("scores", "bias"))
    yield Step(name=f"scores = scores + {mask}", axes=scores, reads=("scores", mask))
    weights = f"{prefix}weights"
    role = "cross_attention" if keys == "S" else "attention"
    yield Step(name=f"{weights} = softmax", axes=scores, role=role)
    values = f"{prefix}weighted values"
    yield Step(name=f"heads = {weights} v", axes="B H T K", reads=(weights, "v"), part=values, over=keys)
    yield Step(name="heads = transpose(heads)", axes="B T H K")
    yield Step(name="heads = concat(heads)", axes="B T H·K")
    if config.head_mask_input:
        yield Step(name="heads = heads · head mask", axes="B T H·K", reads=("heads", "head mask"))
    if widened:
        yield Step(name="heads = without padding(heads)", axes="B T ΣK")
    yield linear_step(
        f"{result} = heads W_o",
        "B T D",
        over=_inner_widths(config)["q"],
        reads=("heads",),
        matrix="o",
        part=f"{prefix}output projection",
        group="cross-attention" if prefix else "attention",
        bias=config.bias,
    )


def _position_scores(config: EncoderConfig, its: Disentangled, term: ScoreTerm) -> Iterator[Step]:
    """Yield the product with keys or queries of relative positions, which are the same in each run."""
    mine, other = ("q", "k") if term == "c2p" else ("k", "q")
    matrix = other if its.shared else f"p{other}"
    own = linear_step(
        "", "H·K", over="D", reads=(), part="", matrix=matrix, group="attention", bias=config.bias
    )
    yield Step(
        name=f"scores = scores + {mine} (p W_{matrix})ᵀ",
        axes="B H T T",
        reads=("scores", mine, "p"),
        part="position scores",
        over="K",
        product="B H T 2·T",
        parameters=() if its.shared else own.parameters,
    )
