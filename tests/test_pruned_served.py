"""A pruned encoder from the command to the pictures: what is left has its numbers, what is gone is blank."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import sentence_transformer, write_checkpoint
from tests.exports import manifest_of
from tests.numerics import close
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest
from polyhead_client.formats import as_json
from polyhead_client.report import print_report
from polyhead_export import ExportError
from polyhead_export.batches import batches_of_sentences
from polyhead_export.prune_command import app
from polyhead_export.pruning import read_scores
from polyhead_export.sources import from_checkpoint
from polyhead_model import Encoder, narrow_heads
from polyhead_model.pruning import run_encoder
from polyhead_view import draw_heads
from polyhead_view.heads.ablation import ablate_heads
from polyhead_view.heads.formats import as_csv
from polyhead_view.heads.formats import as_json as survey_as_json
from polyhead_view.heads.page import as_page
from polyhead_view.heads.survey import survey_heads
from polyhead_view.heads.table import print_table

TEXTS = ["the cat sat", "a dog ran and ran over the mat", "no"]
REMOVED = {(0, 1), (1, 0), (1, 3)}
HEADS, LAYERS = 4, 2


def prune(*arguments: object) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def source_of(checkpoint: Path, models: Path) -> list[object]:
    """Arguments: the encoder, texts, and where to."""
    sentences = checkpoint / "texts.txt"
    return ["--checkpoint", checkpoint / "sentence", "--sentences", sentences, "--models", models]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder / "plain", "bert", num_hidden_layers=2)
    sentence_transformer(folder / "plain", pooling="mean", normalise=True).save(str(folder / "sentence"))
    (folder / "texts.txt").write_text("\n\n".join(TEXTS))
    return folder


@pytest.fixture(scope="module")
def models(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pruned`, with all graphs."""
    folder = tmp_path_factory.mktemp("models")
    heads = ",".join(f"{layer}:{head}" for layer, head in sorted(REMOVED))
    source = source_of(checkpoint, folder)
    prune(*source, "--name", "pruned", "--heads", heads, "--head-mask", "--graphs", "all")
    return folder


@pytest.fixture(scope="module")
def client(models: Path, device: str) -> Iterator[Client]:
    with serving(quick_settings(models, device=device)) as server, Client(server.address) as one:
        yield one


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> Encoder:
    return from_checkpoint(checkpoint / "sentence", "any").build().encoder


def inputs_of(checkpoint: Path, encoder: Encoder) -> dict[str, Any]:
    """The texts as PyTorch takes them, the shortest first."""
    tokenizer = from_checkpoint(checkpoint / "sentence", "any").build().tokenizer
    assert tokenizer is not None
    (inputs,) = batches_of_sentences(tokenizer, encoder.config, TEXTS)
    return dict(inputs)


def test_the_manifest_says_what_was_pruned(models: Path) -> None:
    manifest = manifest_of(models / "pruned" / "1")

    assert manifest["encoder"]["kept_heads"] == [[0, 2, 3], [1, 2]]
    assert manifest["encoder"]["heads"] == HEADS
    assert (manifest["sizes"]["H3"], manifest["sizes"]["H2"]) == (3, 2)
    pruning = manifest["pruning"]
    assert (pruning["by"], pruning["inputs"]) == ("name", "3 sentences")
    assert {tuple(head) for head in pruning["removed"]} == REMOVED
    drift = pruning["drift"]
    assert drift["output"] == "pooled"
    assert -1 <= drift["cosine"]["least"] <= drift["cosine"]["mean"] < 0.9999
    assert 0 < drift["largest_difference"] < 2
    for compared in manifest["parity"]["graphs"].values():
        assert all(each["graph"]["rms"] <= each["limit"]["rms"] for each in compared.values())


def test_every_output_has_the_numbers_of_the_heads_before(client: Client, encoder: Encoder) -> None:
    text = TEXTS[1]
    every = client.encode(text, attention=True, value_norms=True)
    insight = client.encode(text, scores=True, thumbnails=True, top=4, value_norms=True, rollout=True)
    rows = client.encode(text, attention=True, queries=[0, 3])
    attention: Any = every.attention
    keys: Any = insight.top

    assert every.heads == insight.heads == rows.heads == (0, 1, 2, 3)
    assert every.kept_heads == ((0, 2, 3), (1, 2))
    for layer in range(LAYERS):
        assert attention[layer].shape == (HEADS, len(every.tokens or ()), len(every.tokens or ()))
        np.testing.assert_allclose(attention[layer][:, [0, 3]], rows.attention[layer], atol=1e-5)
        np.testing.assert_allclose(every.value_norms[layer], insight.value_norms[layer], atol=1e-5)  # type: ignore[index]
        for head in range(HEADS):
            gone = (layer, head) in REMOVED
            assert every.is_pruned(layer, head) is gone
            np.testing.assert_allclose(attention[layer][head].sum(-1), 0 if gone else 1, atol=1e-5)
            assert (not np.any(every.value_norms[layer][head])) is gone  # type: ignore[index]
            assert bool(np.isnan(insight.scores["entropy"][layer, head])) is gone  # type: ignore[index]
            assert bool((keys.keys[layer, head] == -1).all()) is gone
            assert (not insight.thumbnails[layer, head].any()) is gone  # type: ignore[index]
    # Rollout takes the mean over the heads that are left: its rows sum to 1.
    np.testing.assert_allclose(np.asarray(insight.rollout).sum(-1), 1, atol=1e-5)
    # The first layer's heads still see what they saw.
    assert encoder.config.kept_heads is None


def test_heads_are_selected_by_their_numbers(client: Client) -> None:
    text = TEXTS[1]
    every = client.encode(text, attention=True)
    some = client.encode(text, attention=[0], heads=[3, 0], dtype="UINT8")
    weighted = client.encode(text, attention=[1], heads=[2], weighted=True)

    assert some.heads == (3, 0)
    close(some.attention[0], every.attention[0][[3, 0]], scale=1, extra=0.5 / 255)
    norms = client.encode(text, attention=[1], value_norms=True).value_norms
    expected = every.attention[1][2] * norms[1][2]  # type: ignore[index]
    close(weighted.attention[1][0], expected)
    for queries in (None, [0]):
        with pytest.raises(InvalidRequest, match=r"pruning left in layer 1 of .* \(1, 2\), was 0"):
            client.encode(text, attention=[0, 1], heads=[0], queries=queries)


def test_ablation_and_the_survey_say_what_is_gone(
    client: Client, encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from rich.console import Console

    *_, drift = ablate_heads(client, TEXTS)
    survey = replace(survey_heads(client, TEXTS), drift=drift, drift_texts=len(TEXTS))

    assert {(int(layer), int(head)) for layer, head in np.argwhere(np.isnan(drift))} == REMOVED
    mask = np.ones((LAYERS, HEADS), np.float32)
    mask[0, 2] = 0
    with_head, without = (client.encode(TEXTS, head_mask=given).pooled for given in (None, mask))
    moved = np.linalg.norm(np.asarray(with_head) - np.asarray(without), axis=1).mean()
    close(drift[0, 2], moved, scale=1)

    assert survey.pruned == REMOVED
    described = json.loads(survey_as_json(survey))
    by_head = {(each["layer"], each["head"]): each for each in described["heads"]}
    assert {head for head, each in by_head.items() if each["raw"]["roles"] == ["pruned"]} == REMOVED
    assert {head for head, each in by_head.items() if each["drift"] is None} == REMOVED
    assert "0,1,raw,pruned,," in as_csv(survey)
    assert "pruned" in as_page(survey, "texts")
    print_table(survey, Console(width=120))
    assert capsys.readouterr().out.count("pruned") == 1 + 2 * len(REMOVED)  # the model, and its heads

    # What it writes is what pruning reads.
    (tmp_path / "scores.json").write_text(survey_as_json(survey))
    config = encoder.config
    pruned = replace(config, kept_heads=((0, 2, 3), (1, 2)))
    read = read_scores(tmp_path / "scores.json", pruned)
    np.testing.assert_allclose(read.numpy(), drift, rtol=1e-5)
    with pytest.raises(ExportError, match="must have a score, head 1 of layer 0 has none"):
        read_scores(tmp_path / "scores.json", config)


def test_pictures_and_reports_leave_out_what_is_gone(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = draw_heads(client.encode(TEXTS[0], attention=[1]), layer=1)
    words = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert words == ["pruned", "pruned"]

    encoding = client.encode(TEXTS[:1], attention=[1])
    (sequence,) = json.loads(as_json(encoding, TEXTS[:1], {}, top=1, special=True))["sequences"]
    assert {edge["head"] for edge in sequence["attention"]["1"]} == {1, 2}
    print_report(encoding, TEXTS[:1], {}, top=1, special=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    heads = [words for words in lines if words and words[0].isdecimal() and len(words) > 1]
    assert [words[0] for words in heads[:HEADS]] == ["0", "1", "2", "3"]
    assert [words[0] for words in heads if words[1] == "pruned"] == ["0", "3"]


def test_fractions_go_by_gradient_and_by_scores(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(checkpoint, tmp_path)
    scores = {
        "heads": [
            {"layer": layer, "head": head, "drift": layer + head / 10}
            for layer in range(LAYERS)
            for head in range(HEADS)
        ]
    }
    (tmp_path / "scores.json").write_text(json.dumps(scores))

    prune(*source, "--name", "by-scores", "--fraction", "0.5", "--scores", tmp_path / "scores.json")

    manifest = manifest_of(tmp_path / "by-scores" / "1")
    assert manifest["encoder"]["kept_heads"] == [[3], [1, 2, 3]]
    assert (manifest["pruning"]["by"], manifest["pruning"]["importance"][1]) == (
        "scores",
        [1.0, 1.1, 1.2, 1.3],
    )
    said = capsys.readouterr().err
    assert "removes 4 of 8 heads: 0:0,0:1,0:2,1:0" in said
    assert "keeps 0:3, though to be removed: each layer keeps one head" in said

    prune(*source, "--name", "by-gradient", "--fraction", "0.13", "--precision", "fp16")

    manifest = manifest_of(tmp_path / "by-gradient" / "1")
    pruning = manifest["pruning"]
    least = np.unravel_index(np.argmin(pruning["importance"]), (LAYERS, HEADS))
    assert [tuple(head) for head in pruning["removed"]] == [tuple(map(int, least))]
    assert pruning["by"] == "gradient"
    assert manifest["precision"] == "fp16"


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [["--graphs", "rows,insight,stream", "--head-mask"], ["--precision", "int8"]]
)
def test_narrower_heads_are_served_as_others(
    checkpoint: Path, encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    models = tmp_path / "models"
    source = source_of(checkpoint, models)
    prune(*source, "--name", "narrower", "--heads", "0:1,1:0,1:3", "--width", "2", *form)

    manifest = manifest_of(models / "narrower" / "1")
    assert manifest["encoder"]["head_widths"] == [[4, 2, 4, 4], [2, 4, 4, 2]]
    assert manifest["pruning"].keys() == {"by", "narrowed", "width", "importance", "inputs", "drift"}
    assert (manifest["pruning"]["narrowed"], manifest["pruning"]["width"]) == ([[0, 1], [1, 0], [1, 3]], 2)
    drift = manifest["pruning"]["drift"]["cosine"]["least"]
    assert 0.5 < drift < 0.9999
    assert "narrows 3 of 8 heads to 2 columns: 0:1,1:0,1:3" in capsys.readouterr().err
    with serving(quick_settings(models)) as server, Client(server.address) as client:
        encoding = client.encode(sorted(TEXTS, key=len), attention=True)
    narrow = run_encoder(narrow_heads(encoder, dict.fromkeys(REMOVED, 2)), inputs_of(checkpoint, encoder))
    assert narrow.pooled is not None
    cosines = (np.asarray(encoding.pooled) * narrow.pooled.detach().numpy()).sum(-1)
    assert cosines.min() > (0.98 if "int8" in form else 1 - 1e-5)
    attention: Any = encoding.sequence(1).attention
    assert [layer.shape[0] for layer in attention.values()] == [HEADS] * LAYERS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --fraction or --heads"),
        (["--fraction", "0.5", "--heads", "0:1"], "give either --fraction or --heads"),
        (
            ["--heads", "0:1", "--scores", "x.json"],
            "--scores choose which --fraction of the heads is removed",
        ),
        (["--heads", "0-1"], r"--heads must be layers and heads such as 0:3,0:7 .* was '0-1'"),
        (["--heads", "0:4"], "heads of layer 0 must be some of 0, 1, 2, 3, was 4"),
        (["--fraction", "1"], "--fraction must be above 0 and below 1, such as 0.25, was 1.0"),
        (["--fraction", "nan"], "--fraction must be above 0 and below 1, such as 0.25, was nan"),
        (["--fraction", "0.01"], "--fraction 0.01 of 8 heads is less than one head"),
        (
            ["--heads", "0:1", "--width", "4"],
            "--width must be below that of the widest of the heads, 4, was 4",
        ),
        (["--heads", "0:1", "--groups"], "--groups needs an encoder whose heads share keys and values"),
        (
            ["--fraction", "0.5", "--scores", "texts.txt"],
            "must be what polyhead heads --ablate --json writes",
        ),
        (["--fraction", "0.5", "--sentences", "empty.txt"], "must hold at least one sentence"),
        (["--fraction", "0.5", "--sentences", "binary.txt"], "must be a text file in UTF-8"),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(checkpoint)
    (checkpoint / "empty.txt").write_text("\n \n")
    (checkpoint / "binary.txt").write_bytes(b"\xff\xfe\x00")
    texts = [] if "--sentences" in arguments else ["--sentences", "texts.txt"]
    with pytest.raises(ExportError, match=message):
        prune("--checkpoint", "sentence", "--name", "x", "--models", tmp_path, *texts, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--fraction", "25"], "--fraction must be above 0 and below 1, such as 0.25, was 25.0"),
        (["--heads", "0-3"], "--heads must be layers and heads such as 0:3,0:7"),
    ],
)
def test_what_is_no_choice_of_heads_is_refused_before_torch_is_loaded(
    tmp_path: Path, given: list[str], message: str
) -> None:
    code = f"""
import sys
sys.modules["torch"] = None  # importing it would fail
from polyhead_export.prune_command import app
app(["--checkpoint", {str(tmp_path / "nowhere")!r}, *{given}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == ""
    assert f"ExportError: {message}" in done.stderr


def test_what_is_there_is_kept_unless_it_was_pruned_otherwise(tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text('{"d_model": 16, "heads": 4, "layers": 1}')
    source = ("--encoder", tmp_path / "encoder.json", "--name", "small", "--models", tmp_path / "models")
    prune(*source, "--heads", "0:1")

    with pytest.raises(ExportError, match="--if-exists skip, replace or add"):
        prune(*source, "--heads", "0:1")
    with pytest.raises(ExportError, match="its encoder, weights, pruning differ"):
        prune(*source, "--heads", "0:2", "--if-exists", "add")
    prune(*source, "--heads", "0:2", "--if-exists", "skip")  # nothing

    assert manifest_of(tmp_path / "models" / "small" / "1")["encoder"]["kept_heads"] == [[0, 2, 3]]


def test_texts_are_for_encoders_with_a_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    family = ["--name", "x", "--models", tmp_path, "--fraction", "0.5"]
    description = tmp_path / "encoder.json"
    fields = {"d_model": 8, "heads": 2, "layers": 1}
    description.write_text(json.dumps(fields))
    with pytest.raises(ExportError, match=r"--sentences need a tokenizer\.json, this encoder has none"):
        prune("--encoder", description, *family, "--sentences", checkpoint / "texts.txt")
    description.write_text(json.dumps(fields | {"kept_heads": [[1]]}))
    with pytest.raises(ExportError, match="no head can be removed: each layer has but one"):
        prune("--encoder", description, *family[:-1], "0.9")
    description.write_text(json.dumps(fields | {"cross_attention": "after_self", "feed_forward": 8}))
    with pytest.raises(ExportError, match="heads of decoder blocks cannot be pruned"):
        prune("--encoder", description, *family)
