"""Build the request of an `encode`."""

from dataclasses import dataclass

from google.protobuf.message import EncodeError, Message

from polyhead_client.errors import TooLarge
from polyhead_client.inputs import Batch
from polyhead_client.models import ModelInfo
from polyhead_client.selection import RequestedOutputs
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import OUTPUT, PARTS, POOLED, TRUNCATE

# Names, shapes and timings. An estimate that is too small only costs a rejected call.
_FIELDS_BYTES, _OUTPUT_BYTES = 512, 96


@dataclass(frozen=True, kw_only=True)
class RequestTemplate:
    """What requests have in common whose inputs have the same form."""

    info: ModelInfo
    requested: RequestedOutputs
    version: str
    """Empty means the newest."""
    truncate: bool
    """Whether to truncate texts that are too long."""


def build(template: RequestTemplate, batch: Batch, *, parts: bool = False) -> bytes:
    """Build the bytes of a ModelInferRequest that names every requested output.

    Args:
        template: The template of the request.
        batch: The inputs.
        parts: Whether to reply in parts.

    Raises:
        TooLarge: The request exceeds the server's limit.
    """
    info, requested = template.info, template.requested
    message = pb.ModelInferRequest(
        model_name=info.name,
        model_version=template.version,
        parameters={
            name: pb.InferParameter(bool_param=True)
            for name, wanted in ((TRUNCATE, template.truncate), (PARTS, parts))
            if wanted
        },
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            for tensor in batch.tensors
        ],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in requested.outputs],
        raw_input_contents=[tensor.raw for tensor in batch.tensors],
    )
    for layer in requested.layers.values():
        output = message.outputs.add(name=layer)
        for name, value in requested.parameters.items():
            output.parameters[name].string_param = value
    size, limit = message.ByteSize(), info.max_request_bytes
    if limit is not None and size > limit:
        raise TooLarge(
            f"the request has {size} bytes, {info.name} takes at most {limit}: send fewer sequences a call"
        )
    return serialise(message)


def reply_bytes(info: ModelInfo, requested: RequestedOutputs, *, size: int, tokens: int | None) -> int:
    """Estimate the bytes of the reply to a request of [B, T].

    Args:
        info: The model.
        requested: The requested outputs.
        size: B.
        tokens: T; None, as for texts, makes the estimate 0.
    """
    if tokens is None or info.d_model is None or info.heads is None:
        return 0
    heads = info.heads if requested.heads is None else len(requested.heads)
    queries = tokens if requested.queries is None else len(requested.queries)
    weight = DTYPES[requested.dtype or "FP32"].itemsize
    sizes = {OUTPUT: 4 * size * tokens * info.d_model, POOLED: 4 * size * info.d_model}
    weights = weight * size * heads * queries * tokens
    return (
        sum(sizes.get(name, 0) for name in requested.outputs)
        + weights * len(requested.layers)
        + _FIELDS_BYTES
        + _OUTPUT_BYTES * (len(requested.outputs) + len(requested.layers))
    )


def serialise(message: Message) -> bytes:
    """Serialise a message.

    Raises:
        TooLarge: It exceeds the largest size of a message, 2 GiB.
    """
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLarge(f"the request is larger than a message can be (2 GiB): {error}") from error
