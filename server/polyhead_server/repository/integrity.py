"""Check that the files of a version are what its manifest says, and safe to hand to onnxruntime.

An ONNX file may name other files for its weights, and every loader has had its path traversals: `..`, then
absolute paths, then symbolic links, then hard links. So only regular files of the version's own folder are
opened, which the manifest lists with their size and SHA-256. A server does so in a copy of its own
(`copies`), where no file has another name.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto

from polyhead_proto.datatypes import DTYPES
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import RepositoryError, quoted
from polyhead_server.repository.files import open_regular
from polyhead_server.repository.manifest import FileRecord, Graph, Manifest

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
# Holds a compiled graph, or the path of one, for a device's own compiler.
_FORBIDDEN = ("com.microsoft", "EPContext")


def verify(folder: Path, manifest: Manifest) -> None:
    """Check every file of a version and the structure of its graphs. Loads no weights.

    Raises:
        RepositoryError: Says which file is wrong, and how.
    """
    for name, record in manifest.files.items():
        check_file(folder / name, record)
    for graph in manifest.graphs.values():
        _check_graph(folder / graph.file, graph, manifest)


@contextmanager
def open_listed(path: Path, record: FileRecord) -> Iterator[BufferedReader]:
    """Open a file of a version for reading, for the duration of a `with` block.

    Raises:
        RepositoryError: It is missing, no regular file, of another size than the manifest says, or cannot
            be read.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.bytes:
                raise RepositoryError(f"{path.name} must have {record.bytes} bytes, has {size}")
            yield file
    except FileNotFoundError as error:
        raise RepositoryError(f"{path.name} is missing") from error
    except OSError as error:
        raise RepositoryError(f"{path.name} cannot be read: {error.strerror}") from error


def check_file(path: Path, record: FileRecord) -> None:
    """Check that a file is the one that a manifest lists.

    Raises:
        RepositoryError: It is missing, cannot be read, or has another size or SHA-256.
    """
    with open_listed(path, record) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != record.sha256:
        raise RepositoryError(
            f"{path.name} does not have the SHA-256 that the manifest gives: it has changed"
        )


def _check_graph(path: Path, graph: Graph, manifest: Manifest) -> None:
    file = graph.file
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise RepositoryError(f"{file} is not an ONNX model that can be read") from error
    if not model.graph.node:
        raise RepositoryError(f"{file} is not an ONNX model that can be read: its graph is empty")
    for part in _parts(model):
        match part:
            case onnx.TrainingInfoProto() | onnx.SparseTensorProto():
                raise RepositoryError(f"{file} must not hold training graphs or sparse tensors")
            case onnx.TensorProto():
                _check_tensor(part, file, manifest)
            case onnx.NodeProto():
                if part.domain not in _DOMAINS or (part.domain, part.op_type) == _FORBIDDEN:
                    raise RepositoryError(
                        f"{file} may hold operators of ai.onnx and com.microsoft only, "
                        f"has {quoted(f'{part.domain}::{part.op_type}')}"
                    )
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialised]
    _check_signature(file, "inputs", inputs, graph.inputs, manifest.sizes)
    _check_signature(file, "outputs", model.graph.output, graph.outputs, manifest.sizes)


def _parts(model: onnx.ModelProto) -> Iterator[Message]:
    """Yield every message in a model, wherever it is, but for those in tensors."""
    pending: list[Message] = [model]
    while pending:
        yield (part := pending.pop())
        if not isinstance(part, TensorProto):
            for field, value in part.ListFields():
                if field.message_type is not None:
                    pending += value if field.is_repeated else [value]


def _check_tensor(tensor: TensorProto, file: str, manifest: Manifest) -> None:
    """Check where a tensor's values lie, if they lie outside the ONNX file."""
    what = f"{file}: tensor {quoted(tensor.name)}"
    if tensor.data_location != TensorProto.EXTERNAL:
        if tensor.external_data:
            raise RepositoryError(f"{what} names external data but says it has none")
        return
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if len(fields) != len(tensor.external_data):
        raise RepositoryError(f"{what} gives a field of its external data twice")
    location = fields.get("location", "")
    if location not in manifest.files or location == "manifest.json":
        raise RepositoryError(
            f"{what} must have its data in a file of the version's own folder that the manifest lists, "
            f"names {quoted(location)}"
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
    """Return the bytes of one element; a half where two share a byte."""
    if data_type in {TensorProto.INT4, TensorProto.UINT4}:
        return 0.5
    if data_type in {TensorProto.STRING, TensorProto.UNDEFINED}:
        raise ValueError("no fixed size")
    return onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize


def _check_signature(
    file: str,
    what: str,
    values: Sequence[onnx.ValueInfoProto],
    tensors: Sequence[TensorSpec],
    sizes: Mapping[str, int],
) -> None:
    """Compare a graph's `inputs` or `outputs` with the manifest's. Shapes of outputs may be open."""
    is_open = what == "outputs"
    types = {value.name: value.type.tensor_type for value in values}
    if sorted(value.name for value in values) != sorted(tensor.name for tensor in tensors):
        raise RepositoryError(
            f"{file} must have the manifest's {what} ({', '.join(tensor.name for tensor in tensors)}), "
            f"has {quoted(', '.join(types))}"
        )
    for tensor in tensors:
        is_ = types[tensor.name]
        shape = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in is_.shape.dim]
        expected = [sizes.get(letter, -1) for letter in tensor.axes]
        agree = len(shape) == len(expected) and all(
            size == must or (is_open and size == -1) for size, must in zip(shape, expected, strict=True)
        )
        element = onnx.helper.np_dtype_to_tensor_dtype(DTYPES[tensor.datatype])
        if is_.elem_type != element or not agree:
            raise RepositoryError(
                f"{file}: {tensor.name} must be {tensor.datatype} {expected} as in the manifest, "
                f"has element type {is_.elem_type} and shape {shape}"
            )
