"""One `encode` as the request that goes over the wire."""

from google.protobuf.message import EncodeError, Message

from polyhead_client.errors import TooLarge
from polyhead_client.inputs import Batch
from polyhead_client.models import ModelInfo
from polyhead_client.selection import Selection
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import PARTS, TRUNCATE

# Names, shapes and timings; too little of it only means that the server is asked in vain.
_FIELDS_BYTES, _OUTPUT_BYTES = 512, 96


def build(
    info: ModelInfo,
    batch: Batch,
    selection: Selection,
    *,
    version: str,
    truncate: bool,
    parts: bool = False,
) -> bytes:
    """The bytes of a ModelInferRequest; every output that is wanted is named.

    Args:
        info: The model.
        batch: What to send.
        selection: What to ask for.
        version: The model's; empty is the newest.
        truncate: Cut texts that are too long.
        parts: Ask for a reply in parts.

    Raises:
        TooLarge: the server would not take it.
    """
    message = pb.ModelInferRequest(
        model_name=info.name,
        model_version=version,
        parameters={
            name: pb.InferParameter(bool_param=True)
            for name, wanted in ((TRUNCATE, truncate), (PARTS, parts))
            if wanted
        },
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            for tensor in batch.tensors
        ],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in selection.outputs],
        raw_input_contents=[tensor.raw for tensor in batch.tensors],
    )
    for layer in selection.layers.values():
        output = message.outputs.add(name=layer)
        for name, value in selection.parameters.items():
            output.parameters[name].string_param = value
    size, limit = message.ByteSize(), info.max_request_bytes
    if limit is not None and size > limit:
        raise TooLarge(
            f"the request has {size} bytes, {info.name} takes at most {limit}: send fewer sequences a call"
        )
    return serialise(message)


def reply_bytes(info: ModelInfo, selection: Selection, *, size: int, tokens: int | None) -> int:
    """About how many bytes the reply to [B, T] will have, as far as the client can know.

    Args:
        info: The model.
        selection: What is asked for.
        size: B.
        tokens: T; without it, as for texts, the answer is 0.
    """
    if tokens is None or info.d_model is None or info.heads is None:
        return 0
    heads = info.heads if selection.heads is None else len(selection.heads)
    queries = tokens if selection.queries is None else len(selection.queries)
    weight = DTYPES[selection.dtype or "FP32"].itemsize
    sizes = {"output": 4 * size * tokens * info.d_model, "pooled": 4 * size * info.d_model}
    weights = weight * size * heads * queries * tokens
    return (
        sum(sizes.get(name, 0) for name in selection.outputs)
        + weights * len(selection.layers)
        + _FIELDS_BYTES
        + _OUTPUT_BYTES * (len(selection.outputs) + len(selection.layers))
    )


def serialise(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        TooLarge: they are more than a message can have, 2 GiB.
    """
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLarge(f"the request is larger than a message can be (2 GiB): {error}") from error
