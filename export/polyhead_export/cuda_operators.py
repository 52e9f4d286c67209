"""Operators of onnxruntime's that have kernels for CUDA alone, and what stands for them on a CPU.

Packed attention reads the offsets of tokens here, in padded attention that is masked by lengths;
`polyhead_export.evaluation` reads which tokens are whose.
"""

import onnx
import onnx_ir as ir

OPERATORS = frozenset({"BiasSoftmax", "PackedAttention", "PackedMultiHeadAttention"})


def emulate(model: ir.Model) -> None:
    """Replace the operators, in place, by functions that CPUs compute."""
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
        """
        BiasSoftmax <is_inner_broadcast> (scores, bias) => (weights) {
            biased = Add (scores, bias)
            weights = Softmax <axis = -1> (biased)
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
