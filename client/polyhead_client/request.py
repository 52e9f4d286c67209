"""Build the request of an `encode`."""

from dataclasses import dataclass

from google.protobuf.message import EncodeError, Message

from polyhead_client.errors import TooLarge
from polyhead_client.inputs import Batch
from polyhead_client.models import ModelInfo
from polyhead_client.requested import RequestedOutputs
from polyhead_proto import messages as pb
from polyhead_proto.names import PARTS, PROMPT_NAME, TRUNCATE
from polyhead_proto.wire import write_varint

# Names, shapes and timings. An estimate that is too small only costs a rejected call.
_FIELDS_BYTES, _OUTPUT_BYTES = 512, 96
_LARGEST_MESSAGE = 2**31 - 1
_RAW_TAG = bytes([pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | 2])


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodeTemplate:
    """What the requests of `encode` calls have in common whose inputs have the same form."""

    info: ModelInfo
    requested: RequestedOutputs
    version: str
    """Empty means the newest."""
    truncate: bool
    """Whether to truncate texts that are too long."""
    prompt_name: str | None
    """The prompt to put before texts; None means the model's default, empty none."""


def build(template: EncodeTemplate, batch: Batch, *, parts: bool = False) -> bytes:
    """Build the bytes of a ModelInferRequest that names every requested output.

    Args:
        template: The template of the request.
        batch: The inputs.
        parts: Whether to reply in parts.

    Raises:
        TooLarge: The request exceeds the server's limit.
    """
    info, requested = template.info, template.requested
    parameters = {
        name: pb.InferParameter(bool_param=True)
        for name, wanted in ((TRUNCATE, template.truncate), (PARTS, parts))
        if wanted
    }
    if template.prompt_name is not None:
        parameters[PROMPT_NAME] = pb.InferParameter(string_param=template.prompt_name)
    message = pb.ModelInferRequest(
        model_name=info.name,
        model_version=template.version,
        parameters=parameters,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            for tensor in batch.tensors
        ],
        outputs=[
            pb.ModelInferRequest.InferRequestedOutputTensor(
                name=output.name,
                parameters={
                    name: pb.InferParameter(int64_param=value)
                    if isinstance(value, int)
                    else pb.InferParameter(string_param=value)
                    for name, value in output.parameters
                },
            )
            for output in requested.outputs
        ],
    )
    # What protobuf would write, which copies each tensor three times.
    pieces: list[bytes | memoryview] = [serialise(message)]
    for tensor in batch.tensors:
        pieces += (_RAW_TAG, write_varint(len(tensor.raw)), tensor.raw)
    size, limit = sum(map(len, pieces)), info.max_request_bytes or _LARGEST_MESSAGE
    if size > min(limit, _LARGEST_MESSAGE):
        raise TooLarge(
            f"the request has {size} bytes, {info.name} takes at most {limit}: send fewer sequences a call"
        )
    return b"".join(pieces)


def reply_bytes(
    requested: RequestedOutputs, *, size: int, tokens: int | None, memory: int | None = None
) -> int:
    """Estimate the bytes of the reply to a request of [B, T].

    Args:
        requested: The requested outputs.
        size: B.
        tokens: T; None, as for texts, makes the estimate 0.
        memory: S, where there is a memory, or a query to compare with.
    """
    if tokens is None:
        return 0
    outputs = len(requested.outputs)
    return size * requested.sequence_bytes(tokens, memory or 0) + _FIELDS_BYTES + _OUTPUT_BYTES * outputs


def serialise(message: Message) -> bytes:
    """Serialise a message.

    Raises:
        TooLarge: It exceeds the largest size of a message, 2 GiB.
    """
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLarge(f"the request is larger than a message can be (2 GiB): {error}") from error
