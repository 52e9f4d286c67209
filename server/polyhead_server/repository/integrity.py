"""Whether the files of a version are what its manifest says, and safe to hand to onnxruntime.

An ONNX file may point at other files for its weights, and every loader of them has had its path traversals:
`..`, then absolute paths, then symbolic links, then hard links. So nothing is opened here that is not a
regular file of the version's own folder, listed in the manifest with its size and SHA-256.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto

from polyhead_proto.datatypes import DTYPES
from polyhead_server.errors import RepositoryError, quoted
from polyhead_server.repository.files import open_regular
from polyhead_server.repository.manifest import FileRecord, Graph, Manifest, Tensor

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
# Holds a compiled graph, or the path of one, for a device's own compiler.
_FORBIDDEN = frozenset({("com.microsoft", "EPContext")})


def verify(folder: Path, manifest: Manifest) -> None:
    """Checks every file of a version and the structure of its graphs. Loads no weights.

    Args:
        folder: The version's folder.
        manifest: Its manifest.

    Raises:
        RepositoryError: Says which file is wrong, and how.
    """
    for name, record in manifest.files.items():
        _check_file(folder / name, record)
    for graph in manifest.graphs.values():
        _check_graph(folder, graph, manifest)


def open_listed(path: Path, record: FileRecord) -> BufferedReader:
    """Open a file of a version for reading.

    Raises:
        RepositoryError: It is missing, no regular file, or of another size than the manifest says.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise RepositoryError(f"{path.name} is missing") from error
    except OSError as error:
        raise RepositoryError(f"{path.name} cannot be read: {error.strerror}") from error
    size = os.fstat(file.fileno()).st_size
    if size != record.bytes:
        file.close()
        raise RepositoryError(f"{path.name} must have {record.bytes} bytes, has {size}")
    return file


def _check_file(path: Path, record: FileRecord) -> None:
    try:
        with open_listed(path, record) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RepositoryError(f"{path.name} cannot be read: {error.strerror}") from error
    if digest != record.sha256:
        raise RepositoryError(
            f"{path.name} does not have the SHA-256 that the manifest gives: it has changed"
        )


def _check_graph(folder: Path, graph: Graph, manifest: Manifest) -> None:
    try:
        model = onnx.load(str(folder / graph.file), load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise RepositoryError(f"{graph.file} is not an ONNX model that can be read") from error
    if not model.graph.node:
        raise RepositoryError(f"{graph.file} is not an ONNX model that can be read: its graph is empty")
    if model.training_info:
        raise RepositoryError(f"{graph.file} must not hold training graphs")
    for node in _nodes([model.graph, *model.functions]):
        if node.domain not in _DOMAINS or (node.domain, node.op_type) in _FORBIDDEN:
            raise RepositoryError(
                f"{graph.file} may hold operators of ai.onnx and com.microsoft only, "
                f"has {quoted(f'{node.domain}::{node.op_type}')}"
            )
    for tensor in _tensors([model.graph, *model.functions], graph.file):
        _check_tensor(tensor, graph.file, folder, manifest)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in held]
    sizes = manifest.sizes
    _check_signature(graph.file, "inputs", inputs, graph.inputs, sizes, strict=True)
    _check_signature(graph.file, "outputs", list(model.graph.output), graph.outputs, sizes, strict=False)


Nodes = onnx.GraphProto | onnx.FunctionProto


def _nodes(graphs: list[Nodes]) -> Iterator[onnx.NodeProto]:
    for graph in graphs:
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                yield from _nodes([*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs])


def _tensors(graphs: list[Nodes], file: str) -> Iterator[TensorProto]:
    """Every tensor that a model holds: initialisers and attributes, inner graphs included."""
    for graph in graphs:
        if isinstance(graph, onnx.GraphProto):
            if graph.sparse_initializer:
                raise RepositoryError(f"{file} must not hold sparse initialisers")
            yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from _attribute_tensors(attribute, file)
                yield from _tensors(
                    [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs], file
                )


def _attribute_tensors(attribute: AttributeProto, file: str) -> Iterator[TensorProto]:
    if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
        raise RepositoryError(f"{file} must not hold sparse tensors")
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _check_tensor(tensor: TensorProto, file: str, folder: Path, manifest: Manifest) -> None:
    """Checks where a tensor's numbers lie, if they lie outside the ONNX file."""
    if tensor.data_location != TensorProto.EXTERNAL:
        if tensor.external_data:
            raise RepositoryError(
                f"{file}: tensor {quoted(tensor.name)} names external data but says it has none"
            )
        return
    what = f"{file}: tensor {quoted(tensor.name)}"
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if len(fields) != len(tensor.external_data):
        raise RepositoryError(f"{what} gives a field of its external data twice")
    location = fields.get("location", "")
    if location not in manifest.files or location == "manifest.json":
        raise RepositoryError(
            f"{what} must have its data in a file of the version's own folder that the manifest lists, "
            f"names {quoted(location)}"
        )
    # A second name of the file may lie where others write: they could change it after it was checked here.
    if (folder / location).lstat().st_nlink > 1:
        raise RepositoryError(
            f"{location} must not be hard-linked to another file: put a copy of its own there"
        )
    try:
        offset, length = int(fields.get("offset", "0")), int(fields.get("length", "-1"))
        if any(dimension < 0 for dimension in tensor.dims):
            raise ValueError("negative dimension")
        needed = math.ceil(math.prod(tensor.dims) * _item_bytes(tensor.data_type))
    except (ValueError, KeyError, TypeError) as error:
        raise RepositoryError(f"{what} has an offset, length, shape or type that cannot be read") from error
    size = manifest.files[location].bytes
    if offset < 0 or needed < 0 or offset + needed > size or length not in {-1, needed}:
        raise RepositoryError(
            f"{what} must lie inside {location} ({size} bytes) and have {needed} bytes, "
            f"has offset {offset} and length {length}"
        )


def _item_bytes(data_type: int) -> float:
    """Bytes of one element; a half where two share a byte."""
    if data_type in {TensorProto.INT4, TensorProto.UINT4}:
        return 0.5
    if data_type in {TensorProto.STRING, TensorProto.UNDEFINED}:
        raise ValueError("no fixed size")
    return onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize


def _check_signature(
    file: str,
    what: str,
    values: list[onnx.ValueInfoProto],
    tensors: list[Tensor],
    sizes: Mapping[str, int],
    *,
    strict: bool,
) -> None:
    """Compares a graph's inputs or outputs with the manifest's. A shape may be open where not strict."""
    names = [value.name for value in values]
    if sorted(names) != sorted(tensor.name for tensor in tensors):
        raise RepositoryError(
            f"{file} must have the manifest's {what} ({', '.join(tensor.name for tensor in tensors)}), "
            f"has {quoted(', '.join(names))}"
        )
    by_name = {value.name: value.type.tensor_type for value in values}
    for tensor in tensors:
        kind = by_name[tensor.name]
        shape = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
        expected = [sizes.get(letter, -1) for letter in tensor.axes]
        agree = len(shape) == len(expected) and all(
            is_ == must or (not strict and is_ == -1) for is_, must in zip(shape, expected, strict=True)
        )
        element = onnx.helper.np_dtype_to_tensor_dtype(DTYPES[tensor.datatype])
        if kind.elem_type != element or not agree:
            raise RepositoryError(
                f"{file}: {tensor.name} must be {tensor.datatype} {expected} as in the manifest, "
                f"has element type {kind.elem_type} and shape {shape}"
            )
