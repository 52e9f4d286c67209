"""Attention to packed tokens, as the operators of onnxruntime's CUDA kernels that pad nothing.

`PackedMultiHeadAttention` takes queries, keys and values [N, H·K]; `PackedAttention` projects them itself.
Both are told where tokens lie: by the offset of each in B·T places, those of padding last, and by how many
tokens the sequences before each one have. Kernels read the one or the other.

There is no kernel for CPUs. `emulate` puts operators in their place that read the offsets;
`polyhead_export.evaluation` reads the lengths. Shape letters: B batch, T tokens, N tokens of a batch that
exist, H heads, K head width.
"""

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from polyhead_model import Attend, EncoderConfig
from polyhead_model.attention import PADDED
from polyhead_model.packing import Packed, TokenLayout

OPERATORS = frozenset({"PackedAttention", "PackedMultiHeadAttention"})

_LONGEST_PROJECTED = 256
_WIDTHS = 8
"""Heads are a multiple of this wide: of others, kernels hold all scores at once."""


def attends_packed(config: EncoderConfig) -> bool:
    """Return whether the operators do all that attention of this encoder needs, in fp16.

    They have neither masks nor windows, and sequences attend to all of themselves and to nothing else.
    """
    vectors = config.token_vectors
    return not (
        config.causal
        or config.mask_input
        or config.local_window is not None
        or config.relative_buckets is not None
        or config.cross_attention is not None
        or config.head_size % _WIDTHS
        or (vectors is not None and vectors.expansion_id is not None)  # which is not attended to
    )


def projects(longest: int | None) -> bool:
    """Return whether the operator is the one that projects queries, keys and values, too.

    That is the faster one for short sequences.

    Args:
        longest: The most tokens of a sequence; None = no limit.
    """
    return longest is not None and longest <= _LONGEST_PROJECTED


def packed_attention() -> Attend:
    """Return attention as onnxruntime's `PackedMultiHeadAttention` operator."""
    made: list[tuple[Tensor, Tensor]] = []  # once, not in every layer

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, None]:
        layout = layouts[0]
        if not isinstance(layout, Packed):
            raise TypeError("packed attention needs packed tokens")
        if not made:
            made.append(_places_of(layout))
        q, k, v = (each.squeeze(0) for each in (q, k, v))
        context: Tensor = torch.onnx.ops.symbolic(
            "com.microsoft::PackedMultiHeadAttention",
            [q, k, v, None, *made[0]],
            {"num_heads": heads, "scale": (q.shape[1] // heads) ** -0.5},
            dtype=q.dtype,
            shape=v.shape,
            version=1,
        )
        return context[None], None

    return attend


def _places_of(layout: Packed) -> tuple[Tensor, Tensor]:
    """Return the offsets of tokens [B, T], and how many those before each sequence and all have [B + 1]."""
    exist, total = layout.exist, layout.ends[-1:]
    places = torch.arange(exist.numel())
    # Behind all tokens, and the padding before: as many places as there are, less the tokens before.
    behind = places.reshape(exist.shape) + (total - layout.ends)[:, None]
    ranks = torch.where(exist, layout.sources, behind).flatten()
    offsets = places.scatter(0, ranks, places).reshape(exist.shape)
    return offsets.int(), torch.cat((layout.starts, total)).int()


def emulate(model: ir.Model) -> None:
    """Replace the operators, in place, by functions that CPUs compute: padded, and masked by lengths."""
    found = [node for node in model.graph if node.op_type in OPERATORS]
    if not found:
        return
    for text in _FUNCTIONS:
        function = ir.from_proto(onnx.parser.parse_function(text))
        model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
    for node in found:
        node.domain = _DOMAIN
        if node.op_type == "PackedMultiHeadAttention" and node.inputs[3] is None:
            node.op_type = "AttentionByOffsets"
            inputs = [*node.inputs[:3], *node.inputs[4:]]
            for place, value in enumerate(inputs):
                node.replace_input_with(place, value)
            node.resize_inputs(len(inputs))


_DOMAIN = "polyhead"
_FUNCTIONS = tuple(
    f'<domain: "{_DOMAIN}", opset_import: ["": 20, "com.microsoft": 1, "{_DOMAIN}": 1]> {text}'
    for text in (
        """
        AttentionByOffsets <num_heads, scale> (query, key, value, offsets, before) => (attended) {
            start = Constant <value_ints = [0]> ()
            second = Constant <value_ints = [1]> ()
            last = Constant <value_ints = [-1]> ()
            end = Constant <value_ints = [2147483647]> ()
            width = Shape <start = 1> (query)
            batch = Shape (offsets)
            padded = Concat <axis = 0> (batch, width)
            flat = Concat <axis = 0> (last, width)
            zeros = ConstantOfShape (padded)
            rows = Reshape (zeros, flat)
            every = Reshape (offsets, last)
            count = Shape <end = 1> (query)
            taken = Slice (every, start, count)
            taken_long = Cast <to = 7> (taken)
            places = Unsqueeze (taken_long, last)
            query_rows = ScatterND (rows, places, query)
            key_rows = ScatterND (rows, places, key)
            value_rows = ScatterND (rows, places, value)
            query_padded = Reshape (query_rows, padded)
            key_padded = Reshape (key_rows, padded)
            value_padded = Reshape (value_rows, padded)
            first = Slice (before, start, last)
            behind = Slice (before, second, end)
            lengths = Sub (behind, first)
            context = com.microsoft.MultiHeadAttention <
                num_heads: int = @num_heads, scale: float = @scale, mask_filter_value = -3.0e38
            > (query_padded, key_padded, value_padded, "", lengths)
            context_rows = Reshape (context, flat)
            attended = Gather (context_rows, taken)
        }
        """,
        f"""
        PackedMultiHeadAttention <num_heads, scale> (x, y, z, bias, offsets, before) => (attended) {{
            query_bias, key_bias, value_bias = Split <num_outputs = 3> (bias)
            q = Add (x, query_bias)
            k = Add (y, key_bias)
            v = Add (z, value_bias)
            attended = {_DOMAIN}.AttentionByOffsets <
                num_heads: int = @num_heads, scale: float = @scale
            > (q, k, v, offsets, before)
        }}
        """,
        f"""
        PackedAttention <num_heads, scale> (x, weight, bias, offsets, before) => (attended) {{
            product = MatMul (x, weight)
            projected = Add (product, bias)
            q, k, v = Split <axis = 1, num_outputs = 3> (projected)
            attended = {_DOMAIN}.AttentionByOffsets <
                num_heads: int = @num_heads, scale: float = @scale
            > (q, k, v, offsets, before)
        }}
        """,
    )
)
