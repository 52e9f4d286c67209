"""The parameters of a request, of its inputs and of its requested outputs.

A parameter that is not understood is refused by name: what is passed over silently is found out late.
Those that clients of other servers add by themselves are accepted where they say what happens anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from polyhead_proto import messages as pb
from polyhead_proto import names
from polyhead_proto.datatypes import Precision
from polyhead_server.errors import InvalidRequestError, quoted, shorten
from polyhead_server.inference.selection import Selector, parse_selector

_OF_OUTPUTS = "heads, queries and dtype"
_OF_REQUESTS = "timeout, priority, parts, heads, queries and dtype"
_OF_TEXT_REQUESTS = f"truncate, {_OF_REQUESTS}"

# MLServer's names: an array, a column of a table; and, for BYTES only, strings.
_CONTENT_TYPES = ("np", "pd")
_TEXT_CONTENT_TYPE = "str"

_HINTS = {
    "classification": ": attention and encoder outputs have no classes",
    "shared_memory_region": ": shared memory is not offered",
    "shared_memory_byte_size": ": shared memory is not offered",
    "shared_memory_offset": ": shared memory is not offered",
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What to take from an output, and how to write it. None: not said."""

    heads: Selector | None = None
    queries: Selector | None = None
    dtype: str | None = None

    def over(self, default: "Selection") -> "Selection":
        """The same selection, with the default's where it says nothing."""
        return Selection(
            heads=self.heads or default.heads,
            queries=self.queries or default.queries,
            dtype=self.dtype or default.dtype,
        )


@dataclass(frozen=True, kw_only=True)
class RequestParameters:
    """What a request's own parameters say."""

    truncate: bool = False
    parts: bool = False
    """The reply is to come in parts."""
    timeout: float | None = None
    """How long it may wait for its turn, in seconds. None: it does not say."""
    priority: int = 0
    """1 is the highest, 0 the default."""
    default: Selection = Selection()
    """For every output that it applies to."""


Parameters = Mapping[str, pb.InferParameter]


def read_request_parameters(parameters: Parameters, *, takes_text: bool) -> RequestParameters:
    """Reads a request's parameters.

    Args:
        parameters: As they came.
        takes_text: The model takes text, so `truncate` means something.

    Raises:
        InvalidRequestError: One is unknown or of the wrong type.
    """
    truncate = parts = False
    timeout = priority = 0
    rest: dict[str, pb.InferParameter] = {}
    for name, parameter in parameters.items():
        match name:
            case names.TRUNCATE if takes_text:
                truncate = _boolean(name, parameter)
            case names.PARTS:
                parts = _boolean(name, parameter)
            case "triton_enable_empty_final_response":
                _boolean(name, parameter)
            case "timeout":
                timeout = _at_least_zero(name, parameter)
            case "priority":
                priority = _at_least_zero(name, parameter)
            case "sequence_id" | "sequence_start" | "sequence_end":
                _without_sequence(name, parameter)
            case _ if not _changes_nothing(
                name, parameter, "the request", raw="binary_data_output", text=takes_text
            ):
                rest[name] = parameter
    return RequestParameters(
        truncate=truncate,
        parts=parts,
        timeout=timeout / 1e6 if timeout else None,
        priority=priority,
        default=read_selection(rest, "the request", _OF_TEXT_REQUESTS if takes_text else _OF_REQUESTS),
    )


def read_output_parameters(parameters: Parameters, output: str, *, text: bool) -> Selection:
    """Reads the parameters of a requested output.

    Args:
        parameters: As they came.
        output: The output's name.
        text: It holds strings.

    Raises:
        InvalidRequestError: One is unknown, of the wrong type, or asks for what is not done.
    """
    whose = f"output {output}"
    rest = {
        name: parameter
        for name, parameter in parameters.items()
        if not _changes_nothing(name, parameter, whose, raw="binary_data", text=text)
    }
    return read_selection(rest, whose)


def read_selection(parameters: Parameters, whose: str, known: str = _OF_OUTPUTS) -> Selection:
    """Reads `heads`, `queries` and `dtype`.

    Args:
        parameters: As they came.
        whose: An output's name, or `the request`, for messages.
        known: What there is, for messages.

    Raises:
        InvalidRequestError: One is unknown or of the wrong type.
    """
    heads = queries = dtype = None
    for name, parameter in parameters.items():
        match name:
            case "heads":
                heads = _selector(name, parameter, whose)
            case "queries":
                queries = _selector(name, parameter, whose)
            case "dtype":
                dtype = parameter.string_param
                if dtype not in get_args(Precision):
                    raise InvalidRequestError(
                        f"parameter dtype of {whose} must be {', '.join(get_args(Precision))}, "
                        f"was {_shown(parameter)}"
                    )
            case _:
                raise InvalidRequestError(
                    f"parameter {quoted(name)} of {whose} is not known{_HINTS.get(name, '')}; "
                    f"there are {known}"
                )
    return Selection(heads=heads, queries=queries, dtype=dtype)


def read_input_parameters(parameters: Parameters, whose: str, *, text: bool) -> int | None:
    """Reads the parameters of an input.

    Args:
        parameters: As they came.
        whose: The input's name.
        text: It holds strings.

    Returns:
        How many raw bytes it must have, where `binary_data_size` says so.

    Raises:
        InvalidRequestError: One is unknown, of the wrong type, or asks for what is not done.
    """
    size = None
    for name, parameter in parameters.items():
        if name == "binary_data_size":
            size = _at_least_zero(name, parameter, whose)
        elif not _changes_nothing(name, parameter, whose, text=text):
            raise InvalidRequestError(
                f"parameter {quoted(name)} of {whose} is not known{_HINTS.get(name, '')}"
            )
    return size


def _changes_nothing(
    name: str, parameter: pb.InferParameter, whose: str, *, text: bool, raw: str | None = None
) -> bool:
    """Whether it is a parameter that clients of other servers add, which says what happens anyway.

    Args:
        name: The parameter's name.
        parameter: Its value.
        whose: Of what it is, for messages.
        text: There are strings to be read, or written.
        raw: The name under which raw outputs are asked for here.

    Raises:
        InvalidRequestError: It is one of them, and asks for something else.
    """
    if name == "headers":  # of an HTTP request, for the model to read; no model here does
        return True
    if name == "content_type":
        known = (*_CONTENT_TYPES, _TEXT_CONTENT_TYPE) if text else _CONTENT_TYPES
        if parameter.string_param not in known:
            raise InvalidRequestError(
                f"parameter content_type of {whose} must be {' or '.join(known)}, was {_shown(parameter)}: "
                "tensors are read and written as their datatypes say"
            )
        return True
    if name == raw:
        if not _boolean(name, parameter, whose):
            raise InvalidRequestError(
                f"parameter {name} of {whose} must be true or left out, was {_shown(parameter)}: "
                "outputs are always in raw_output_contents"
            )
        return True
    return False


def _selector(name: str, parameter: pb.InferParameter, whose: str) -> Selector:
    match parameter.WhichOneof("parameter_choice"):
        case "string_param":
            return parse_selector(name, parameter.string_param, whose)
        case "int64_param":
            return parse_selector(name, str(parameter.int64_param), whose)
        case "uint64_param":
            return parse_selector(name, str(parameter.uint64_param), whose)
    raise InvalidRequestError(
        f"parameter {name} of {whose} must be a string such as '0,3' or '0:4', was {_shown(parameter)}"
    )


def _boolean(name: str, parameter: pb.InferParameter, whose: str = "the request") -> bool:
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidRequestError(f"parameter {name} of {whose} must be a boolean, was {_shown(parameter)}")
    return parameter.bool_param


def _at_least_zero(name: str, parameter: pb.InferParameter, whose: str = "the request") -> int:
    choice = parameter.WhichOneof("parameter_choice")
    if choice == "uint64_param":
        return parameter.uint64_param
    if choice == "int64_param" and parameter.int64_param >= 0:
        return parameter.int64_param
    raise InvalidRequestError(
        f"parameter {name} of {whose} must be a whole number of at least 0, was {_shown(parameter)}"
    )


def _without_sequence(name: str, parameter: pb.InferParameter) -> None:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is not None and getattr(parameter, choice):
        raise InvalidRequestError(
            f"parameter {name} of the request must be 0, empty or false, was {_shown(parameter)}: "
            "the models here keep no state between requests"
        )


def _shown(parameter: pb.InferParameter) -> str:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        return "empty"
    value = getattr(parameter, choice)
    return f"{quoted(value) if isinstance(value, str) else shorten(str(value))} ({choice})"
