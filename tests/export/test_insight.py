"""The insight graph, against plain loops over transformers' attention."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.checkpoints import random_model, write_checkpoint
from tests.encoders import seeded
from tests.exports import manifest_of, run, session_of
from tests.model.insight.plain import norm_weighted, rollout, scores, thumbnail, visible_pairs

from polyhead_export import export_family, from_checkpoint
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.insight import InsightGraph
from polyhead_export.parity import reference_outputs, run_reference
from polyhead_export.samples import sample_inputs
from polyhead_model import EncoderConfig
from polyhead_proto.drift import deviation

LENGTHS, LAYERS = [40, 12, 1], 2
ERRORS = ("rms", "largest")
POSITIONS = ("previous", "next", "current", "first")
SHAPES = ("entropy", "normalised_entropy", "confidence", "distance")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random BERT with all that an insight graph can say."""
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(checkpoint, "bert", num_hidden_layers=LAYERS)
    built = from_checkpoint(checkpoint, "bert").build()
    models = tmp_path_factory.mktemp("models")
    return export_family(built.encoder, "bert", models, graphs=["insight"], tokenizer=built.tokenizer).folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    return manifest_of(folder)


@pytest.fixture(scope="module")
def inputs() -> dict[str, NDArray[Any]]:
    """Ids of few tokens, so that they are repeated; separators and punctuation among them."""
    random = np.random.default_rng(51)
    ids = random.choice([3, 5, 6, 7, 8, 64, 65], (len(LENGTHS), max(LENGTHS)))
    return {
        "input_ids": ids.astype(np.int64),
        "token_type_ids": np.zeros_like(ids, dtype=np.int64),
        "lengths": np.array(LENGTHS, np.int32),
        "head_mix": random.standard_normal((len(LENGTHS), LAYERS, 4)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def outputs(folder: Path, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return run(session_of(folder / "insight.onnx"), inputs)


@pytest.fixture(scope="module")
def theirs(inputs: dict[str, NDArray[Any]], folder: Path) -> list[tuple[Any, Any]]:
    """For each sequence, transformers' attention [L, H, T, T] and the norms of what keys give [L, H, T]."""
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    model = random_model("bert", vocab_size=len(words), num_hidden_layers=LAYERS)
    found = []
    for ids, length in zip(inputs["input_ids"], LENGTHS, strict=True):
        norms = []
        with torch.inference_mode():
            wanted = {"output_attentions": True, "output_hidden_states": True}
            result = model(torch.from_numpy(ids[None, :length]), **wanted)
            for layer, x in zip(model.encoder.layer, result.hidden_states, strict=False):
                by_head = layer.attention.self.value(x)[0].reshape(length, 4, -1).transpose(0, 1)
                projection = layer.attention.output.dense.weight.reshape(16, 4, -1).permute(1, 2, 0)
                norms.append((by_head @ projection).norm(dim=-1).double().numpy())
        found.append((torch.cat(result.attentions).double().numpy(), np.stack(norms)))
    return found


def test_the_manifest_says_what_the_graph_gives(manifest: dict[str, Any]) -> None:
    sizes, graph = manifest["sizes"], manifest["graphs"]["insight"]

    assert {"Scores": 12, "Top": 8, "Side": 32}.items() <= sizes.items()
    said = {tensor["name"]: tensor for tensor in graph["inputs"] + graph["outputs"]}
    assert said["head_mix"]["fill"] == 1 / 8
    assert said["head_mix"]["range"] == [None, None]
    assert said["head_scores"]["labels"] == said["weighted_scores"]["labels"]
    of_tokens = ["separator", "punctuation", "duplicate", "induction"]
    assert said["head_scores"]["labels"] == [*POSITIONS, *SHAPES, *of_tokens]
    for name in ("head_scores", "top_keys", "residual", "thumbnails"):
        assert (said[name]["role"], said[name]["layers"]) == (name, [0, 1])
    compared = manifest["parity"]["graphs"]["insight"]
    assert {"output", "head_scores (distance)", "weighted_scores (entropy)", "top_weights"} <= set(compared)
    assert all(each["graph"][error] <= each["limit"][error] for each in compared.values() for error in ERRORS)


def test_scores_are_those_of_transformers_attention(
    outputs: dict[str, NDArray[Any]],
    inputs: dict[str, NDArray[Any]],
    theirs: list[Any],
    manifest: Any,
    folder: Path,
) -> None:
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    classes = {
        "separator": {words["[SEP]"]},
        "punctuation": {words[word] for word in words if set(word.removeprefix("##")) <= set("<>[]/:.")},
    }
    labels = manifest["graphs"]["insight"]["outputs"][1]["labels"]
    for item, (attention, norms) in enumerate(theirs):
        sees = visible_pairs(LENGTHS[item], causal=False)
        ids = inputs["input_ids"][item].tolist()
        for place in np.ndindex(LAYERS, 4):
            raw = scores(attention[place], sees, ids, classes)
            weighted = scores(norm_weighted(attention[place], norms[place]), sees, ids, classes)
            assert list(raw) == labels
            for name, expected in (("head_scores", raw), ("weighted_scores", weighted)):
                np.testing.assert_allclose(
                    outputs[name][item][place], list(expected.values()), rtol=1e-5, atol=1e-5
                )
    assert np.isnan(outputs["head_scores"][2]).all()


def test_maps_are_those_of_transformers_attention(
    outputs: dict[str, NDArray[Any]], inputs: dict[str, NDArray[Any]], theirs: list[Any]
) -> None:
    for item, (attention, norms) in enumerate(theirs):
        length = LENGTHS[item]
        inside = np.s_[item, :length, :length]
        mixed = np.einsum("lh,lhqk->qk", inputs["head_mix"][item], attention)

        np.testing.assert_allclose(outputs["rollout"][inside], rollout(attention), atol=1e-5)
        np.testing.assert_allclose(outputs["mixed"][inside], mixed, atol=1e-5)
        np.testing.assert_allclose(outputs["value_norms"][item, ..., :length], norms, rtol=1e-5)
        assert not outputs["rollout"][item, length:].any()
        assert not outputs["mixed"][item, :, length:].any()
        assert not outputs["value_norms"][item, ..., length:].any()


def test_keys_and_pictures_are_those_of_transformers_attention(
    outputs: dict[str, NDArray[Any]], theirs: list[Any]
) -> None:
    for item, (attention, _) in enumerate(theirs):
        length = LENGTHS[item]
        kept = min(8, length)
        keys = outputs["top_keys"][item, ..., :length, :]
        strongest = np.sort(attention, axis=-1)[..., ::-1][..., :kept]

        np.testing.assert_allclose(outputs["top_weights"][item, ..., :length, :kept], strongest, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(attention, keys[..., :kept].astype(np.int64), axis=-1), strongest, atol=1e-5
        )
        assert (keys[..., kept:] == -1).all()
        assert (outputs["top_keys"][item, ..., length:, :] == -1).all()
        np.testing.assert_allclose(outputs["residual"][item, ..., :length], 1 - strongest.sum(-1), atol=1e-5)
        assert not outputs["residual"][item, ..., length:].any()
        for place in np.ndindex(LAYERS, 4):
            expected = thumbnail(attention[place], 32)
            np.testing.assert_allclose(outputs["thumbnails"][item][place], expected, atol=0.51)


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(d_model=16, heads=2, layers=2, feed_forward=16, causal=True, norm="pre"),
        EncoderConfig(d_model=12, heads=2, layers=1, mask_input=True),
    ],
    ids=["causal", "mask"],
)
def test_padding_may_hold_anything(config: EncoderConfig) -> None:
    """NaN behind the end of a sequence reaches nothing; vectors have the scores that need no tokens."""
    encoder, kind = seeded(config, 52), InsightGraph()
    session = session_of(build_graph(encoder, kind))
    inputs = sample_inputs(config, kind, 4, 9, seed=53)
    inputs["lengths"] = torch.tensor([9, 5, 1, 0], dtype=torch.int32)
    reference, expected = run_reference(encoder, kind, inputs)
    dirty = {name: value.numpy().copy() for name, value in inputs.items()}
    for item, length in enumerate(inputs["lengths"].tolist()):
        dirty["x"][item, length:] = np.nan

    actual = run(session, dirty)

    assert kind.scores(config) == (*POSITIONS, *SHAPES)
    assert np.isnan(actual["head_scores"][2:]).all()
    ours, wanted = kind.align(config, actual, expected, reference)
    # Rounding alone: 2^-24 a step, over some hundred steps and sums.
    assert all(deviation(ours[name], wanted[name]) <= 1e-5 for name in ours)


def test_ties_and_the_last_digit_of_a_picture_do_not_count() -> None:
    config = EncoderConfig(d_model=4, heads=1, layers=1)
    kind = InsightGraph()
    expected = reference_outputs(seeded(config, 54), kind, sample_inputs(config, kind, 1, 3, seed=55))
    weights = torch.tensor([[0.4, 0.4, 0.2]]).expand(1, 1, 3, 3)
    keys = expected["top_keys"].copy()
    keys[..., :3] = [0, 1, 2]
    expected["top_keys"], expected["top_weights"] = keys, np.zeros_like(expected["top_weights"])
    expected["top_weights"][..., :3] = [0.4, 0.4, 0.2]
    run: Any = SimpleNamespace(weights={0: weights}, kept_heads=None)

    def off(name: str, values: NDArray[Any]) -> float:
        ours, wanted = kind.align(config, expected | {name: values}, expected, run)
        judged = "top_weights" if name == "top_keys" else name
        return deviation(ours[judged], wanted[judged])

    swapped = keys.copy()
    swapped[..., :3] = [1, 0, 2]
    assert off("top_keys", swapped) == 0
    swapped[..., :3] = [2, 1, 0]
    assert off("top_keys", swapped) == pytest.approx(0.2)
    swapped[..., :3] = [1, 1, 2]
    assert off("top_keys", swapped) == float("inf")
    picture = expected["thumbnails"].astype(np.int64)
    assert off("thumbnails", np.where(picture > 0, picture - 1, 1)) == 0
    assert off("thumbnails", np.where(picture > 1, picture - 2, 2)) == pytest.approx(2 / 255)
