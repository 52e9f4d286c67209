"""Families of 16 bits: another precision between the same inputs and outputs."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto
from tests.encoders import seeded
from tests.exports import manifest_of

from polyhead_export import ParityError, Precision, export_family
from polyhead_model import EncoderConfig
from polyhead_proto.drift import deviation

SMALL = EncoderConfig(d_model=8, heads=2, layers=2)

EPSILON: dict[Precision, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Half a unit in the last place of 1: what rounding a number takes away at most, relative to it."""

SIXTEEN_BITS: list[tuple[str, Precision]] = [("tiny", "fp16"), ("tiny", "bf16"), ("tiny-tokens", "bf16")]


@pytest.fixture(scope="module")
def narrow(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of families like those of `repository`, called tiny-fp16 and so on."""
    folder = tmp_path_factory.mktemp("narrow")
    for name, precision in SIXTEEN_BITS:
        config = EncoderConfig(**manifest_of(repository / name / "1")["encoder"])
        export_family(seeded(config, 31), f"{name}-{precision}", folder, precision=precision)
    return folder


@pytest.mark.parametrize(("name", "precision"), SIXTEEN_BITS)
def test_only_the_inside_of_a_family_changes_and_all_its_weights(
    repository: Path, narrow: Path, name: str, precision: Precision
) -> None:
    folder, wide = narrow / f"{name}-{precision}" / "1", repository / name / "1"
    said, expected = manifest_of(folder), manifest_of(wide)

    assert (said["precision"], expected["precision"]) == (precision, "fp32")
    assert said["encoder"] == expected["encoder"]
    assert said["sizes"] == expected["sizes"]
    assert set(said["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert expected["parity"]["drift"] is None
    for graph, about in said["graphs"].items():
        assert about["inputs"] == expected["graphs"][graph]["inputs"]
        weights = {each["name"] for each in about["outputs"] if each.get("role") == "attention"}
        assert len(weights) == (said["sizes"]["L"] if graph == "attention" else 0)
        assert about["outputs"] == [
            each | {"datatype": "FP16"} if each["name"] in weights else each
            for each in expected["graphs"][graph]["outputs"]
        ]
        model, its_model = (
            onnx.load(each / about["file"], load_external_data=False) for each in (folder, wide)
        )
        onnx.checker.check_model(folder / about["file"])
        for value in its_model.graph.output:
            if value.name in weights:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        for side in ("input", "output"):
            assert [(value.name, value.type) for value in getattr(model.graph, side)] == [
                (value.name, value.type) for value in getattr(its_model.graph, side)
            ]
        matrices = {tensor.data_type for tensor in model.graph.initializer if len(tensor.dims) == 2}
        assert matrices == {TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16}


@pytest.mark.parametrize("precision", EPSILON)
def test_drift_is_that_of_pytorch_in_16_bits(narrow: Path, precision: Precision) -> None:
    """Another implementation of 16 bits, which rounds elsewhere, drifts about as far."""
    manifest = manifest_of(narrow / f"tiny-{precision}" / "1")
    ours = manifest["parity"]["drift"]["graphs"]["fast"]["output"]
    encoder = seeded(EncoderConfig(**manifest["encoder"]), 31)
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    x = torch.randn(9, 40, 16, generator=torch.Generator().manual_seed(32))
    with torch.inference_mode():
        expected = encoder(x).output
        theirs = deviation(encoder.to(dtype)(x.to(dtype)).output.float().numpy(), expected.numpy())

    assert theirs / 4 <= ours <= theirs * 4
    assert EPSILON[precision] < ours < manifest["parity"]["drift"]["limit"]
    parity = manifest["parity"]
    assert all(each["largest"] <= each["limit"] < 1e-3 for each in parity["neighbours"]["fast"].values())
    for each in parity["graphs"]["fast"].values():
        assert all(each["graph"][error] <= each["limit"][error] for error in ("rms", "largest"))


def test_numbers_beyond_the_range_of_fp16_are_refused(tmp_path: Path) -> None:
    encoder = seeded(SMALL, 31)
    with torch.no_grad():
        encoder.get_parameter("layers.0.w_o.weight").mul_(1e6)

    with pytest.raises(ParityError, match=r"'output' in fp16 must be within 0\.05 of fp32, is off by inf"):
        export_family(encoder, "loud", tmp_path, precision="fp16")

    assert list(tmp_path.iterdir()) == []
