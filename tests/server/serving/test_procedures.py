"""What the server says about itself and its models."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from tests.conftest import PROMPTS
from tests.server import h2
from tests.server.conftest import Gate
from tests.waiting import until

from polyhead_client import Client
from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.names import Property

TEXTS = {"text", "text_pair"}

DATATYPES = {
    pb.TYPE_BOOL: "BOOL",
    pb.TYPE_INT32: "INT32",
    pb.TYPE_INT64: "INT64",
    pb.TYPE_FP32: "FP32",
    pb.TYPE_STRING: "BYTES",
}


def test_the_server_names_itself_and_what_it_extends(server: Any) -> None:
    metadata = server.call("ServerMetadata")

    assert metadata.name == "polyhead"
    assert "statistics" in metadata.extensions
    assert server.call("ServerLive").live
    assert server.call("ServerReady").ready


def test_a_model_s_tensors_are_listed(server: Any) -> None:
    metadata = server.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny-tokens.attention"))

    assert (metadata.name, list(metadata.versions)) == ("tiny-tokens.attention", ["1"])
    assert metadata.platform == "onnxruntime_onnx"
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [
        ("input_ids", "INT64", [-1, -1]),
        ("token_type_ids", "INT64", [-1, -1]),
        ("lengths", "INT32", [-1, 1]),
        ("text", "BYTES", [-1, 1]),
        ("text_pair", "BYTES", [-1, 1]),
    ]
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.outputs] == [
        ("output", "FP32", [-1, -1, 16]),
        ("pooled", "FP32", [-1, 16]),
        ("attention.0", "FP32", [-1, 2, -1, -1]),
        ("attention.1", "FP32", [-1, 2, -1, -1]),
        ("value_norms", "FP32", [-1, 2, 2, -1]),
        ("tokens", "BYTES", [-1, -1]),
        ("spans", "INT32", [-1, -1, 3]),
        ("lengths", "INT32", [-1]),
    ]


@pytest.mark.parametrize("graph", ["fast", "attention"])
def test_a_model_s_properties_say_all_that_a_client_needs(server: Any, graph: str) -> None:
    name = "tiny-tokens" if graph == "fast" else "tiny-tokens.attention"
    properties = dict(server.call("ModelMetadata", pb.ModelMetadataRequest(name=name)).properties)

    expected = {
        "family": "tiny-tokens",
        "graph": graph,
        "models": "tiny-tokens,tiny-tokens.attention",
        "layers": "2",
        "heads": "2",
        "kv_heads": "",
        "d_model": "16",
        "head_width": "8",
        "causal": "false",
        "pooling": "mean",
        "precision": "fp32",
        "drift": "",
        "compute_precision": "fp32",
        "compute_drift": "",
        "same_bits": "output,pooled"
        + (",attention.0,attention.1,value_norms" if graph == "attention" else ""),
        "activations": "N,D",
        "max_tokens": "32",
        "text_max_tokens": "16",
        "max_request_bytes": str(64 * 2**20),
        "max_reply_bytes": str(64 * 2**20),
        "max_batch_size": "256",
        "execution_provider": "CPUExecutionProvider",
        "format": "2",
    }
    assert properties.keys() == set(Property)
    assert expected.items() <= properties.items()
    assert int(properties["parameters"]) > 0
    assert json.loads(properties["text_prompts"]) == PROMPTS
    tensors = json.loads(properties["tensors"])
    assert tensors["input_ids"] == {"axes": ["B", "T"], "role": "tokens", "below": 32}
    assert tensors["text"] == {"axes": ["B"]}
    assert tensors["pooled"] == {"axes": ["B", "D"], "role": "pooled", "unit": True}
    weights = {"axes": ["B", "H", "T", "T"], "role": "attention", "layer": 1}
    assert tensors.get("attention.1") == (weights if graph == "attention" else None)


def test_the_drift_of_a_family_is_what_its_export_measured(
    repository: Path, tmp_path: Path, serve: Any
) -> None:
    folder = shutil.copytree(repository / "tiny", tmp_path / "tiny") / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    cosines = {"output": {"least": 0.98, "mean": 0.99}}
    manifest["parity"]["drift"] = {
        "emulated": False,
        "inputs": "2 sentences",
        "cosines": {"fast": cosines},
        "graphs": {"fast": {"output": 0.5}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with Client(serve(models=tmp_path).address) as client:
        drift = client.model("tiny").drift

    assert drift == {"inputs": "2 sentences", "cosines": cosines, "deviations": {"output": 0.5}}


def test_what_a_model_has_not_is_empty(server: Any) -> None:
    properties = server.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny")).properties

    assert properties["pooling"] == properties["max_tokens"] == properties["text_max_tokens"] == ""
    assert properties["text_prompt"] == properties["text_prompts"] == ""


def test_limits_are_published_as_set(serve: Any) -> None:
    properties = (
        serve(max_reply_bytes=12345, max_batch_size=9)
        .call("ModelMetadata", pb.ModelMetadataRequest(name="tiny"))
        .properties
    )

    assert (properties["max_reply_bytes"], properties["max_batch_size"]) == ("12345", "9")


MODELS = ["tiny", "tiny.attention", "tiny-tokens", "tiny-tokens.attention", "tiny-masked"]


@pytest.mark.parametrize("name", MODELS)
def test_every_input_has_a_dimension_beside_the_batch(server: Any, name: str) -> None:
    """Triton's clients cannot say the shape of one that has none; it takes the 1 away again."""
    config = server.call("ModelConfig", pb.ModelConfigRequest(name=name)).config
    reshaped = [one for one in config.input if one.HasField("reshape")]

    assert all(one.dims for one in config.input)
    assert {one.name for one in reshaped} == {"lengths", *TEXTS} & {one.name for one in config.input}
    assert all(list(one.dims) == [1] and not one.reshape.shape for one in reshaped)


@pytest.mark.parametrize("name", ["tiny", "tiny-tokens", "tiny-masked"])
def test_both_agree_with_the_exported_configuration(server: Any, repository: Path, name: str) -> None:
    """What the server adds to the graph apart: that inputs may be left out, text, and outputs of its own."""
    exported = text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())
    config = server.call("ModelConfig", pb.ModelConfigRequest(name=name)).config
    metadata = server.call("ModelMetadata", pb.ModelMetadataRequest(name=name))

    for one in config.input:
        one.optional = False
    assert list(exported.input) == [one for one in config.input if one.name not in TEXTS]
    added = {"tokens", "spans", "lengths"}
    assert list(exported.output) == [one for one in config.output if one.name not in added]
    for field in ("name", "backend", "max_batch_size", "default_model_filename"):
        assert getattr(exported, field) == getattr(config, field)
    for tensors, described in ((exported.input, metadata.inputs), (exported.output, metadata.outputs)):
        shapes = {one.name: (one.datatype, list(one.shape)) for one in described}
        for tensor in tensors:
            assert shapes[tensor.name] == (DATATYPES[tensor.data_type], [-1, *tensor.dims])


def test_the_configuration_says_how_requests_are_batched(serve: Any) -> None:
    server = serve(max_wait_seconds=2.5)
    config = server.call("ModelConfig", pb.ModelConfigRequest(name="tiny")).config

    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    batching = config.dynamic_batching
    assert batching.max_queue_delay_microseconds == 0
    assert (batching.priority_levels, batching.default_priority_level) == (5, 3)
    policy = batching.default_queue_policy
    assert (policy.timeout_action, policy.default_timeout_microseconds) == (policy.REJECT, 2_500_000)
    assert (policy.allow_timeout_override, policy.max_queue_size) == (True, 0)


def test_the_index_lists_every_model(server: Any) -> None:
    models = server.call("RepositoryIndex").models

    assert [(one.name, one.version, one.state, one.reason) for one in models] == [
        (name, "1", "READY", "")
        for name in (
            "tiny",
            "tiny-masked",
            "tiny-masked.attention",
            "tiny-tokens",
            "tiny-tokens.attention",
            "tiny.attention",
        )
    ]


# ---- Statistics, as perf_analyzer reads them ---------------------------------------------------


def statistics(server: Any, name: str = "tiny") -> Any:
    (one,) = server.call("ModelStatistics", pb.ModelStatisticsRequest(name=name)).model_stats
    return one


def test_answers_failures_and_batches_are_counted(serve: Any) -> None:
    server = serve()
    for batch in (1, 3, 3):
        server.infer("tiny", {"x": np.zeros((batch, 2, 16), np.float32)})
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            server.infer("tiny", {"y": np.zeros((1, 2, 16), np.float32)})

    one = statistics(server)

    assert (one.name, one.version) == ("tiny", "1")
    assert (one.inference_count, one.execution_count) == (7, 3)
    assert one.last_inference > 1_700_000_000_000
    counters = one.inference_stats
    assert (counters.success.count, counters.fail.count) == (3, 2)
    assert counters.fail.ns > 0
    for counter in (counters.queue, counters.compute_input, counters.compute_infer, counters.compute_output):
        assert counter.count == 3
        assert counter.ns > 0
    assert counters.success.ns >= counters.compute_infer.ns + counters.queue.ns
    assert [(batch.batch_size, batch.compute_infer.count) for batch in one.batch_stats] == [(1, 1), (3, 2)]
    assert all(batch.compute_input.ns > 0 and batch.compute_output.ns > 0 for batch in one.batch_stats)


def test_a_deadline_that_passes_is_no_caller_who_left(serve: Any, gate: Gate) -> None:
    server = serve()
    request = server.request("tiny.attention", {"x": np.zeros((1, 2, 16), np.float32)}, outputs=["output"])
    data = h2.message(request.SerializeToString())
    late, milliseconds = 0.0, 300
    with gate.closed():
        while late < 4:  # one may pass before the server has read the request
            # gRPC's own client leaves at the deadline, which a stalled server takes for an earlier one.
            head = h2.call(server.address, RPCS["ModelInfer"].path, 1, grpc_timeout=f"{milliseconds}m")
            with closing(h2.connect(server.address)) as connection:
                connection.sendall(head + data)
                assert any(kind == h2.HEADERS for kind, _, _ in h2.frames(connection))
                until(lambda: not server.runtime.lifecycle.accepted)
            milliseconds += 30
            late = server.counted.codes("tiny.attention").get("DEADLINE_EXCEEDED", 0)

    assert set(server.counted.codes("tiny.attention")) == {"DEADLINE_EXCEEDED"}


def test_without_a_name_every_model_is_listed(server: Any) -> None:
    models = server.call("ModelStatistics").model_stats

    assert len(models) == 6
    assert all(int(one.version) == 1 for one in models)
