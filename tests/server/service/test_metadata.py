"""What the server says about itself and its models."""

from typing import Any

import pytest

from polyhead_proto import messages as pb


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
        ("lengths", "INT32", [-1]),
        ("text", "BYTES", [-1]),
    ]
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.outputs] == [
        ("output", "FP32", [-1, -1, 16]),
        ("pooled", "FP32", [-1, 16]),
        ("attention.0", "FP32", [-1, 2, -1, -1]),
        ("attention.1", "FP32", [-1, 2, -1, -1]),
        ("tokens", "BYTES", [-1, -1]),
        ("lengths", "INT32", [-1]),
    ]


@pytest.mark.parametrize("graph", ["fast", "attention"])
def test_a_model_s_properties_say_all_that_a_client_needs(server: Any, graph: str) -> None:
    name = "tiny-tokens" if graph == "fast" else "tiny-tokens.attention"
    properties = dict(server.call("ModelMetadata", pb.ModelMetadataRequest(name=name)).properties)

    expected = {
        "family": "tiny-tokens",
        "graph": graph,
        "fast_model": "tiny-tokens",
        "attention_model": "tiny-tokens.attention",
        "layers": "2",
        "heads": "2",
        "d_model": "16",
        "head_width": "8",
        "causal": "false",
        "pooling": "mean",
        "precision": "fp32",
        "max_tokens": "32",
        "text_max_tokens": "16",
        "max_request_bytes": str(64 * 2**20),
        "max_reply_bytes": str(64 * 2**20),
        "max_batch_size": "256",
        "execution_provider": "CPUExecutionProvider",
        "format": "1",
    }
    assert expected.items() <= properties.items()
    assert int(properties["parameters"]) > 0


def test_what_a_model_has_not_is_empty(server: Any) -> None:
    properties = server.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny")).properties

    assert properties["pooling"] == properties["max_tokens"] == properties["text_max_tokens"] == ""
    assert properties["text_prompt"] == ""


def test_limits_are_published_as_set(serve: Any) -> None:
    properties = (
        serve(max_reply_bytes=12345, max_batch_size=9)
        .call("ModelMetadata", pb.ModelMetadataRequest(name="tiny"))
        .properties
    )

    assert (properties["max_reply_bytes"], properties["max_batch_size"]) == ("12345", "9")


def test_the_configuration_agrees_with_the_metadata(server: Any) -> None:
    for name in ("tiny", "tiny-tokens.attention", "tiny-masked"):
        metadata = server.call("ModelMetadata", pb.ModelMetadataRequest(name=name))
        config = server.call("ModelConfig", pb.ModelConfigRequest(name=name)).config

        assert (config.name, config.max_batch_size) == (name, 256)
        assert [one.name for one in config.input] == [one.name for one in metadata.inputs]
        assert [list(one.dims) for one in config.input] == [list(one.shape)[1:] for one in metadata.inputs]
        assert [one.name for one in config.output] == [one.name for one in metadata.outputs]
        assert [list(one.dims) for one in config.output] == [list(one.shape)[1:] for one in metadata.outputs]
        assert pb.TYPE_INVALID not in {one.data_type for one in (*config.input, *config.output)}


def test_optional_inputs_are_marked(server: Any) -> None:
    config = server.call("ModelConfig", pb.ModelConfigRequest(name="tiny")).config

    assert {one.name: one.optional for one in config.input} == {"x": False, "lengths": True}


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
