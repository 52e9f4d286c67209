"""Check what the header of a request says of its inputs.

Shape letters: B batch, T tokens, D d_model.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.faults import Fault
from polyhead_proto.names import ROWS, TEXT, TEXT_PAIR
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.inference.parameters import read_input_parameters
from polyhead_server.inference.wire import MOST_DIMENSIONS
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RequestInput:
    """One input, without raw data. Copied from its message: protobuf's own fields take longer to read."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    """The bytes of its raw contents, where `binary_data_size` gives them."""
    contents: pb.InferTensorContents | None
    """Typed contents; None where they are raw."""
    spec: TensorSpec
    limit: int | None = None
    """The largest value that it may hold, where its values index something, and that is known."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of its datatype, which is not BYTES."""
        return DTYPES[self.datatype]

    @cached_property
    def bytes(self) -> int:
        """The bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def check_inputs(
    message: pb.ModelInferRequest, raw_count: int, signature: Signature, settings: Settings
) -> tuple[Sequence[RequestInput], Mapping[str, int]]:
    """Check which inputs a request has, their datatypes and their shapes, each and against each other.

    Returns:
        The inputs in the order of the request, and the sizes of the axes that vary. T is missing where it
        follows from a text: only the tokeniser knows it.

    Raises:
        InvalidRequestError: An input is wrong; says which, what it must be and what it was.
    """
    inputs = _by_name(message, raw_count, signature)
    sizes: dict[str, int] = {}
    first = {signature.primary.name, TEXT}
    # What is needed says how long sequences are, and what may be left out must fit.
    for name in sorted(inputs, key=lambda name: (name not in first, inputs[name].spec.optional)):
        _check_shape(inputs[name], sizes, signature, settings)
    for letter, names in signature.optional.items():
        given, missing = (sorted(set(names) & inputs.keys()), set(names) - inputs.keys())
        if given and missing:
            raise InvalidRequestError(
                f"input {min(missing)} must be given together with input {given[0]}, as both have {letter}"
            )
        sizes.setdefault(letter, 1)
    return [bounded(given, sizes) for given in inputs.values()], sizes


def bounded(given: RequestInput, sizes: Mapping[str, int]) -> RequestInput:
    """Return an input with the largest value that it may hold at these sizes, as far as they are known.

    Raises:
        InvalidRequestError: It asks for more rows than there are.
    """
    spec = given.spec
    if isinstance(spec.fill, str):
        return replace(given, limit=sizes[spec.fill])
    below = sizes.get(spec.below) if isinstance(spec.below, str) else spec.below
    if below is None:
        return given
    if spec.role == ROWS and given.shape[-1] > below:
        must = f"must have at most {spec.below} ({below}) rows of a sequence"
        problem = f"{must}, had {given.shape[-1]}: each can be asked for once"
        raise InvalidRequestError(Fault(field=spec.name, problem=problem))
    return replace(given, limit=below - 1)


def _by_name(message: pb.ModelInferRequest, raw_count: int, signature: Signature) -> dict[str, RequestInput]:
    """Return the inputs by name: all that are needed, none twice, none unknown."""
    if raw_count and raw_count != len(message.inputs):
        for tensor in message.inputs:  # one in shared memory, which is not offered, has no content
            read_input_parameters(tensor.parameters, f"input {quoted(tensor.name)}", text=True)
        raise InvalidRequestError(
            f"raw_input_contents must have one entry for each input ({len(message.inputs)}), had {raw_count}"
        )
    inputs: dict[str, RequestInput] = {}
    for tensor in message.inputs:
        name = tensor.name
        if name not in signature.inputs:
            raise InvalidRequestError(
                f"input {quoted(name)} is not known to {signature.name}, "
                f"which takes {listed(signature.inputs)}"
            )
        if name in inputs:
            raise InvalidRequestError(
                Fault(aspect="input ", field=name, problem="must be given once, was given twice")
            )
        if raw_count and tensor.contents.ByteSize():  # some clients write an empty one
            problem = "must not have contents: the request has raw_input_contents"
            raise InvalidRequestError(Fault(field=name, problem=problem))
        spec = signature.inputs[name]
        if len(tensor.shape) > MOST_DIMENSIONS:  # before it is copied
            raise _wrong_rank(spec, len(tensor.shape))
        shape = tuple(tensor.shape)
        size = read_input_parameters(tensor.parameters, name, text=spec.datatype == "BYTES")
        if size is not None and not raw_count:
            raise InvalidRequestError(
                Fault(
                    aspect="parameter binary_data_size of ",
                    field=name,
                    problem=f"must be left out, was {size}: its contents are not raw",
                )
            )
        if spec.is_per_sequence and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]  # (B, 1), as Triton's clients send it
        inputs[name] = RequestInput(
            name=name,
            datatype=tensor.datatype,
            shape=shape,
            size=size,
            contents=None if raw_count else tensor.contents,
            spec=spec,
        )
    for spec in signature.inputs.values():
        if not spec.optional and spec.name not in inputs:
            datatypes, axes = " or ".join((spec.datatype, *spec.also)), ", ".join(spec.axes)
            problem = f"is missing: it must be given as {datatypes} ({axes})"
            raise InvalidRequestError(Fault(aspect="input ", field=spec.name, problem=problem))
    if TEXT in signature.inputs:
        _check_alternatives(inputs, signature)
    return inputs


def _check_alternatives(inputs: Collection[str], signature: Signature) -> None:
    """Check that there is either text or token ids: a text brings all that goes with them."""
    ids = signature.primary.name
    if TEXT not in inputs:
        if TEXT_PAIR in inputs:
            problem = f"must be given together with input {TEXT}"
            raise InvalidRequestError(Fault(aspect="input ", field=TEXT_PAIR, problem=problem))
        if ids not in inputs:
            raise InvalidRequestError(f"either input text or input {ids} must be given, neither was")
        return
    for spec in signature.feeds:
        if spec.name in inputs and signature.length in {*spec.axes, spec.fill}:
            problem = "must not be given together with text, which brings its own"
            raise InvalidRequestError(Fault(aspect="input ", field=spec.name, problem=problem))


def _check_shape(
    given: RequestInput, sizes: dict[str, int], signature: Signature, settings: Settings
) -> None:
    """Check datatype and shape, also against the sizes of earlier inputs; note the sizes that are new."""
    spec = given.spec
    accepted = (spec.datatype, *spec.also)
    if given.datatype not in accepted:
        problem = f"must have datatype {' or '.join(accepted)}, was {quoted(given.datatype)}"
        raise InvalidRequestError(Fault(field=spec.name, problem=problem))
    axes, shape = spec.axes, given.shape
    if len(shape) != len(axes):
        if spec.is_per_sequence:
            problem = f"must have shape (B) or (B, 1), was {shown(shape)}"
            raise InvalidRequestError(Fault(field=spec.name, problem=problem))
        raise _wrong_rank(spec, len(shape))
    for position, (letter, size, fixed) in enumerate(zip(axes, shape, spec.shape, strict=True)):
        exact = fixed if fixed != -1 else sizes.get(letter)
        longest = {"B": settings.max_batch_size, signature.length: signature.max_tokens}.get(letter)
        if must := _missed(size, exact, longest):
            aspect = f"dimension {position} ({letter}) of "
            problem = f"must be {must}, was {size}"
            raise InvalidRequestError(Fault(aspect=aspect, field=spec.name, problem=problem))
        if fixed == -1:
            sizes[letter] = size


def _missed(size: int, exact: int | None, longest: int | None) -> str | None:
    """Return what the size of an axis must be, and is not."""
    if exact is not None and size != exact:
        return str(exact)
    if size < 1:
        return "at least 1"
    return None if longest is None or size <= longest else f"at most {longest}"


def _wrong_rank(spec: TensorSpec, rank: int) -> InvalidRequestError:
    problem = f"must have {len(spec.axes)} dimensions ({', '.join(spec.axes)}), had {rank}"
    return InvalidRequestError(Fault(field=spec.name, problem=problem))


def shown(shape: Sequence[int]) -> str:
    """Return a shape as messages show it, not too long."""
    return quoted(str(list(shape))).strip("'")
