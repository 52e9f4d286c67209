"""Write `config.pbtxt`, with which Triton's onnxruntime backend serves the fast graph in place."""

from polyhead_export.kinds.fast import FastGraph
from polyhead_export.signature import axis_sizes, inputs_of, outputs_of
from polyhead_model import EncoderConfig
from polyhead_proto.tensors import TensorSpec

MAX_BATCH_SIZE = 256
"""The largest batch, which Triton requires; the same as the default of `polyhead serve`."""


def triton_config(name: str, config: EncoderConfig) -> str:
    """Return the text of `config.pbtxt` for a family.

    Triton's shapes have no batch dimension but need at least one other, so `lengths`, [B] in the graph, is
    [B, 1] to Triton's clients.
    """
    return "\n".join(
        [
            "# For Triton's onnxruntime backend; polyhead itself reads manifest.json.",
            f'name: "{name}"',
            'backend: "onnxruntime"',
            f'default_model_filename: "{FastGraph.file}"',
            f"max_batch_size: {MAX_BATCH_SIZE}",
            *(_tensor("input", spec, config) for spec in inputs_of(config, FastGraph())),
            *(_tensor("output", spec, config) for spec in outputs_of(config, FastGraph())),
            "",
        ]
    )


def _tensor(field: str, spec: TensorSpec, config: EncoderConfig) -> str:
    dims = spec.with_sizes(axis_sizes(config)).shape[1:]
    shape = f"dims: {list(dims)}" if dims else "dims: [1] reshape { shape: [] }"
    return f'{field} {{ name: "{spec.name}" data_type: TYPE_{spec.datatype} {shape} }}'
