"""Check and build the request of an `encode`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from google.protobuf.message import EncodeError, Message

from polyhead_client.batch import Batch
from polyhead_client.errors import InvalidRequest, TooLarge
from polyhead_client.models import ModelInfo
from polyhead_client.requested import RequestedOutputs
from polyhead_proto import messages as pb
from polyhead_proto.names import (
    HEAD_MASK,
    INPUT_IDS,
    MASK,
    MEMORY_MASK,
    PARTS,
    PROMPT_NAME,
    QUERY,
    TEXT,
    TRUNCATE,
    X,
)
from polyhead_proto.tensors import TensorSpec
from polyhead_proto.wire import write_varint

# Names, shapes and timings. An estimate that is too small only costs a rejected call.
_FIELDS_BYTES, _OUTPUT_BYTES = 512, 96
_LARGEST_MESSAGE = 2**31 - 1
_MOST_HEADERS = _MOST_FORMS = 256
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

    @cached_property
    def header(self) -> Callable[..., bytes]:
        """Returns all of a request but the contents of its inputs; see `_header`."""
        return lru_cache(_MOST_HEADERS)(partial(_header, self))


class Form:
    """A form of calls: what those of `encode` with the same arguments share, but for their inputs."""

    template: EncodeTemplate | None = None
    """None until the first of them has chosen its outputs."""


class Forms:
    """The forms of calls, of which a program has few that it uses again and again."""

    def __init__(self) -> None:
        self._kept = lru_cache(_MOST_FORMS)(lambda _key: Form())
        self.clear = self._kept.cache_clear

    def find(self, fixed: tuple[object, ...], arguments: Mapping[str, Any]) -> Form:
        """Return the form of calls with these arguments, of which lists are as good as tuples.

        Types count, as 1 equals True, but is no flag. Arguments that cannot be compared share no form.
        """
        key: list[object] = [*fixed, *map(type, fixed)]
        for name, value in arguments.items():
            is_list = isinstance(value, list | tuple)
            key += (name, type(value), (*value, *map(type, value)) if is_list else value)
        try:
            return self._kept(tuple(key))
        except TypeError:
            return Form()


def build(template: EncodeTemplate, batch: Batch, *, parts: bool = False) -> bytes:
    """Build the bytes of a ModelInferRequest that names every requested output.

    Args:
        template: The template of the request.
        batch: The inputs.
        parts: Whether to reply in parts.

    Raises:
        TooLarge: The request exceeds the server's limit.
    """
    info = template.info
    inputs, pieces = [], list[bytes | memoryview]()
    # What protobuf would write, which copies each tensor three times.
    for field in batch.fields:
        form, raw = field.encoded()
        inputs.append(form)
        pieces += (_RAW_TAG, write_varint(len(raw)), raw)
    pieces.insert(0, template.header(parts, *inputs))
    size, limit = sum(map(len, pieces)), info.max_request_bytes or _LARGEST_MESSAGE
    if size > min(limit, _LARGEST_MESSAGE):
        raise TooLarge(
            f"the request has {size} bytes, {info.name} takes at most {limit}: send fewer sequences a call"
        )
    return b"".join(pieces)


def _header(template: EncodeTemplate, parts: bool, *inputs: tuple[str, str, Sequence[int]]) -> bytes:
    """Return all of a request but the contents of its inputs, given their names, datatypes and shapes."""
    parameters = {
        name: pb.InferParameter(bool_param=True)
        for name, wanted in ((TRUNCATE, template.truncate), (PARTS, parts))
        if wanted
    }
    if template.prompt_name is not None:
        parameters[PROMPT_NAME] = pb.InferParameter(string_param=template.prompt_name)
    message = pb.ModelInferRequest(
        model_name=template.info.name,
        model_version=template.version,
        parameters=parameters,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
            for name, datatype, shape in inputs
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
            for output in template.requested.outputs
        ],
    )
    return serialise(message)


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


def check_inputs(info: ModelInfo, batch: Batch) -> None:
    """Check that a model takes what a call gives.

    Raises:
        InvalidRequest: It does not.
    """
    if batch.kind not in info.inputs:
        spelled = {
            TEXT: "texts",
            INPUT_IDS: "token ids (integers)",
            X: "vectors (floats)",
            QUERY: "vectors (floats) with memory",
        }
        taken = " or ".join(spelled[name] for name in spelled if name in info.inputs)
        raise InvalidRequest(f"inputs of {info.name} must be {taken}, was {spelled[batch.kind]}")
    for given in batch.fields[1:]:
        if given.name not in info.inputs:
            advice = ""
            if given.name == MASK and MEMORY_MASK in info.inputs:
                advice = ": its layers attend to the memory alone, which memory_mask masks"
            elif given.name in {MASK, MEMORY_MASK}:
                advice = "; an encoder with mask_input=True takes masks (polyhead export --mask)"
            raise InvalidRequest(
                f"{given.name} is no input of {info.name}, which takes {', '.join(info.inputs)}{advice}"
            )


def input_of(info: ModelInfo, name: str) -> TensorSpec:
    """Return an input of a model.

    Raises:
        InvalidRequest: There is no such input.
    """
    if name not in info.inputs:
        raise InvalidRequest(
            f"{name} cannot be given: {info.name} has no such input"
            + (", which polyhead export --head-mask adds" if name == HEAD_MASK else "")
        )
    return info.inputs[name]
