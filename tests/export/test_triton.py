"""`config.pbtxt` is what Triton reads it as."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from polyhead_proto import messages as pb


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        (
            "tiny-tokens",
            [
                ("input_ids", pb.TYPE_INT64, [-1]),
                ("token_type_ids", pb.TYPE_INT64, [-1]),
                ("lengths", pb.TYPE_INT32, [1]),
            ],
            [("output", pb.TYPE_FP32, [-1, 16]), ("pooled", pb.TYPE_FP32, [16])],
        ),
        (
            "tiny-masked",
            [
                ("x", pb.TYPE_FP32, [-1, 16]),
                ("lengths", pb.TYPE_INT32, [1]),
                ("mask", pb.TYPE_BOOL, [-1, -1]),
            ],
            [("output", pb.TYPE_FP32, [-1, 16])],
        ),
    ],
)
def test_config_is_a_model_config(
    repository: Path,
    name: str,
    inputs: list[tuple[str, int, list[int]]],
    outputs: list[tuple[str, int, list[int]]],
) -> None:
    config = text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())

    assert (config.name, config.backend) == (name, "onnxruntime")
    assert (repository / name / "1" / config.default_model_filename).exists()
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == inputs
    assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == outputs
    # A [B] tensor is [B, 1] to Triton, which takes the 1 away again.
    assert [each.name for each in config.input if each.HasField("reshape")] == ["lengths"]
