"""What a request asks of its own sequences: rows of attention, a factor for each head."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import build_probed
from tests.numerics import close
from tests.server.conftest import Running, running
from tests.server.graphs import OpenGraph, described
from tests.servers import quick_settings

from polyhead_proto import messages as pb

L, H = 2, 2
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(5, 32, (3, 7))
LENGTHS = np.array([7, 4, 1], np.int32)
ROWS = np.array([[6, 0, 3], [1, 5, 2], [0, 6, 4]])
FEEDS: dict[str, Any] = {"input_ids": IDS, "lengths": LENGTHS, "rows": ROWS}


def reference(ids: Any = IDS, lengths: Any = LENGTHS, head_mask: Any = None) -> tuple[Any, Any]:
    """What PyTorch gives: pooled vectors [B, D] and attention [B, L, H, T, T]."""
    mask = None if head_mask is None else torch.from_numpy(head_mask)
    with torch.inference_mode():
        result = build_probed()(
            torch.from_numpy(ids), torch.from_numpy(lengths), head_mask=mask, need_weights=True
        )
    return result.pooled.numpy(), torch.stack(result.attention, dim=1).numpy()


def taken(attention: Any, rows: Any = ROWS) -> Any:
    """Rows of attention: [B, L, H, R, T]."""
    return np.stack([one[:, :, row] for one, row in zip(attention, rows, strict=True)])


@pytest.fixture(scope="module")
def probed(probed_models: Path, device: str) -> Iterator[Running]:
    with running(quick_settings(probed_models, device=device)) as one:
        yield one


def test_rows_are_those_of_all_attention(probed: Running) -> None:
    pooled, attention = reference()
    result = probed.infer("probed.rows", FEEDS)

    np.testing.assert_allclose(result["attention_rows"], taken(attention), atol=1e-5)
    np.testing.assert_allclose(result["pooled"], pooled, atol=1e-5)
    assert not result["attention_rows"][1, :, :, 1].any()  # behind the sequence's end


def test_rows_of_texts(probed: Running) -> None:
    texts = ["the cat sat on the mat", "a dog"]
    rows = np.array([[0, 7], [3, 1]])
    result = probed.infer("probed.rows", {"text": texts, "rows": rows})
    whole = probed.infer("probed.attention", {"text": texts})

    attention = np.stack([whole[f"attention.{layer}"] for layer in range(L)], axis=1)
    close(result["attention_rows"], taken(attention, rows))


def test_a_factor_goes_with_a_text(probed: Running) -> None:
    silent = np.zeros((1, L, H), np.float32)
    texts = ["the cat sat on the mat"]
    mute, loud = (probed.infer("probed", {"text": texts, **more}) for more in ({"head_mask": silent}, {}))

    assert np.abs(mute["pooled"] - loud["pooled"]).max() > 0.01
    close(mute["output"], mute["output"][:, :1].repeat(8, axis=1))


def test_metadata_names_what_computes(probed: Running, device: str) -> None:
    metadata = probed.call("ModelMetadata", pb.ModelMetadataRequest(name="probed"))
    config = probed.call("ModelConfig", pb.ModelConfigRequest(name="probed")).config

    named = {"cpu": ("onnxruntime_onnx", "onnxruntime"), "openvino": ("openvino", "openvino")}
    assert (metadata.platform, config.backend) == named[device]
    assert config.platform == metadata.platform


@pytest.mark.parametrize(
    ("parameters", "index"),
    [
        ({"heads": "1"}, np.s_[:, :, [1]]),
        ({"layers": "1"}, np.s_[:, [1]]),
        ({"layers": "1,0", "heads": "0"}, np.s_[:, ::-1, [0]]),
    ],
)
def test_layers_and_heads_are_selected(probed: Running, parameters: dict[str, str], index: Any) -> None:
    whole = probed.infer("probed.rows", FEEDS)["attention_rows"]
    outputs = {"attention_rows": parameters, "output": {}}

    np.testing.assert_array_equal(
        probed.infer("probed.rows", FEEDS, outputs=outputs)["attention_rows"], whole[index]
    )


def test_a_selection_for_all_outputs_reaches_every_axis_of_its_name(probed: Running) -> None:
    feeds: dict[str, Any] = {"input_ids": IDS, "lengths": LENGTHS}
    whole = probed.infer("probed.attention", feeds)
    some = probed.infer("probed.attention", feeds, parameters={"heads": "1", "queries": "2"})

    np.testing.assert_array_equal(some["value_norms"], whole["value_norms"][:, :, [1]])
    np.testing.assert_array_equal(some["attention.0"], whole["attention.0"][:, [1], 2:3])
    assert some["output"].shape == whole["output"].shape


def test_weights_of_rows_are_sent_in_bytes(probed: Running) -> None:
    outputs = {"attention_rows": {"dtype": "UINT8"}}
    result = probed.infer("probed.rows", FEEDS, outputs=outputs)

    assert result.datatypes == {"attention_rows": "UINT8"}
    np.testing.assert_allclose(result["attention_rows"] / 255, taken(reference()[1]), atol=1 / 500)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 7], [0, 1], [0, 1]], "rows[0, 1] must be between 0 and T-1 (6), was 7"),
        ([[0, 1], [-1, 1], [0, 1]], "rows[1, 0] must be between 0 and T-1 (6), was -1"),
        ([[0, 1], [0, 1], [4, 4]], "rows[2] must name each row once, has 4 more than once"),
        (
            [range(8)] * 3,
            "rows must have at most T (7) rows of a sequence, had 8: each can be asked for once",
        ),
        ([[0, 1]], "dimension 0 (B) of rows must be 3, was 1"),
        ([[], [], []], "dimension 1 (R) of rows must be at least 1, was 0"),
        ([0, 1, 2], "rows must have 2 dimensions (B, R), had 1"),
    ],
)
def test_rows_that_are_not_there(probed: Running, rows: Any, message: str) -> None:
    assert message in probed.rejected("probed.rows", {**FEEDS, "rows": np.array(rows, np.int64)})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[4]], "rows[0, 0] must be between 0 and T-1 (3), was 4"),
        ([[1, 1]], "rows[0] must name each row once, has 1 more than once"),
        ([range(5)], "rows must have at most T (4) rows of a sequence, had 5"),
    ],
)
def test_rows_that_a_text_has_not(probed: Running, rows: Any, message: str) -> None:
    inputs = {"text": ["the cat"], "rows": np.array(rows, np.int64)}

    assert message in probed.rejected("probed.rows", inputs)
    assert message in probed.rejected("probed.rows", inputs)  # by the template of the first


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"layers": "2"},
            "parameter layers of output attention_rows must be some of its layers (0, 1), was 2",
        ),
        ({"layers": "0:9999999"}, "must be some of its layers (0, 1), was 2"),
        (
            {"layers": "0,0"},
            "parameter layers of output attention_rows must name each index once, has 0 twice",
        ),
        ({"heads": "2"}, "parameter heads of output attention_rows must be between 0 and H-1 (1), was 2"),
        ({"queries": "0"}, "parameter queries does not apply to output attention_rows"),
        ({"top": 3}, "parameter top does not apply to output attention_rows"),
        ({"top": 0}, "parameter top of output attention_rows must be a whole number of at least 1, was 0"),
    ],
)
def test_selections_that_do_not_fit(probed: Running, parameters: dict[str, Any], message: str) -> None:
    outputs = {"attention_rows": parameters}

    assert message in probed.rejected("probed.rows", FEEDS, outputs=outputs)


@pytest.mark.parametrize("graph", ["probed", "probed.attention", "probed.rows"])
def test_a_factor_for_each_head(probed: Running, graph: str) -> None:
    mask = RANDOM.random((3, L, H), np.float32)
    mask[0, 1, 0] = 0
    feeds: dict[str, Any] = {**FEEDS, "head_mask": mask}
    if graph != "probed.rows":
        del feeds["rows"]
    pooled, attention = reference(head_mask=mask)
    result = probed.infer(graph, feeds)

    np.testing.assert_allclose(result["pooled"], pooled, atol=1e-5)
    assert np.abs(pooled - reference()[0]).max() > 0.01
    if graph == "probed.rows":
        np.testing.assert_allclose(result["attention_rows"], taken(attention), atol=1e-5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "head_mask[0, 1, 0] must be finite and at least 0 and at most 1, was 1.5"),
        (-0.25, "head_mask[0, 1, 0] must be finite and at least 0 and at most 1, was -0.25"),
        (np.nan, "head_mask[0, 1, 0] must be finite and at least 0 and at most 1, was nan"),
        (np.inf, "head_mask[0, 1, 0] must be finite and at least 0 and at most 1, was inf"),
    ],
)
def test_factors_out_of_range(probed: Running, value: float, message: str) -> None:
    for dtype in (np.float32, np.float16):
        mask = np.ones((1, L, H), dtype)
        mask[0, 1, 0] = value

        assert message in probed.rejected("probed", {"input_ids": IDS[:1], "head_mask": mask})


def test_a_head_mask_of_another_shape(probed: Running) -> None:
    inputs = {"input_ids": IDS[:1], "head_mask": np.ones((1, L, 3), np.float32)}

    assert "dimension 2 (H) of head_mask must be 2, was 3" in probed.rejected("probed", inputs)


def test_requests_with_other_rows_and_masks_share_a_batch(probed_models: Path, device: str) -> None:
    def feeds(ids: Any, lengths: Sequence[int], rows: Any, mask: Any = None) -> dict[str, Any]:
        ones = np.ones((len(ids), L, H), np.float32)  # what the server makes of none
        return {
            "input_ids": ids,
            "lengths": np.array(lengths, np.int32),
            "rows": np.array(rows),
            "head_mask": ones if mask is None else mask,
        }

    requests = [
        feeds(IDS, LENGTHS.tolist(), ROWS, RANDOM.random((3, L, H), np.float32)),
        feeds(RANDOM.integers(5, 32, (1, 3)), [3], [[2]]),
        feeds(RANDOM.integers(5, 32, (2, 5)), [5, 2], [[1, 4], [0, 1]], np.zeros((2, L, H), np.float32)),
    ]
    graph = OpenGraph(probed_models, "probed", "rows", device)
    result = graph.run([graph.work(each) for each in requests])

    assert result.execution.requests == 3
    for each, outputs in zip(requests, result.outputs, strict=True):
        pooled, attention = reference(each["input_ids"], each["lengths"], each["head_mask"])
        np.testing.assert_allclose(outputs["pooled"], pooled, atol=1e-5)
        np.testing.assert_allclose(outputs["attention_rows"], taken(attention, each["rows"]), atol=1e-5)


def test_few_rows_of_long_sequences_are_not_refused_for_the_memory_of_all(probed_models: Path) -> None:
    """The server knows how many rows there are: their memory is not that of T rows."""
    signature = described(probed_models, "probed", "rows")
    few, every = (signature.working_bytes(1, 30, {"B": 1, "T": 30, "R": rows}) for rows in (1, 30))

    assert every - few == 4 * L * H * 29 * 30
    assert signature.working_bytes(1, 30) == every
