"""A server takes part only if it answers as onnxruntime does."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from benchmarks.contenders import Contender, ContenderError, python_of
from benchmarks.encoders import BenchEncoder, export_missing
from benchmarks.graph import encode, open_graph
from polyhead_model import EncoderConfig
from polyhead_proto import SERVICE
from polyhead_proto import messages as pb

ENCODER = BenchEncoder(name="small", config=EncoderConfig(d_model=16, heads=2, layers=1), tokens=4)

Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    export_missing([ENCODER], models)
    return models / ENCODER.name / "1" / "model.onnx"


@contextmanager
def serving(graph: Path, change: Change) -> Iterator[Contender]:
    """A server whose answers are changed before they are sent."""
    session = open_graph(graph, 1)

    def infer(data: bytes, _context: object) -> bytes:
        request = pb.ModelInferRequest.FromString(data)
        assert request.model_name == "small-variant"
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(request.inputs[0].shape)
        output = change(encode(session, x))
        return bytes(pb.ModelInferResponse(raw_output_contents=[output.tobytes()]).SerializeToString())

    server = grpc.server(ThreadPoolExecutor(4))
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Contender(name="it", address=f"127.0.0.1:{port}", process=psutil.Process(), suffix="-variant")
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    "change", [lambda output: output[:, ::-1], lambda output: output[:, 1:], lambda output: output * np.nan]
)
def test_other_numbers_are_wrong(graph: Path, change: Change) -> None:
    with (
        serving(graph, change) as contender,
        pytest.raises(ContenderError, match="it must answer small as onnxruntime does"),
    ):
        contender.check(ENCODER, graph)


def test_a_checkout_is_measured_in_an_environment_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match=r"must have an environment of its own .*, had none"):
        python_of(tmp_path)

    (tmp_path / ".venv").symlink_to(sys.prefix)  # serves what it was made for

    with pytest.raises(ContenderError, match=r"had .*polyhead_server"):
        python_of(tmp_path)
