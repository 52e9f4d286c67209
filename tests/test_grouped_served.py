"""Heads that share keys and values, from a checkpoint to pictures, the survey, and pruning by its scores."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints import bert_tokenizer, random_of, write_tokenizer_files
from tests.exports import manifest_of
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import command, prune_command
from polyhead_view import draw_heads
from polyhead_view.explorer.explorer import describe
from polyhead_view.heads.ablation import ablate_heads
from polyhead_view.heads.formats import as_json
from polyhead_view.heads.page import as_page
from polyhead_view.heads.survey import survey_heads

pytestmark = pytest.mark.slow

TEXTS = ["the cat sat", "a dog ran and ran over the mat", "no"]
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
    "mask_token_id": 4,
    **{f"{name}_token_id": None for name in ("bos", "eos")},
}
LAYERS, HEADS, GROUPS = 2, 6, 2


def run(app: Any, *arguments: object) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = bert_tokenizer()
    random_of("EuroBert", "Model", vocab_size=tokenizer.get_vocab_size(), **SIZES).save_pretrained(folder)
    write_tokenizer_files(folder, "bert", tokenizer, {"model_max_length": 50})
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return folder


@pytest.fixture(scope="module")
def models(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    source = ("--checkpoint", checkpoint, "--pooling", "mean", "--models", folder)
    run(command.app, *source, "--name", "grouped", "--head-mask", "--graphs", "insight")
    return folder


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[Client]:
    with serving(quick_settings(models)) as server, Client(server.address) as one:
        yield one


def test_each_query_head_has_a_map_with_its_number(client: Client, checkpoint: Path) -> None:
    from transformers import EuroBertModel

    encoding = client.encode(TEXTS[1], attention=True)
    attention: Any = encoding.attention
    ids = torch.tensor([bert_tokenizer().encode(TEXTS[1]).ids])
    with torch.inference_mode():
        model = EuroBertModel.from_pretrained(checkpoint, attn_implementation="eager")
        expected = model(ids, output_attentions=True).attentions

    assert [layer.shape[0] for layer in attention.values()] == [HEADS] * LAYERS
    for layer in range(LAYERS):
        np.testing.assert_allclose(attention[layer], expected[layer][0].numpy(), atol=1e-5)
    figure = draw_heads(encoding, layer=1)
    assert [axis.get_title() for axis in figure.axes[:HEADS]] == [f"head {head}" for head in range(HEADS)]

    info = client.model("grouped")
    assert (info.heads, info.kv_heads) == (HEADS, GROUPS)
    assert describe(info, cross=False)["kv_heads"] == GROUPS


def test_what_the_survey_says_prunes_a_group(
    client: Client, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, drift = ablate_heads(client, TEXTS)
    survey = replace(survey_heads(client, TEXTS), drift=drift, drift_texts=len(TEXTS))
    written = as_json(survey)
    heads = json.loads(written)["heads"]
    assert {(each["layer"], each["head"]) for each in heads} == {*np.ndindex(LAYERS, HEADS)}
    assert "pruned" not in as_page(survey, "texts")
    (tmp_path / "scores.json").write_text(written)

    source = ("--checkpoint", checkpoint, "--pooling", "mean", "--sentences", checkpoint / "texts.txt")
    chosen = ("--fraction", "0.25", "--groups", "--scores", tmp_path / "scores.json", "--graphs", "insight")
    run(prune_command.app, *source, "--name", "fewer", *chosen, "--models", tmp_path / "models")

    each = drift.reshape(LAYERS, GROUPS, -1).sum(2)
    layer, group = np.unravel_index(np.argmin(each), each.shape)
    of_group = {int(group) * 3 + head for head in range(3)}
    left = [head for head in range(HEADS) if head not in of_group]
    kept = [left if one == layer else [*range(HEADS)] for one in range(LAYERS)]
    manifest = manifest_of(tmp_path / "models" / "fewer" / "1")
    assert manifest["encoder"]["kept_heads"] == kept
    assert manifest["pruning"]["removed"] == [[int(layer), head] for head in sorted(of_group)]
    assert f"removes 3 of 12 heads: {','.join(f'{layer}:{head}' for head in sorted(of_group))}" in (
        capsys.readouterr().err
    )

    # Without the heads the same comes out as if they were silenced.
    mask = np.ones((LAYERS, HEADS), np.float32)
    mask[layer, sorted(of_group)] = 0
    with serving(quick_settings(tmp_path / "models")) as server, Client(server.address) as pruned:
        assert pruned.model("fewer").kv_heads == GROUPS
        encoding = pruned.encode(TEXTS, attention=True)
        surveyed = survey_heads(pruned, TEXTS)
    expected = client.encode(TEXTS, head_mask=mask)
    np.testing.assert_allclose(np.asarray(encoding.pooled), np.asarray(expected.pooled), atol=1e-5)
    assert surveyed.pruned == {(int(layer), head) for head in of_group}
    figure = draw_heads(encoding.sequence(1), layer=int(layer))
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == ["pruned"] * 3
