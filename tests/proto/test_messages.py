"""The committed descriptors, types and table are those of `inference.proto`."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

import polyhead_proto
from polyhead_proto import FILE, POOL, RPCS, SERVICE, Rpc
from polyhead_proto import messages as pb

PROTO = Path(polyhead_proto.__file__).parent.parent
TRITON = Path(os.environ.get("POLYHEAD_TRITON_PYTHON", PROTO.parent / ".venv-triton" / "bin" / "python"))


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


# Prints what of our messages is not Triton's, by the descriptors that its client has.
COMPARE = """
from polyhead_proto import FILE
from tritonclient.grpc import model_config_pb2, service_pb2

parts = (service_pb2, model_config_pb2)
theirs = {name: each for part in parts for name, each in part.DESCRIPTOR.message_types_by_name.items()}
for name, message in FILE.message_types_by_name.items():
    for field in message.fields:
        other = theirs[name].fields_by_name.get(field.name)
        if other is None or (other.number, other.type) != (field.number, field.type):
            print(name, field.name, field.number)
"""


@pytest.mark.slow
@pytest.mark.skipif(not TRITON.exists(), reason=f"no environment with tritonclient at {TRITON}")
def test_fields_are_tritons() -> None:
    done = subprocess.run([TRITON, "-c", COMPARE], capture_output=True, text=True, check=True)

    # KServe's protocol has it, where metadata says more about a model.
    assert done.stdout == "ModelMetadataResponse properties 6\n"
