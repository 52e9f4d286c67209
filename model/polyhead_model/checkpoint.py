"""Load trained weights from a local Hugging Face folder.

Only safetensors, as unpickling can run any code; but for the heads of BGE-M3, which have no other format.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from polyhead_model import bge_m3
from polyhead_model.checkpoint_files import CheckpointError, inside, read_object
from polyhead_model.describe import parameters
from polyhead_model.encoder import Encoder
from polyhead_model.hf_adapters import merge_adapter
from polyhead_model.hf_tensors import (
    check_tensors,
    convert,
    some,
    with_contacts,
    with_frequencies,
    with_score,
)
from polyhead_model.huggingface import CheckpointInfo, read_checkpoint_info
from polyhead_model.pair_template import with_suffix
from polyhead_model.prompts import Prompts
from polyhead_model.sentence_modules import check_lower_case
from polyhead_model.task_heads import Pooling
from polyhead_model.tokenizer_classes import served_tokenizer
from polyhead_model.tokenizer_files import gives_token_types

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

_OTHER_TOKENIZERS = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained encoder with its tokenizer and limits."""

    encoder: Encoder
    """The encoder, in evaluation mode and float32."""
    model_type: str
    """The model_type of config.json: "bert", "roberta", …"""
    tokenizer: Path | None
    """Its tokenizer.json, if there is one."""
    tokenizer_content: str | None
    """What is served of it, which tokenises as transformers does with all of the folder's files."""
    gives_token_types: bool | None
    """Whether the encoder gets the tokenizer's token types; None if releases of transformers differ."""
    max_tokens: int
    """The longest text, in tokens; at most the model's positions."""
    prompts: Prompts
    """What sentence-transformers may put before texts."""
    left_out: tuple[str, ...]
    """The parts of the checkpoint that cannot be served, in words, such as a task head."""


def load_checkpoint(
    folder: Path | str,
    *,
    prompt_name: str | None = None,
    task: str | None = None,
    pooling: Pooling | None = None,
    normalise: bool = False,
) -> Checkpoint:
    """Load an encoder from a local Hugging Face or sentence-transformers folder.

    Args:
        folder: A folder with config.json and either model.safetensors, or model.safetensors.index.json and
            its shards. The modules.json of sentence-transformers is read where there is one.
        prompt_name: The name of the prompt to use by default, among those of sentence-transformers; None
            means that of the task, or the checkpoint's own choice, and empty no prompt.
        task: The task whose adapter is merged into the weights, of a checkpoint that has several; None means
            none.
        pooling: The pooling of a checkpoint that does not say how to pool.
        normalise: Whether to scale the vectors that are pooled by `pooling` to length 1.

    Raises:
        CheckpointError: A file is missing, damaged, not supported, or a pickle.
    """
    info = read_checkpoint_info(
        Path(folder), prompt_name=prompt_name, task=task, pooling=pooling, normalise=normalise
    )
    text = (
        None
        if info.tokenizer is None
        else served_tokenizer(info.folder, info.model_type, vocabulary=info.encoder.vocabulary)
    )
    if text is not None:
        check_lower_case(info.folder, json.loads(text.content))
    content = None if text is None else text.content
    if content is not None and info.prompts.pair is not None:
        content = with_suffix(info.folder, content, info.prompts.pair.after)
    tensors = _read_tensors(info.folder)
    source = with_score(info, merge_adapter(info, _encoder_tensors(info, tensors)))
    _check_size(info, source)
    with torch.device("meta"):  # do not allocate or initialise: every parameter is assigned
        encoder = Encoder(with_contacts(info, with_frequencies(info, source), source))
    state = convert(info, encoder, source) | _read_dense(info) | _read_m3(info)
    encoder.load_state_dict(state, assign=True)
    return Checkpoint(
        encoder=encoder.eval(),
        model_type=info.model_type,
        tokenizer=info.tokenizer,
        tokenizer_content=content,
        gives_token_types=gives_token_types(info.folder, info.model_type),
        max_tokens=info.max_tokens,
        prompts=info.prompts,
        left_out=(
            *_head(info, tensors),
            *info.left_out,
            *(_other_tokenizer(info) if text is None else text.left_out),
        ),
    )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, from one file or from the shards of an index."""
    if (folder / WEIGHTS).is_file():
        return _read_file(folder / WEIGHTS)
    index = folder / INDEX
    if index.is_file():
        files = read_object(index).get("weight_map")
        if not isinstance(files, dict):
            raise CheckpointError(f"{index}: weight_map must be an object, was {files!r}")
        tensors: dict[str, Tensor] = {}
        for path in sorted({inside(index, name) for name in files.values()}):
            tensors |= _read_file(path)
        return tensors
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder}: weights must be safetensors, were {', '.join(pickles)}: unpickling a file can run "
            "any code; if you trust it, convert it with transformers' save_pretrained"
        )
    raise CheckpointError(f"{folder}: {WEIGHTS} or {INDEX} must be there, neither is")


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: must be a safetensors file ({error})") from error


def _encoder_tensors(info: CheckpointInfo, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors of encoder and classifier, under the names without the encoder's prefix."""
    prefix = info.dialect.prefix
    if any(name.startswith(prefix) for name in tensors):
        served = info.head is not None or info.encoder.splade is not None
        tensors = {
            name.removeprefix(prefix): t for name, t in tensors.items() if served or name.startswith(prefix)
        }
    return {
        # Early BERT checkpoints call a norm's weight and bias gamma and beta.
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): t
        for name, t in tensors.items()
    }


def _head(info: CheckpointInfo, tensors: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors that belong to a task head that is not served."""
    if info.head is not None or info.encoder.splade is not None:
        return []
    prefix = info.dialect.prefix
    head = [name for name in tensors if not name.startswith(prefix)]
    if not head or len(head) == len(tensors):
        return []
    return [f"the task head is not served ({some(sorted(head))})"]


def _other_tokenizer(info: CheckpointInfo) -> list[str]:
    if info.tokenizer is not None:
        return []
    found = ", ".join(name for name in _OTHER_TOKENIZERS if (info.folder / name).is_file())
    remedy = (
        f"transformers makes one of {found}: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )
    if info.model_type == "esm":
        remedy = "docs/encoders.md shows how to make one of vocab.txt"
    remedy = f"; {remedy}" if found else ""
    return [f"text is not served, only token ids: there is no tokenizer.json{remedy}"]


def _check_size(info: CheckpointInfo, source: Mapping[str, Tensor]) -> None:
    """Reject a configuration much larger than the weights, before modules are built for it."""
    # Dense layers have files of their own.
    of_files: dict[str, Any] = {
        **{"pooling": None, "dense": (), "normalise": False, "truncate_dim": None, "matryoshka": None},
        **{"token_vectors": None, "lexical": None},
        **({} if info.head else {"classifier": None}),
    }
    encoder = dataclasses.replace(info.encoder, **of_files)
    described, held = parameters(encoder), sum(tensor.numel() for tensor in source.values())
    if described > 2 * held:
        raise CheckpointError(
            f"{info.folder}: config.json describes an encoder of {described:,} parameters, "
            f"but the weights hold {held:,}"
        )


def _read_dense(info: CheckpointInfo) -> dict[str, Tensor]:
    """Read the dense layers of sentence-transformers."""
    state: dict[str, Tensor] = {}
    width = info.encoder.d_model
    pools = info.encoder.pooling is not None or info.encoder.token_vectors is None
    module = "pooler" if pools else "token_head"
    files = {f"{module}.dense.{number}": file for number, file in enumerate(info.dense)}
    if info.score is not None:
        files = {f"classifier.{name}": file for name, file in files.items()} | {"classifier": info.score}
    for place, file in files.items():
        folder, layer = file.folder, file.layer
        if file.in_features != width:
            raise CheckpointError(
                f"{folder / 'config.json'}: in_features must be {width}, the width of what it gets, "
                f"was {file.in_features}"
            )
        expected = {"linear.weight": torch.Size((layer.width, width))}
        if layer.bias:
            expected["linear.bias"] = torch.Size((layer.width,))
        found = _read_checked(folder, expected)
        if file.norm is not None:
            shape = torch.Size((layer.width,))
            found |= _read_checked(file.norm, {"norm.weight": shape, "norm.bias": shape})
        if file is info.score:
            found = {name.replace("linear", "out"): tensor for name, tensor in found.items()}
        state |= {f"{place}.{name}": tensor for name, tensor in found.items()}
        width = layer.width
    return state


def _read_m3(info: CheckpointInfo) -> dict[str, Tensor]:
    """Read the heads of BGE-M3, the only pickles that are read: as tensors alone, which runs no code."""
    state: dict[str, Tensor] = {}
    encoder = info.encoder
    heads: dict[str, tuple[str, int]] = {}
    if encoder.lexical is not None:
        heads[bge_m3.LEXICAL] = ("lexical.linear", 1)
    if encoder.token_vectors is not None and encoder.token_vectors.skips_first:
        heads[bge_m3.VECTORS] = ("token_head.dense.0.linear", encoder.token_vector_size)
    for file, (place, width) in heads.items():
        path = info.folder / file
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged pickle makes the reader raise
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{path}: must hold tensors alone ({reason})") from error
        if not isinstance(tensors, dict) or not all(isinstance(each, Tensor) for each in tensors.values()):
            raise CheckpointError(f"{path}: must hold tensors by name")
        shapes = {"weight": torch.Size((width, encoder.d_model)), "bias": torch.Size((width,))}
        state |= {f"{place}.{name}": tensor for name, tensor in _checked(path, shapes, tensors).items()}
    return state


def _read_checked(folder: Path, expected: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    return _checked(folder, expected, _read_tensors(folder))


def _checked(
    path: Path, expected: Mapping[str, torch.Size], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return copies in fp32 of tensors that have the names and shapes expected."""
    check_tensors(path, expected, tensors)
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
