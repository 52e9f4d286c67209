"""The outputs of a request: which, how much of each, and how many bytes that makes.

All of it is known before anything is computed. Shape letters: B batch, T tokens, D d_model, H heads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import LENGTHS, TOKENS
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.inference.parameters import Selection, read_output_parameters
from polyhead_server.repository.signature import Signature, TensorSpec


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An output as it was asked for."""

    spec: TensorSpec
    heads: Sequence[int] | None
    selection: Selection
    datatype: str


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An output whose every size is known."""

    wanted: Wanted
    shape: tuple[int, ...]
    queries: Sequence[int] | None
    bytes: int
    """Of its raw content."""
    computed_bytes: int
    """Of all that the graph gives for it, before anything is selected."""


def requested_outputs(
    outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor],
    default: Selection,
    signature: Signature,
) -> list[Wanted]:
    """Reads which outputs are wanted; none named means all.

    Args:
        outputs: The requested outputs as they came.
        default: What the request's own parameters select, for every output that it applies to.
        signature: What the model gives.

    Raises:
        InvalidRequestError: An output or one of its parameters is wrong, or the default applies to none.
    """
    own: dict[str, Selection] = {}
    for output in outputs:
        if output.name not in signature.outputs:
            raise InvalidRequestError(
                f"output {quoted(output.name)} is not known to {signature.name}, "
                f"which gives {listed(signature.outputs)}{_elsewhere(output.name, signature)}"
            )
        if output.name in own:
            raise InvalidRequestError(f"output {output.name} must be requested once, was requested twice")
        text = signature.outputs[output.name].datatype == "BYTES"
        own[output.name] = read_output_parameters(output.parameters, output.name, text=text)
    specs = [signature.outputs[name] for name in own or signature.outputs]
    _check_applies(default, specs)
    return [_want(spec, own.get(spec.name, Selection()), default) for spec in specs]


def plan(wanted: Wanted, *, sizes: Mapping[str, int], tokens_bytes: int) -> Planned:
    """Works out the shape and the bytes of an output.

    Args:
        wanted: The output.
        sizes: Of the axes that vary.
        tokens_bytes: The bytes of `tokens`, which alone do not follow from its shape.

    Raises:
        InvalidRequestError: A query is out of range.
    """
    spec, queries = wanted.spec, None
    shape = list(spec.at(sizes))
    computed = 0 if spec.name in {TOKENS, LENGTHS} else math.prod(shape) * DTYPES[spec.datatype].itemsize
    if spec.is_attention:
        if wanted.heads is not None:
            shape[spec.heads_axis] = len(wanted.heads)
        if wanted.selection.queries is not None:
            axis = spec.queries_axis
            queries = wanted.selection.queries.resolve(shape[axis], spec.axes[axis])
            shape[axis] = len(queries)
    size = tokens_bytes if spec.name == TOKENS else math.prod(shape) * DTYPES[wanted.datatype].itemsize
    return Planned(wanted=wanted, shape=tuple(shape), queries=queries, bytes=size, computed_bytes=computed)


def _want(spec: TensorSpec, own: Selection, default: Selection) -> Wanted:
    for name in ("heads", "queries", "dtype"):
        if getattr(own, name) is not None and not _applies(name, own.dtype, spec):
            extra = f" {own.dtype}" if name == "dtype" else ""
            raise InvalidRequestError(f"parameter {name}{extra} does not apply to output {spec.name}")
    selection = own.over(
        Selection(
            heads=default.heads if spec.is_attention else None,
            queries=default.queries if spec.is_attention else None,
            dtype=default.dtype if _applies("dtype", default.dtype, spec) else None,
        )
    )
    heads = selection.heads
    return Wanted(
        spec=spec,
        heads=None
        if heads is None
        else heads.resolve(spec.shape[spec.heads_axis], spec.axes[spec.heads_axis]),
        selection=selection,
        datatype=selection.dtype or spec.datatype,
    )


def _applies(name: str, dtype: str | None, spec: TensorSpec) -> bool:
    """Whether a parameter means anything for an output: heads and queries of attention, dtype of numbers."""
    if name == "dtype" and dtype != "UINT8":
        return spec.name not in {TOKENS, LENGTHS}
    return spec.is_attention


def _check_applies(default: Selection, specs: Sequence[TensorSpec]) -> None:
    for name in ("heads", "queries", "dtype"):
        if getattr(default, name) is not None and not any(
            _applies(name, default.dtype, spec) for spec in specs
        ):
            raise InvalidRequestError(
                f"parameter {name} of the request does not apply to any requested output"
            )


def _elsewhere(name: str, signature: Signature) -> str:
    """Which of the family's other graphs gives an output."""
    manifest = signature.manifest
    for graph, record in manifest.graphs.items():
        if any(tensor.name == name for tensor in record.outputs):
            return f"; it is an output of {manifest.served_name(graph)}"
    return ""
