"""Small random checkpoints of late interaction, and the formulas of PyLate as a plain loop."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.checkpoints import BERT_TOKENS, bert_tokenizer, random_model, write_tokenizer_files
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

WIDTH = 6
QUERY_LENGTH, DOCUMENT_LENGTH = 12, 20
PREFIXES = {"query": "[Q] ", "document": "[D] "}
SETTINGS: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": QUERY_LENGTH,
    "document_length": DOCUMENT_LENGTH,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
}
"""As PyLate writes them."""


def late_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer of letters that lower-cases, with PyLate's prefixes as added tokens."""
    tokenizer = bert_tokenizer(lowercase=True)
    tokenizer.add_tokens(list(PREFIXES.values()))
    # PyLate leaves the limits of its last text.
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=7, pad_id=4, pad_token="[MASK]")
    return tokenizer


def late_model(tokenizer: Tokenizer) -> tuple[Any, Tensor]:
    """A BERT with random weights, and those of the projection, [V, D]."""
    model = random_model("bert", vocab_size=tokenizer.get_vocab_size())
    return model, torch.randn(WIDTH, 16, generator=torch.Generator().manual_seed(3)) * 0.3


def write_transformer(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the files of the transformer."""
    model.save_pretrained(folder)
    # A model_max_length that is, as PyLate leaves it, that of its last text.
    files = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 7}
    write_tokenizer_files(folder, "bert", tokenizer, files)


def write_dense(folder: Path, weight: Tensor, **config: Any) -> None:
    """Write a dense layer without a bias."""
    folder.mkdir(parents=True)
    described = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
        **config,
    }
    (folder / "config.json").write_text(json.dumps(described))
    save_file({"linear.weight": weight.contiguous()}, folder / "model.safetensors")


_MODULES = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Dense": "pylate.models.Dense.Dense",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask",
    "Normalize": "sentence_transformers.models.Normalize",
}


def write_modules(folder: Path, **paths: str) -> None:
    """Write modules.json: the folder of each kind of module, in order."""
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": _MODULES[kind]}
        for at, (kind, path) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def write_pylate(folder: Path, model: Any, weight: Tensor, tokenizer: Tokenizer, **settings: Any) -> None:
    """Write a checkpoint as PyLate does."""
    folder.mkdir(parents=True, exist_ok=True)
    write_transformer(folder, model, tokenizer)
    write_dense(folder / "1_Dense", weight, use_residual=False)
    write_modules(folder, Transformer="", Dense="1_Dense")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 7, "do_lower_case": False})
    )
    config: dict[str, Any] = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config | SETTINGS | settings))


def token_ids(tokenizer: Tokenizer, text: str, kind: str) -> tuple[list[int], int]:
    """Token ids of a query or a document as PyLate makes them, and how many are attended to."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.enable_truncation((QUERY_LENGTH if kind == "query" else DOCUMENT_LENGTH) - 1)
    first, *rest = plain.encode(text).ids
    ids = [first, tokenizer.token_to_id(PREFIXES[kind]) or 0, *rest]
    filled = [4] * (QUERY_LENGTH - len(ids)) if kind == "query" else []
    return ids + filled, len(ids)


def vectors(model: Any, weight: Tensor, ids: Sequence[int], attended: int) -> Tensor:
    """The vectors [T, V] of a text alone, unpadded."""
    mask = torch.zeros(1, len(ids), dtype=torch.long)
    mask[:, :attended] = 1
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([list(ids)]), attention_mask=mask).last_hidden_state[0]
        return F.normalize(output @ weight.T, dim=-1)


def scored(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The positions of a document that are compared."""
    skipped = {tokenizer.token_to_id(word) for word in string.punctuation} - {None}
    return [at for at, number in enumerate(ids) if number not in skipped]


assert BERT_TOKENS["mask"] == "[MASK]"  # the token 4
