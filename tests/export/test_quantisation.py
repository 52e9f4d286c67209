"""Families in int8: exact products, a scale for each token, and refusal where 8 bits are not enough."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from tests.encoders import BERT, seeded
from tests.exports import manifest_of

from polyhead_export import ParityError, export_family
from polyhead_export.quantisation import LARGE_TABLE, quantise_columns, quantise_rows
from polyhead_model import EncoderConfig, TokenVectors
from polyhead_model.task_heads import Classifier, Dense

CONFIGS = {
    # Separate projections, GELU, token ids, a table that is large enough; everything is served.
    "tokens": replace(
        BERT,
        layers=1,
        feed_forward=48,
        vocabulary=LARGE_TABLE // 64,
        positions=64,
        pooling="mean",
        normalise=True,
        head_mask_input=True,
    ),
    # One projection, ReLU, no biases, an odd width of the product's inner axis.
    "vectors": EncoderConfig(
        d_model=12, heads=3, layers=1, feed_forward=25, norm="pre", activation="relu", bias=False, fused=True
    ),
    # No feed-forward network, a mask; without biases, a product reads what another gives. One shared layer.
    "masked": EncoderConfig(
        d_model=16, heads=2, layers=2, mask_input=True, causal=True, bias=False, shared_layers=True
    ),
}


@pytest.fixture(scope="module")
def folders(int8_models: Path) -> dict[str, Path]:
    return {name: int8_models / name / "1" for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_graph_is_exact_and_close_to_fp32(folders: Mapping[str, Path], name: str) -> None:
    manifest = manifest_of(folders[name])
    parity, config = manifest["parity"], CONFIGS[name]

    assert manifest["precision"] == "int8"
    assert set(manifest["graphs"]) == {"fast", "attention"} | (
        {"rows", "insight", "stream"} if config.vocabulary else set()
    )
    linear = sum(isinstance(part, torch.nn.Linear) for part in seeded(config).modules())
    linear *= config.layers if config.shared_layers else 1
    for graph, about in manifest["graphs"].items():
        onnx.checker.check_model(folders[name] / about["file"])
        assert about["operators"]["MatMulIntegerToFloat"] == linear
        for each in parity["graphs"][graph].values():
            assert all(each["graph"][error] <= each["limit"][error] for error in ("rms", "largest"))
        # Of an array's last numbers, onnxruntime's logarithm is another: docs/precision.md.
        moved = {name for name, each in parity["neighbours"][graph].items() if each["largest"] != 0}
        assert moved <= {"head_scores", "weighted_scores"}
        for cosine in parity["drift"]["cosines"][graph].values():
            assert 0.99 < cosine["mean"] < 1
            assert cosine["least"] <= cosine["mean"]
    assert parity["drift"]["least_mean_cosine"] == 0.99
    assert not parity["drift"]["emulated"]
    assert parity["drift"]["inputs"] == ("48 sentences" if config.vocabulary else "random inputs")


def test_weights_are_stored_once_in_8_bits(folders: Mapping[str, Path]) -> None:
    every = [
        {
            (tensor.name, entry.value)
            for tensor in onnx.load(file, load_external_data=False).graph.initializer
            for entry in tensor.external_data
            if tensor.data_type == TensorProto.INT8 and entry.key == "offset"
        }
        for file in sorted(folders["tokens"].glob("*.onnx"))
    ]

    assert len(every) == 5
    assert "embeddings.tokens.weight.int8" in dict(every[0])
    assert all(one == every[0] for one in every)
    assert (folders["tokens"] / "weights.bin").stat().st_size < 0.5 * LARGE_TABLE


def test_what_follows_the_layers_stays_in_fp32(tmp_path: Path) -> None:
    config = EncoderConfig(
        d_model=16,
        heads=2,
        layers=1,
        feed_forward=24,
        vocabulary=30,
        classifier=Classifier(labels=("in", "out"), pooling=None, dense=(Dense(width=16),)),
        token_vectors=TokenVectors(dense=(Dense(width=12), Dense(width=8))),
    )

    exported = export_family(seeded(config, 41), "heads", tmp_path, precision="int8")

    manifest = manifest_of(exported.folder)
    assert set(manifest["parity"]["drift"]["cosines"]["fast"]) == {"output", "token_vectors"}
    for about in manifest["graphs"].values():
        assert about["operators"]["MatMulIntegerToFloat"] == 6
        graph = onnx.load(exported.folder / about["file"], load_external_data=False).graph
        names = [each.name for each in graph.initializer if each.name.endswith(".int8")]
        assert len(names) == 6
        assert all(name.startswith("layers.") for name in names)


def test_no_cpu_saturates_and_few_steps_are_lost() -> None:
    random = np.random.default_rng(42)
    for matrix in (
        random.standard_normal((384, 64), np.float32),
        random.standard_normal((25, 8), np.float32) ** 5,
        np.full((6, 2), -3.0, np.float32),
        np.zeros((4, 3), np.float32),
    ):
        integers, scales = quantise_columns(matrix)
        padded = np.pad(integers, ((0, len(matrix) % 2), (0, 0))).astype(int)
        for sign in (1, -1):
            pairs = np.clip(sign * padded, 0, None).reshape(-1, 2, matrix.shape[1]).sum(axis=1)
            assert 255 * pairs.max() < 2**15
        np.testing.assert_allclose(integers * scales, matrix, atol=scales.max() * 0.5001)
    # Normal numbers keep most of 127 steps; two equal neighbours can have half of them only.
    assert np.abs(quantise_columns(random.standard_normal((384, 64), np.float32))[0]).max(axis=0).mean() > 90


def test_rows_of_a_table_have_scales_of_their_own() -> None:
    table = np.random.default_rng(43).standard_normal((50, 16), np.float32) * np.logspace(-9, 9, 50)[:, None]
    table = np.vstack([table, np.zeros((1, 16))])

    integers, scales = quantise_rows(table.astype(np.float32))

    assert (np.abs(integers[:-1]).max(axis=1) == 127).all()
    assert (np.abs(integers * scales - table) <= 0.5001 * scales).all()


@pytest.mark.parametrize("factor", [127 / 128, 1.001])
def test_a_wrong_scale_is_found(tmp_path: Path, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although drift would hide it."""

    def wrong(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        integers, scales = quantise_columns(matrix)
        return integers, scales * np.float32(factor)

    monkeypatch.setattr("polyhead_export.quantisation.quantise_columns", wrong)
    with pytest.raises(ParityError, match=r"must be what its own inputs give within 1e-05"):
        export_family(seeded(CONFIGS["vectors"], 41), "wrong", tmp_path, precision="int8")
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_8_bits_cannot_hold_is_refused(tmp_path: Path) -> None:
    """One channel, which no weight reads, is so large that all others get no steps."""
    encoder = seeded(EncoderConfig(d_model=16, heads=2, layers=1, feed_forward=32, norm="pre"), 41)
    with torch.no_grad():
        encoder.get_parameter("layers.0.feed_forward_norm.weight")[3] = 1e4
        encoder.get_parameter("layers.0.feed_forward.up.weight")[:, 3] = 0
        encoder.get_parameter("layers.0.feed_forward.down.weight").mul_(20)

    message = (
        r"the fast graph's 'output' in int8 must have a mean cosine of at least 0\.99 with that of fp32, "
        r"has 0\.\d+ on random inputs: export this encoder in fp32"
    )
    with pytest.raises(ParityError, match=message):
        export_family(encoder, "outlier", tmp_path, precision="int8")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def sessions(folders: Mapping[str, Path]) -> dict[int, ort.InferenceSession]:
    """Of the fast graph of `vectors`, by threads."""
    opened = {}
    for threads in (1, 2):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        file = folders["vectors"] / "model.onnx"
        opened[threads] = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return opened


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    place=st.integers(0, 6),
    padding=st.integers(0, 9),
    loudness=st.sampled_from([0.0, 1.0, 1e3, 1e30, math.nan]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**16),
)
def test_no_neighbour_changes_a_reply(
    sessions: Mapping[int, ort.InferenceSession],
    lengths: list[int],
    place: int,
    padding: int,
    loudness: float,
    threads: int,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    tokens = max(lengths) + padding
    place = place % len(lengths)
    x = (loudness * random.standard_normal((len(lengths), tokens, 12))).astype(np.float32)
    x[place] = random.standard_normal((tokens, 12))
    feeds = {"x": x, "lengths": np.array(lengths, np.int32)}
    mine = slice(place, place + 1)
    alone = {"x": x[mine, : lengths[place]], "lengths": feeds["lengths"][mine]}

    together = sessions[threads].run(None, feeds)[0][mine, : lengths[place]]

    np.testing.assert_array_equal(together, sessions[1].run(None, alone)[0])
