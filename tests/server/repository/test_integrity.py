"""Files are what the manifest says, and graphs point nowhere else."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.server.graphs import manifest_of

from polyhead_server.errors import RepositoryError
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import read_manifest

Edit = Callable[[Callable[[dict[str, Any]], None]], None]
Record = Callable[[str], None]
Change = Callable[[onnx.ModelProto], object]


def check(folder: Path) -> None:
    verify(folder, read_manifest(folder, family="tiny", version=1))


@pytest.fixture
def rewrite(folder: Path, record: Record) -> Callable[[Change], None]:
    """Changes `model.onnx`, and makes the manifest agree: only its structure can give it away."""

    def change(how: Change) -> None:
        path = folder / "model.onnx"
        model = onnx.load(str(path), load_external_data=False)
        how(model)
        path.write_bytes(model.SerializeToString())
        record("model.onnx")

    return change


def external(model: onnx.ModelProto) -> TensorProto:
    """The first tensor whose data lies outside."""
    return next(one for one in model.graph.initializer if one.data_location == TensorProto.EXTERNAL)


def point(model: onnx.ModelProto, /, **fields: str) -> None:
    """Changes where a tensor's data lies."""
    tensor = external(model)
    entries = {entry.key: entry.value for entry in tensor.external_data} | fields
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def test_what_the_export_writes_is_sound(repository: Path) -> None:
    for family in ("tiny", "tiny-tokens", "tiny-masked"):
        verify(repository / family / "1", manifest_of(repository, family))


# ---- Files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.onnx", "attention.onnx", "weights.bin"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(RepositoryError, match=f"{name} is missing"):
        check(folder)


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])

    with pytest.raises(
        RepositoryError, match=f"{name} must have {len(content)} bytes, has {len(content) - 1}"
    ):
        check(folder)


def test_a_changed_byte_is_noticed(folder: Path) -> None:
    content = bytearray((folder / "weights.bin").read_bytes())
    content[-1] ^= 1
    (folder / "weights.bin").write_bytes(content)

    with pytest.raises(RepositoryError, match=r"weights\.bin does not have the SHA-256"):
        check(folder)


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")

    with pytest.raises(
        RepositoryError, match=r"weights\.bin cannot be read: it must be a regular file, is lrwx"
    ):
        check(folder)


# ---- Graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"not a model", pickle.dumps({"weights": [1.0]}), b"\x08\x0a\x3a", None]
)
def test_what_is_no_model_is_refused_even_with_the_right_hash(
    folder: Path, record: Record, content: bytes | None
) -> None:
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2] if content is None else content)
    record("model.onnx")

    with pytest.raises(RepositoryError, match=r"model\.onnx is not an ONNX model that can be read"):
        check(folder)


def point_twice(model: onnx.ModelProto) -> None:
    external(model).external_data.add(key="location", value="/etc/passwd")


def enlarge(model: onnx.ModelProto) -> None:
    external(model).dims.extend([2**40, 2**40])


def nested(model: onnx.ModelProto) -> None:
    """Hides a tensor with outside data in a constant of an inner graph."""
    tensor = TensorProto(
        name="hidden", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="../../secret")
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "inner", [], [])
    model.graph.node.append(helper.make_node("If", ["b"], ["d"], then_branch=inner, else_branch=inner))


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def custom(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Run", ["x"], ["y"], domain="com.example"))


def compiled(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft"))


def inner_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Run", ["x"], ["y"], domain="com.example")
    model.functions.append(helper.make_function("ai.onnx", "F", ["x"], ["y"], [node], []))


def training(model: onnx.ModelProto) -> None:
    model.training_info.add()


def rename_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "y"


def widen_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 17


def freeze_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def retype_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def drop_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


OTHER_FILES = (
    "../weights.bin",
    "/etc/passwd",
    "a/../weights.bin",
    "./weights.bin",
    "",
    "manifest.json",
    "other",
)
OTHER_PLACES = (
    {"offset": "-1"},
    {"offset": "999999999"},
    {"length": "1"},
    {"length": str(2**60)},
    {"offset": "9" * 30},
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (partial(point, location=file), "must have its data in a file of the version's own folder")
            for file in OTHER_FILES
        ),
        *(
            (partial(point, **place), r"must lie inside weights\.bin \(\d+ bytes\) and have \d+ bytes")
            for place in OTHER_PLACES
        ),
        (partial(point, offset="first"), "offset, length, shape or type that cannot be read"),
        (point_twice, "gives a field of its external data twice"),
        (enlarge, r"must lie inside weights\.bin"),
        (nested, "tensor 'hidden' must have its data in a file of the version's own folder"),
        (sparse, "must not hold training graphs or sparse tensors"),
        (custom, "operators of ai.onnx and com.microsoft only, has 'com.example::Run'"),
        (compiled, "has 'com.microsoft::EPContext'"),
        (inner_function, "has 'com.example::Run'"),
        (training, "must not hold training graphs or sparse tensors"),
        (rename_input, r"must have the manifest's inputs \(x, lengths\), has 'y, lengths'"),
        (widen_input, r"x must be FP32 \[-1, -1, 16\] as in the manifest, .* shape \[-1, -1, 17\]"),
        (freeze_batch, r"x must be FP32 \[-1, -1, 16\] as in the manifest, .* shape \[1, -1, 16\]"),
        (retype_output, "output must be FP32 .* has element type 11"),
        (drop_output, r"must have the manifest's outputs \(output\)"),
    ],
)
def test_a_graph_that_is_unsafe_or_differs_from_the_manifest_is_refused(
    folder: Path, rewrite: Callable[[Change], None], change: Change, message: str
) -> None:
    (folder / "other").write_bytes(bytes(100_000))
    rewrite(change)

    with pytest.raises(RepositoryError, match=message):
        check(folder)
