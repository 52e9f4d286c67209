"""The committed descriptors, types and table are those of `inference.proto`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

import polyhead_proto
from polyhead_proto import FILE, POOL, RPCS, SERVICE, Rpc
from polyhead_proto import messages as pb

PROTO = Path(polyhead_proto.__file__).parent.parent


def test_committed_files_are_what_the_proto_gives() -> None:
    check = subprocess.run(
        [sys.executable, PROTO / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_generator_notices_a_change(tmp_path: Path) -> None:
    for path in PROTO.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            (tmp_path / path.relative_to(PROTO)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(PROTO)).write_bytes(path.read_bytes())
    contract = tmp_path / "inference.proto"
    contract.write_text(contract.read_text().replace("bool live = 1;", "bool alive = 1;"))

    check = subprocess.run(
        [sys.executable, tmp_path / "generate.py", "--check"], capture_output=True, text=True, check=False
    )

    assert check.returncode != 0
    assert "inference.binpb" in check.stderr
    assert "run `make proto`" in check.stderr


def test_types_name_every_message() -> None:
    stub = ast.parse((PROTO / "polyhead_proto" / "messages.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, ast.ClassDef)}

    assert declared == {*FILE.message_types_by_name, *FILE.enum_types_by_name}
    for name in FILE.message_types_by_name:
        assert hasattr(pb, name)


def test_nothing_enters_the_default_pool() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")
    assert POOL.FindMessageTypeByName("inference.ModelInferRequest") is pb.ModelInferRequest.DESCRIPTOR


def test_table_of_rpcs() -> None:
    assert SERVICE == "inference.GRPCInferenceService"
    assert set(RPCS) == {
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelInfer",
        "ModelStreamInfer",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
    }
    assert RPCS["ModelInfer"] == Rpc(
        name="ModelInfer",
        path="/inference.GRPCInferenceService/ModelInfer",
        request=pb.ModelInferRequest,
        response=pb.ModelInferResponse,
    )


# The Open Inference Protocol and Triton's extensions, as their users' messages are numbered.
FIELD_NUMBERS = {
    "ModelInferRequest": {
        "model_name": 1,
        "model_version": 2,
        "id": 3,
        "parameters": 4,
        "inputs": 5,
        "outputs": 6,
        "raw_input_contents": 7,
    },
    "ModelInferResponse": {
        "model_name": 1,
        "model_version": 2,
        "id": 3,
        "parameters": 4,
        "outputs": 5,
        "raw_output_contents": 6,
    },
    "ModelMetadataResponse": {
        "name": 1,
        "versions": 2,
        "platform": 3,
        "inputs": 4,
        "outputs": 5,
        "properties": 6,
    },
    "InferParameter": {
        "bool_param": 1,
        "int64_param": 2,
        "string_param": 3,
        "double_param": 4,
        "uint64_param": 5,
    },
    "RepositoryModelLoadRequest": {"repository_name": 1, "model_name": 2, "parameters": 3},
    "RepositoryModelUnloadRequest": {"repository_name": 1, "model_name": 2, "parameters": 3},
    "ModelRepositoryParameter": {"bool_param": 1, "int64_param": 2, "string_param": 3, "bytes_param": 4},
    "ModelStreamInferResponse": {"error_message": 1, "infer_response": 2},
    "ModelConfig": {
        "name": 1,
        "platform": 2,
        "max_batch_size": 4,
        "input": 5,
        "output": 6,
        "instance_group": 7,
        "default_model_filename": 8,
        "dynamic_batching": 11,
        "parameters": 14,
        "backend": 17,
    },
    "ModelDynamicBatching": {
        "preferred_batch_size": 1,
        "max_queue_delay_microseconds": 2,
        "preserve_ordering": 3,
        "priority_levels": 4,
        "default_priority_level": 5,
        "default_queue_policy": 6,
        "priority_queue_policy": 7,
    },
    "ModelQueuePolicy": {
        "timeout_action": 1,
        "default_timeout_microseconds": 2,
        "allow_timeout_override": 3,
        "max_queue_size": 4,
    },
    "ModelStatistics": {
        "name": 1,
        "version": 2,
        "last_inference": 3,
        "inference_count": 4,
        "execution_count": 5,
        "inference_stats": 6,
        "batch_stats": 7,
    },
}


@pytest.mark.parametrize("message", FIELD_NUMBERS)
def test_field_numbers_are_the_protocols(message: str) -> None:
    fields = FILE.message_types_by_name[message].fields

    assert {field.name: field.number for field in fields} == FIELD_NUMBERS[message]
