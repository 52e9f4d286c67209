"""jina-embeddings-v3 as it is published, with adapters for tasks, held to formulas written anew here."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.formulas import Formulas, Weights, attend, compare, layer_norm, linear, rotated_halves, write
from torch import Tensor

from polyhead_model import CheckpointError, load_checkpoint, read_checkpoint_info

D, H, L, FEED, WORDS, RANK = 12, 3, 2, 20, 40, 2
TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
CONFIG: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"],
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
    "model_type": "xlm-roberta",
    "vocab_size": WORDS,
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": FEED,
    "hidden_act": "gelu",
    "max_position_embeddings": 60,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 50.0,
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": 3,
    "lora_rank": RANK,
    "lora_dropout_p": 0.0,
    "truncate_dim": None,
}


def shapes(adapted: bool = True) -> dict[str, list[int]]:
    """Of the tensors, which all matrices but those of norms have adapters for."""
    tables = {"embeddings.word_embeddings": (WORDS, D), "embeddings.token_type_embeddings": (1, D)}
    matrices = {"pooler.dense": (D, D)}
    norms = ["emb_ln"]
    for layer in range(L):
        start = f"encoder.layers.{layer}."
        matrices |= {f"{start}mixer.Wqkv": (3 * D, D), f"{start}mixer.out_proj": (D, D)}
        matrices |= {f"{start}mlp.fc1": (FEED, D), f"{start}mlp.fc2": (D, FEED)}
        norms += [f"{start}norm1", f"{start}norm2"]
    named = {f"{name}.bias": [rows] for name, (rows, _) in matrices.items()}
    for name, (rows, columns) in {**tables, **matrices}.items():
        if not adapted:
            named[f"{name}.weight"] = [rows, columns]
            continue
        stored, count = f"{name}.parametrizations.weight.", len(TASKS)
        named[f"{stored}original"] = [rows, columns]
        by_row, by_column = [count, rows, RANK], [count, RANK, columns]
        first, second = (by_row, by_column) if name in tables else (by_column, by_row)
        named |= {f"{stored}0.lora_A": first, f"{stored}0.lora_B": second}
    named |= {f"{norm}.{kind}": [D] for norm in norms for kind in ("weight", "bias")}
    return {f"roberta.{name}": shape for name, shape in named.items()}


def formulas_of(task: str | None) -> Formulas:
    """Those of jinaai/xlm-roberta-flash-implementation, with the adapter of a task."""

    def formulas(stored: Weights, config: Mapping[str, Any], ids: list[int]) -> tuple[Tensor, list[Tensor]]:
        weights = _adapted({name.removeprefix("roberta."): each for name, each in stored.items()}, task)
        types = weights["embeddings.token_type_embeddings.weight"]
        x = weights["embeddings.word_embeddings.weight"][ids] + types[0]
        x = layer_norm(x, weights, "emb_ln", 1e-5)
        width = D // H
        angles = config["rotary_emb_base"] ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        attentions = []
        for layer in range(L):
            at = f"encoder.layers.{layer}."
            parts = linear(x, weights, f"{at}mixer.Wqkv").chunk(3, dim=1)
            heads, rows = [], []
            for head in range(H):
                q, k, v = (part[:, head * width : (head + 1) * width] for part in parts)
                result, row = attend(rotated_halves(q, angles), rotated_halves(k, angles), v)
                heads.append(result)
                rows.append(row)
            attentions.append(torch.stack(rows))
            attended = linear(torch.cat(heads, 1), weights, f"{at}mixer.out_proj")
            x = layer_norm(x + attended, weights, f"{at}norm1", 1e-5)
            hidden = linear(x, weights, f"{at}mlp.fc1")
            hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
            x = layer_norm(x + linear(hidden, weights, f"{at}mlp.fc2"), weights, f"{at}norm2", 1e-5)
        return x, attentions

    return formulas


def _adapted(weights: Weights, task: str | None) -> Weights:
    """Return the weights of a task, number by number of what an adapter adds."""
    named = {}
    for name, tensor in weights.items():
        module, stored, part = name.partition(".parametrizations.weight.")
        if stored and part != "original":
            continue
        if stored and task is not None:
            first, second = (weights[f"{module}{stored}0.lora_{each}"][TASKS.index(task)] for each in "AB")
            of_rows, of_columns = (first, second) if "embeddings" in module else (second, first)
            added = [torch.outer(of_rows[:, rank], of_columns[rank]) for rank in range(RANK)]
            named[f"{module}.weight"] = tensor + torch.stack(added).sum(0) * 3 / 2
            continue
        named[f"{module}.weight" if stored else name] = tensor
    return named


@pytest.mark.parametrize("task", [None, *TASKS])
def test_a_published_folder(task: str | None, tmp_path: Path) -> None:
    write(tmp_path, CONFIG, shapes())

    compare(tmp_path, formulas_of(task), task=task)
    left_out = load_checkpoint(tmp_path, task=task).left_out[:-1]
    said = (
        "the adapters for retrieval.query, retrieval.passage, text-matching are not served: choose one with"
    )
    assert left_out == (() if task else (f"{said} --task",))


def test_a_folder_that_has_no_adapters(tmp_path: Path) -> None:
    write(tmp_path, CONFIG | {"lora_adaptations": None}, shapes(adapted=False))

    compare(tmp_path, formulas_of(None))


def test_a_folder_whose_adapters_were_merged_before(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, shapes(adapted=False))

    compare(tmp_path, formulas_of(None))
    with pytest.raises(CheckpointError, match=r"task must be left out, .* weights without adapters \("):
        load_checkpoint(tmp_path, task=TASKS[0])


def sentence_files(folder: Path) -> None:
    """What published folders have beside."""
    modules = [
        {"path": "", "type": "custom_st.Transformer", "kwargs": ["task"]},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "1_Pooling").mkdir()
    prompts = {"retrieval.query": "Represent the query: ", "text-matching": ""}
    for name, content in (
        ("config.json", CONFIG),
        ("modules.json", modules),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None}),
    ):
        (folder / name).write_text(json.dumps(content))


def test_the_prompt_of_a_task_is_the_default(tmp_path: Path) -> None:
    sentence_files(tmp_path)

    def default(**options: Any) -> str:
        return read_checkpoint_info(tmp_path, **options).prompts.default

    assert default() == default(task="retrieval.passage") == ""
    assert default(task="retrieval.query") == "Represent the query: "
    assert default(task="retrieval.query", prompt_name="") == ""
    assert default(task="text-matching", prompt_name="retrieval.query") == "Represent the query: "
    assert read_checkpoint_info(tmp_path).encoder.pooling == "mean"


@pytest.mark.parametrize(
    ("changes", "task", "message"),
    [
        ({}, "query", "task must be one of retrieval.query, retrieval.passage, text-matching, was 'query'"),
        (
            {"lora_adaptations": None},
            "text-matching",
            "task must be left out, was 'text-matching': the checkpoint has no adapters",
        ),
        ({"lora_adaptations": "query"}, None, "lora_adaptations must list the names of tasks, was 'query'"),
        ({"load_trained_adapters": False}, None, "load_trained_adapters must be true, was false"),
        ({"lora_rank": 0}, None, "lora_rank must be at least 1 and lora_alpha a number"),
        ({"lora_alpha": float("nan")}, None, "lora_alpha a number below a million, were 2 and nan"),
        ({"position_embedding_type": "alibi"}, None, "position_embedding_type must be 'rotary', was 'alibi'"),
        ({"rotary_emb_interleaved": True}, None, "rotary_emb_interleaved must be false, was true"),
        ({"rotary_emb_base": None}, None, "rope_theta must be a number, was None"),
        ({"rotary_emb_dim": 2}, None, "rotary_emb_dim must be 4, was 2"),
        ({"truncate_dim": 6}, None, "truncate_dim must be null, was 6"),
        ({"hidden_act": "gelu_fast"}, None, "hidden_act must be one of gelu,"),
        (
            {"auto_map": {"AutoModel": "modeling.Other"}},
            None,
            "auto_map must not name an AutoModel, was 'modeling.Other'",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], task: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(tmp_path, task=task)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_B",
            None,
            "the weights must hold encoder.la",
        ),
        ("embeddings.word_embeddings.parametrizations.weight.0.lora_A", (3, 2, WORDS), "must have the sha"),
        (
            "encoder.layers.0.mixer.Wqkv.parametrizations.weight.original",
            (5,),
            "must have the shape [36, 12]",
        ),
    ],
)
def test_adapters_that_do_not_fit(
    name: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path
) -> None:
    write(tmp_path, CONFIG, shapes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"roberta.{name}"]
    if shape is not None:
        tensors[f"roberta.{name}"] = torch.zeros(shape)
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(tmp_path, task=TASKS[0])


def test_adapters_in_folders_are_said(tmp_path: Path) -> None:
    (tmp_path / "retrieval_query").mkdir()
    (tmp_path / "retrieval_query" / "adapter_config.json").write_text("{}")
    config = CONFIG | {"model_type": "jina_embeddings_v3", "auto_map": {}, "rope_theta": 20000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))

    (said,) = read_checkpoint_info(tmp_path).left_out
    assert said.startswith("the adapters retrieval_query are not served: merge one")
    message = (
        r"task must be left out, .* not merged here \(.*/retrieval_query/adapter_config\.json\), merge one"
    )
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint_info(tmp_path, task="retrieval_query")
