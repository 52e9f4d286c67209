"""Read the parameters of a request, of its inputs and of its requested outputs.

An unknown parameter is rejected by name: a typing error that is ignored is noticed late. Those that clients
of other servers add by themselves are accepted where they ask for what happens anyway.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from polyhead_proto import messages as pb
from polyhead_proto import names
from polyhead_proto.datatypes import Precision
from polyhead_proto.outputs.pooled import VectorPrecision
from polyhead_server.errors import InvalidRequestError, listed, quoted, shorten
from polyhead_server.scheduling.batch import level_of

_OF_OUTPUTS = "heads, queries, layers, top, dimensions, precision and dtype"
_OF_REQUESTS = f"timeout, priority, parts, {_OF_OUTPUTS}"
_OF_TEXT_REQUESTS = f"truncate, prompt_name, {_OF_REQUESTS}"

# MLServer's names: an array, a column of a table; and, for BYTES only, strings.
_CONTENT_TYPES = ("np", "pd")
_TEXT_CONTENT_TYPE = "str"

_HINTS = {
    "classification": " (class_count): outputs come whole; sort the logits, whose labels are in metadata",
    **dict.fromkeys(
        ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
        ": shared memory is not offered, send the tensor in the request",
    ),
}

_WORDS = {bool: "a boolean", str: "a string"}
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9})\s*)?")
_MAX_SELECTOR_LENGTH = 64 * 1024

T = TypeVar("T")
Parameters = Mapping[str, pb.InferParameter]


@dataclass(frozen=True, kw_only=True)
class Selector:
    """Indices as a request writes them: `0,3`, `0:4`, or both mixed."""

    name: str
    whose: str
    ranges: Sequence[tuple[int, int]]
    """Start and end, the end not included."""

    def resolve(self, size: int, letter: str) -> Sequence[int]:
        """Return the indices into an axis of this size, in the order given.

        Raises:
            InvalidRequestError: An index is out of range or given twice.
        """
        for _, stop in self.ranges:
            if stop > size:
                bounds = f"0 and {letter}-1 ({size - 1}), was {stop - 1}"
                if self.name in {names.TOP, names.DIMENSIONS}:
                    bounds = f"1 and {letter} ({size}), was {stop}"
                raise InvalidRequestError(f"parameter {self.name} of {self.whose} must be between {bounds}")
        if len(self.ranges) == 1:
            return range(*self.ranges[0])
        return self._distinct()

    def resolve_numbers(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the indices into an axis of layers or heads that have these numbers.

        Raises:
            InvalidRequestError: One is not there, or given twice.
        """
        place = {number: index for index, number in enumerate(numbers)}
        for start, stop in self.ranges:
            for number in range(start, stop):
                if number not in place:
                    pruned = "; the others were pruned" if self.name == names.HEADS else ""
                    raise InvalidRequestError(
                        f"parameter {self.name} of {self.whose} must be some of its {self.name} "
                        f"({listed(numbers)}{pruned}), was {number}"
                    )
        return [place[number] for number in self._distinct()]

    def _distinct(self) -> Sequence[int]:
        seen: dict[int, None] = {}
        for start, stop in self.ranges:
            for index in range(start, stop):
                if index in seen:
                    raise InvalidRequestError(
                        f"parameter {self.name} of {self.whose} must name each index once, has {index} twice"
                    )
                seen[index] = None
        return list(seen)


@dataclass(frozen=True, kw_only=True)
class OutputParameters:
    """What to select from an output, and how to write it."""

    selectors: Mapping[str, Selector] = field(default_factory=dict)
    """By the parameter's name."""
    dtype: str | None = None
    precision: VectorPrecision | None = None
    """Of pooled vectors."""


@dataclass(frozen=True, kw_only=True)
class RequestParameters:
    """The parameters of a whole request."""

    truncate: bool | None = None
    """Cut texts that are too long. None: as the server is set."""
    prompt_name: str | None = None
    """The name of the prompt to put before texts; empty for none. None: the default prompt."""
    parts: bool = False
    """Reply in parts."""
    timeout: float | None = None
    """The longest time in the queue, in seconds. None: not given."""
    level: int = level_of(0)
    """The index of its priority in the queue."""
    default: OutputParameters = OutputParameters()
    """For every output that it applies to."""


def read_request_parameters(parameters: Parameters, *, takes_text: bool) -> RequestParameters:
    """Read a request's parameters; `truncate` and `prompt_name` are among them where the model takes text.

    Raises:
        InvalidRequestError: A parameter is unknown or of the wrong type.
    """
    parts = False
    truncate = prompt_name = None
    timeout = priority = 0
    rest: dict[str, pb.InferParameter] = {}
    for name, parameter in parameters.items():
        match name:
            case names.TRUNCATE if takes_text:
                truncate = _typed(bool, name, parameter)
            case names.PROMPT_NAME if takes_text:
                prompt_name = _typed(str, name, parameter)
            case names.PARTS:
                parts = _typed(bool, name, parameter)
            case "triton_enable_empty_final_response":
                _typed(bool, name, parameter)
            case "timeout":
                timeout = _whole_number(name, parameter)
            case "priority":
                priority = _whole_number(name, parameter)
            case "sequence_id" | "sequence_start" | "sequence_end":
                _without_sequence(name, parameter)
            case _:
                rest[name] = parameter
    known = _OF_TEXT_REQUESTS if takes_text else _OF_REQUESTS
    return RequestParameters(
        truncate=truncate,
        prompt_name=prompt_name,
        parts=parts,
        timeout=timeout / 1e6 if timeout else None,
        level=level_of(priority),
        default=_read_selection(rest, "the request", known, raw="binary_data_output", text=takes_text),
    )


def read_output_parameters(parameters: Parameters, output: str, *, text: bool) -> OutputParameters:
    """Read the parameters of a requested output, which holds text or numbers.

    Raises:
        InvalidRequestError: A parameter is unknown, of the wrong type, or asks for something unsupported.
    """
    return _read_selection(parameters, f"output {output}", _OF_OUTPUTS, raw="binary_data", text=text)


def _read_selection(
    parameters: Parameters, whose: str, known: str, *, raw: str, text: bool
) -> OutputParameters:
    """Read selections and `dtype`, and reject any other parameter that changes something."""
    selectors: dict[str, Selector] = {}
    dtype = precision = None
    for name, parameter in parameters.items():
        match name:
            case names.HEADS | names.QUERIES | names.LAYERS:
                selectors[name] = _selector(name, parameter, whose)
            case names.TOP | names.DIMENSIONS:
                count = _whole_number(name, parameter, whose, least=1)
                selectors[name] = Selector(name=name, whose=whose, ranges=[(0, count)])
            case names.DTYPE:
                dtype = _choice(name, parameter, whose, get_args(Precision))
            case names.PRECISION:
                precision = _choice(name, parameter, whose, get_args(VectorPrecision))
            case _ if not _changes_nothing(name, parameter, whose, raw=raw, text=text):
                raise _unknown(name, whose, f"; there are {known}")
    return OutputParameters(selectors=selectors, dtype=dtype, precision=precision)


def read_input_parameters(parameters: Parameters, whose: str, *, text: bool) -> int | None:
    """Read the parameters of an input, which holds text or numbers.

    Returns:
        The number of its raw bytes, where `binary_data_size` gives it.

    Raises:
        InvalidRequestError: A parameter is unknown, of the wrong type, or asks for something unsupported.
    """
    size = None
    for name, parameter in parameters.items():
        if name == "binary_data_size":
            size = _whole_number(name, parameter, whose)
        elif not _changes_nothing(name, parameter, whose, text=text):
            raise _unknown(name, whose)
    return size


def _changes_nothing(
    name: str, parameter: pb.InferParameter, whose: str, *, text: bool, raw: str | None = None
) -> bool:
    """Tell whether clients of other servers add this parameter, and it asks for what happens anyway.

    `text` says whether it is about strings; `raw` names the parameter that asks for raw outputs.

    Raises:
        InvalidRequestError: It is such a parameter, and asks for something else.
    """
    if name == "headers":  # of an HTTP request, for the model to read; no model here does
        return True
    if name == "content_type":
        known = (*_CONTENT_TYPES, _TEXT_CONTENT_TYPE) if text else _CONTENT_TYPES
        if parameter.string_param not in known:
            why = ": tensors are read and written as their datatypes say"
            raise _wrong(name, parameter, whose, " or ".join(known), why)
        return True
    if name == raw:
        if not _typed(bool, name, parameter, whose):
            why = ": outputs are always in raw_output_contents"
            raise _wrong(name, parameter, whose, "true or left out", why)
        return True
    return False


def _selector(name: str, parameter: pb.InferParameter, whose: str) -> Selector:
    value = _value(parameter)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _wrong(name, parameter, whose, "a string such as '0,3' or '0:4'")
    if len(text := str(value)) > _MAX_SELECTOR_LENGTH:
        raise InvalidRequestError(
            f"parameter {name} of {whose} must be at most {_MAX_SELECTOR_LENGTH} characters long"
        )
    ranges = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        start, stop = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if start >= stop:
            raise InvalidRequestError(
                f"parameter {name} of {whose} must be indices such as '0,3' or '0:4', was {quoted(text)}"
            )
        ranges.append((start, stop))
    return Selector(name=name, whose=whose, ranges=ranges)


def _choice(name: str, parameter: pb.InferParameter, whose: str, choices: Sequence[T]) -> T:
    for choice in choices:
        if parameter.string_param == choice:
            return choice
    raise _wrong(name, parameter, whose, ", ".join(map(str, choices)))


def _typed(kind: type[T], name: str, parameter: pb.InferParameter, whose: str = "the request") -> T:
    if not isinstance(value := _value(parameter), kind):
        raise _wrong(name, parameter, whose, _WORDS[kind])
    return value


def _whole_number(
    name: str, parameter: pb.InferParameter, whose: str = "the request", *, least: int = 0
) -> int:
    value = _value(parameter)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise _wrong(name, parameter, whose, f"a whole number of at least {least}")


def _without_sequence(name: str, parameter: pb.InferParameter) -> None:
    if _value(parameter):
        why = ": the models here keep no state between requests"
        raise _wrong(name, parameter, "the request", "0, empty or false", why)


def _value(parameter: pb.InferParameter) -> bool | int | float | str | None:
    """Return a parameter's value; None where it has none."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _unknown(name: str, whose: str, known: str = "") -> InvalidRequestError:
    """Return the error for a parameter that there is not."""
    return InvalidRequestError(
        f"parameter {quoted(name)} of {whose} is not known{_HINTS.get(name, '')}{known}"
    )


def _wrong(
    name: str, parameter: pb.InferParameter, whose: str, must: str, why: str = ""
) -> InvalidRequestError:
    """Return the error for a parameter of the wrong type or value."""
    was = "empty"
    if choice := parameter.WhichOneof("parameter_choice"):
        value = getattr(parameter, choice)
        was = f"{quoted(value) if isinstance(value, str) else shorten(str(value))} ({choice})"
    return InvalidRequestError(f"parameter {name} of {whose} must be {must}, was {was}{why}")
