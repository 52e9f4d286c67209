"""A BERT of random weights in plain ONNX, around one operator of attention: what an exported graph can reach.

Embeddings, layers and nothing else, by onnxruntime's fused operators; where tokens lie is an input.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from polyhead_export.cuda_operators import emulate
from polyhead_model import EncoderConfig

PADDED, OUTPUT = "Attention", "encoded"
_PROJECTED = "p{i} = MatMul (x{i}, qkv{i}) q{i}, k{i}, v{i} = Split <axis = -1, num_outputs = 3> (p{i}) "
FORMS = {
    PADDED: "c{i} = com.microsoft.Attention <{heads}> (x{i}, qkv{i}, in{i}, lengths)",
    "PackedAttention": "c{i} = com.microsoft.PackedAttention <{heads}> (x{i}, qkv{i}, in{i}, at, before)",
    "PackedMultiHeadAttention": _PROJECTED
    + "c{i} = com.microsoft.PackedMultiHeadAttention <{heads}> (q{i}, k{i}, v{i}, in{i}, at, before)",
}
"""The operators of attention."""
_GRAPH = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>
bert ({inputs}) => ({dtype} encoded) {{
    words = Gather (word, input_ids) places = Gather (place, positions) both = Add (words, places)
    x0 = LayerNormalization <epsilon = 1.0e-12> (both, scale, shift) {layers} encoded = Identity (x{count})
}}"""
_LAYER = """
    o{i} = MatMul (c{i}, out{i})
    y{i} = com.microsoft.SkipLayerNormalization <epsilon = 1.0e-12> (o{i}, x{i}, s{i}, h{i}, b{i})
    u{i} = MatMul (y{i}, up{i}) g{i} = com.microsoft.BiasGelu (u{i}, ub{i}) d{i} = MatMul (g{i}, down{i})
    x{j} = com.microsoft.SkipLayerNormalization <epsilon = 1.0e-12> (d{i}, y{i}, t{i}, j{i}, e{i})
"""
_OF_PACKED = "int64[N] input_ids, int64[N] positions, int32[B, T] at, int32[C] before"
_OF_PADDED = "int64[B, T] input_ids, int64[B, T] positions, int32[B] lengths"


def build(config: EncoderConfig, form: str, path: Path, *, emulated: bool) -> None:
    """Write the graph, in fp16 where a GPU is to compute it.

    Args:
        config: Its sizes.
        form: One of `FORMS`.
        path: The file.
        emulated: Whether operators that only GPUs compute are replaced.
    """
    heads = f"num_heads = {config.heads}, scale = {config.head_size**-0.5}"
    layer, numbers = FORMS[form] + _LAYER, range(config.layers)
    text = _GRAPH.format(
        inputs=_OF_PADDED if form == PADDED else _OF_PACKED,
        dtype="float" if emulated else "float16",
        layers="".join(layer.format(i=number, j=number + 1, heads=heads) for number in numbers),
        count=config.layers,
    )
    model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    d, f = config.d_model, config.feed_forward or 0
    of_layer = {"qkv": (d, 3 * d), "in": (3 * d,), "out": (d, d), "up": (d, f), "ub": (f,), "down": (f, d)}
    of_layer |= dict.fromkeys(("s", "h", "b", "t", "j", "e"), (d,))
    shapes = {f"{name}{number}": shape for number in numbers for name, shape in of_layer.items()}
    shapes |= {"word": (config.vocabulary or 1, d), "place": (config.positions or 1, d)}
    for name, shape in (shapes | {"scale": (d,), "shift": (d,)}).items():
        values = (0.03 * random.standard_normal(shape, np.float32)).astype(
            np.float32 if emulated else np.float16
        )
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    if emulated:
        replaced = ir.from_proto(model)
        emulate(replaced)
        model = ir.to_proto(replaced)
    onnx.save(model, path)


def feeds_of(config: EncoderConfig, form: str, lengths: list[int]) -> Mapping[str, NDArray[Any]]:
    """Return the inputs of the graph."""
    counts, longest = np.array(lengths, np.int32), max(lengths)
    exist = np.arange(longest) < counts[:, None]
    positions = np.broadcast_to(np.arange(longest), exist.shape)
    ids = np.random.default_rng(0).integers(config.vocabulary or 1, size=exist.shape)
    if form == PADDED:
        return {"input_ids": ids, "positions": positions.copy(), "lengths": counts}
    places = np.arange(exist.size, dtype=np.int32).reshape(exist.shape)
    places = np.concatenate([places[exist], places[~exist]]).reshape(exist.shape)
    before = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    return {"input_ids": ids[exist], "positions": positions[exist], "at": places, "before": before}
