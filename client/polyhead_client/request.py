"""One `encode` as the request that goes over the wire."""

from google.protobuf.message import EncodeError, Message

from polyhead_client.errors import TooLarge
from polyhead_client.inputs import Batch
from polyhead_client.models import ATTENTION, ModelInfo
from polyhead_client.selection import Selection
from polyhead_proto import messages as pb


def build(info: ModelInfo, batch: Batch, selection: Selection, *, version: str, truncate: bool) -> bytes:
    """The bytes of a ModelInferRequest; every output that is wanted is named.

    Raises:
        TooLarge: the server would not take it.
    """
    message = pb.ModelInferRequest(
        model_name=info.name,
        model_version=version,
        parameters={"truncate": pb.InferParameter(bool_param=True)} if truncate else {},
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            for tensor in batch.tensors
        ],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in selection.outputs],
        raw_input_contents=[tensor.raw for tensor in batch.tensors],
    )
    for layer in selection.layers:
        output = message.outputs.add(name=f"{ATTENTION}.{layer}")
        for name, value in selection.parameters.items():
            output.parameters[name].string_param = value
    size, limit = message.ByteSize(), info.max_request_bytes
    if limit is not None and size > limit:
        raise TooLarge(
            f"the request has {size} bytes, {info.name} takes at most {limit}: send fewer sequences a call"
        )
    return serialise(message)


def serialise(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        TooLarge: they are more than a message can have, 2 GiB.
    """
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLarge(f"the request is larger than a message can be (2 GiB): {error}") from error
