"""Rerankers whose pairs a chat template joins, against sentence-transformers and transformers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.published import RERANKER_TEMPLATE, RERANKERS, TEXTS, cross_encoder, write_qwen3_reranker
from tokenizers import Tokenizer

from polyhead_model import CheckpointError, load_checkpoint
from polyhead_model.checkpoint import Checkpoint

PAIRS = [*zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True), ("what is a cat?", ""), ("", "yes\n")]


def encoded(checkpoint: Checkpoint, prompt: str | None = None, most: int | None = None) -> list[list[int]]:
    """What the server makes of pairs."""
    template = checkpoint.prompts.pair
    assert template is not None
    assert checkpoint.tokenizer_content is not None
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_content)
    tokenizer.enable_truncation(most or checkpoint.max_tokens)
    before = template.before if prompt is None else checkpoint.prompts.texts[prompt]
    return [tokenizer.encode(before + first + template.between + second).ids for first, second in PAIRS]


def scores(checkpoint: Checkpoint, rows: list[list[int]]) -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    with torch.no_grad():
        logits = checkpoint.encoder(ids, torch.tensor([len(row) for row in rows])).logits
    assert isinstance(logits, torch.Tensor)
    return logits


@pytest.mark.parametrize("max_tokens", [None, 300])
@pytest.mark.parametrize("kind", RERANKERS)
def test_scores_of_pairs(kind: str, max_tokens: int | None, tmp_path: Path) -> None:
    write_qwen3_reranker(tmp_path, kind, max_tokens=max_tokens)
    theirs = cross_encoder(tmp_path)

    checkpoint = load_checkpoint(tmp_path)

    assert checkpoint.left_out == ()
    assert checkpoint.max_tokens == (max_tokens or 512)
    assert [*checkpoint.prompts.texts] == ["web", "other"]
    for prompt in (None, "web", "other"):
        rows = encoded(checkpoint, prompt)
        assert (max(map(len, rows)) == checkpoint.max_tokens) == (max_tokens is not None)  # some are cut
        expected = theirs.predict(PAIRS, prompt_name=prompt, convert_to_tensor=True)
        torch.testing.assert_close(scores(checkpoint, rows)[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_the_recipe_of_the_model_card(tmp_path: Path) -> None:
    """Between the tokens of what precedes and follows, which are kept, and P(yes) of two words."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_qwen3_reranker(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    user, rest = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n"
    said = RERANKER_TEMPLATE[RERANKER_TEMPLATE.index("<|im_start|>") :].partition(user)[0] + user
    prefix, suffix = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (said, rest))
    expected = []
    for query, document in PAIRS:
        task = "<Instruct>: Given a web search query, retrieve passages"
        text = f"{task}\n<Query>: {query}\n<Document>: {document}"
        most = 300 - len(prefix) - len(suffix)
        ids = tokenizer(text, truncation=True, max_length=most, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prefix, *ids, *suffix]])).logits[0, -1]
        words = tokenizer.convert_tokens_to_ids(["no", "yes"])
        expected.append(logits[words].softmax(0)[1])

    checkpoint = load_checkpoint(tmp_path)

    found = scores(checkpoint, encoded(checkpoint, most=300)).sigmoid()[:, 0]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "token": ("1_LogitScore/config.json", {"true_token_id": -1}, "must be 0 or more, were (-1, "),
    "token beyond": (
        "1_LogitScore/config.json",
        {"true_token_id": 5000},
        "vocab_size must be above the token ids of LogitScore, 5000, was 274",
    ),
    "no token": ("1_LogitScore/config.json", {"true_token_id": "yes"}, "true_token_id must be an integer"),
    "input": (
        "1_LogitScore/config.json",
        {"module_input_name": "scores"},
        "module_input_name must be 'causal_logits', was 'scores'",
    ),
    "task": (
        "sentence_bert_config.json",
        {"transformer_task": "fill-mask", "modality_config": None, "module_output_name": "token_embeddings"},
        "modality_config must be ",
    ),
    "architecture": (
        "config.json",
        {"architectures": ["Qwen3Model"]},
        "architectures must name a …ForCausalLM",
    ),
    "type": ("config.json", {"model_type": "eurobert"}, "model_type must be one of qwen3 before LogitScore"),
    "arguments": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"chat_template": {"max_length": 8}}},
        "chat_template must have add_generation_prompt, enable_thinking alone, has max_length",
    ),
    "suffix": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"chat_template": {"restore_suffix": False}}},
        "restore_suffix must be true",
    ),
    "tied": ("config.json", {"tie_word_embeddings": False}, "the weights must hold lm_head.weight"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    file, changes, message = CHANGES[name]
    write_qwen3_reranker(tmp_path)
    said = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(said | changes))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{ query }}", "{{ query | trim }}", "and as they are, between texts that are always the same"),
        ("{{ query }}", "{{ query | tojson }}", "as they are"),
        ("{{ query }}", "{% if query %}{{ query }}.{% endif %}", "as they are"),
        ("{{ document }}", "", "as they are"),
        (
            "{{ document }}",
            "{{ document }}{{ task }}",
            "the role 'system' must change what precedes",
        ),
        ("{{ task }}", "{{ unknown }}", "cannot be rendered with a pair ('unknown' is undefined)"),
        ("{{ task }}", "{{ ''.__class__ }}", "cannot be rendered with a pair"),
        ("{{ task }}", "{{ 1 // 0 }}", "cannot be rendered with a pair"),
        ("{{ task }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered with a pair"),
        ("{{ task }}", "{% wrong %}", "cannot be read as a chat template"),
        (
            "{{ document }}<|im_end|>",
            "{{ document }}.<|im_end|>",
            "must begin with an added token, was '.<",
        ),
    ],
)
def test_templates_that_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    write_qwen3_reranker(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_text(path.read_text().replace(old, new))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(tmp_path)


def test_a_template_that_cannot_be_read(tmp_path: Path) -> None:
    write_qwen3_reranker(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read as text"):
        load_checkpoint(tmp_path)

    path.unlink()
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": [{"name": "default"}]}))
    with pytest.raises(CheckpointError, match="chat_template must be a text, was"):
        load_checkpoint(tmp_path)


def test_a_template_in_the_configuration_of_the_tokenizer_and_no_suffix(tmp_path: Path) -> None:
    write_qwen3_reranker(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}"
    )
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))

    checkpoint = load_checkpoint(tmp_path)

    pair = checkpoint.prompts.pair
    assert pair is not None
    assert (pair.before, pair.between, pair.after) == ("<query>", "<|im_end|><document>", "<|im_end|>")
    assert checkpoint.prompts.texts["other"] == "<system>Rank<|im_end|><query>"
    expected = cross_encoder(tmp_path).predict(PAIRS, convert_to_tensor=True)
    torch.testing.assert_close(scores(checkpoint, encoded(checkpoint))[:, 0], expected, rtol=1e-5, atol=1e-5)
