"""Read what the files of a folder's tokenizer say, and check that all of it can be served."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from polyhead_model.checkpoint_files import CheckpointError, read_object

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"

BUILT = (
    "AlbertTokenizer",
    "BertTokenizer",
    "CamembertTokenizer",
    "DebertaV2Tokenizer",
    "DistilBertTokenizer",
    "GPT2Tokenizer",
    "GemmaTokenizer",
    "MPNetTokenizer",
    "Qwen2Tokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
)
"""The classes that take only the vocabulary of tokenizer.json, see `tokenizer_classes`."""

FROM_FILE = ("PreTrainedTokenizer", "TokenizersBackend")
"""Those that take all of it; the former stands for transformers 4's PreTrainedTokenizerFast."""

_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(
        ("ElectraTokenizer", "LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"),
        "BertTokenizer",
    ),
    **dict.fromkeys(
        ("BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), "RobertaTokenizer"
    ),
}
"""What transformers 5 has as other names of a class."""

_CLASSES: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "esm": "EsmTokenizer",
    "esmc": "EsmcTokenizer",
    "eurobert": "TokenizersBackend",
    "gemma3_text": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    "neobert": "TokenizersBackend",
    "new": "TokenizersBackend",
    "nomic_bert": "BertTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""The tokenizer class that transformers uses for a model type if no file names one."""


def tokenizer_limit(folder: Path) -> int | None:
    """Return the length, in tokens, at which the tokenizer truncates text; None if it does not.

    Raises:
        CheckpointError: The limit is below 1.
    """
    path = folder / CONFIG
    config = read_config(folder)
    limit = config.get("model_max_length", config.get("max_len"))  # about 10³⁰ means no limit
    if not isinstance(limit, int | float) or limit == math.inf:
        return None
    if not limit >= 1:  # also catches NaN
        raise CheckpointError(f"{path}: model_max_length must be at least 1, was {limit}")
    return int(limit)


def largest_token_id(tokenizer: Mapping[str, object]) -> int:
    """Return the largest token id of the contents of a `tokenizer.json`; -1 if it has none."""
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    ids = list(_added(tokenizer).values())
    if isinstance(words, dict):
        ids += [number for number in words.values() if isinstance(number, int)]
    elif isinstance(words, list):  # Unigram: pairs of token and score, indexed by id
        ids.append(len(words) - 1)
    return max(ids, default=-1)


def token_id(tokenizer: Mapping[str, object], token: object) -> int | None:
    """Return the id of a token of the contents of a `tokenizer.json`; None if it is none."""
    if (number := _added(tokenizer).get(str(token))) is not None:
        return number
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, list):  # Unigram: pairs of token and score, indexed by id
        words = {pair[0]: number for number, pair in enumerate(words) if isinstance(pair, list) and pair}
    number = words.get(token) if isinstance(words, dict) else None
    return number if isinstance(number, int) else None


def mask_token(folder: Path) -> str | None:
    """Return the token that stands for one that is hidden, as a folder's files name it; None if none does."""
    older = folder / SPECIAL_TOKENS
    for config in (read_config(folder), read_object(older) if older.is_file() else {}):
        if named := _token(config, "mask_token", ""):
            return named
    added = _added(read_object(folder / TOKENIZER))
    return next((token for token in ("[MASK]", "<mask>") if token in added), None)


def largest_token_type(tokenizer: Mapping[str, object], *, pair: bool) -> int | None:
    """Return the largest token type that the contents of a `tokenizer.json` give to a text, or to a pair.

    Returns:
        The type; None for a pair if nothing would stand between its texts, so that no encoder can have been
        trained with such pairs.
    """
    return _largest_type(tokenizer.get("post_processor"), "pair" if pair else "single")


def _largest_type(processor: object, template: str) -> int | None:
    if not isinstance(processor, dict):
        return None if template == "pair" else 0
    kind = processor.get("type")
    if kind == "TemplateProcessing":
        pieces = processor.get(template)
        kinds = [
            (name, piece[name])
            for piece in (pieces if isinstance(pieces, list) else [])
            if isinstance(piece, dict)
            for name in piece
        ]
        types = [said.get("type_id", 0) for _, said in kinds if isinstance(said, dict)]
        if template == "pair" and not any(name == "SpecialToken" for name, _ in kinds):
            return None
        return max((number for number in types if isinstance(number, int)), default=0)
    if kind == "Sequence":
        parts = processor.get("processors")
        found = [_largest_type(part, template) for part in (parts if isinstance(parts, list) else [])]
        return max((number for number in found if number is not None), default=None)
    if kind == "BertProcessing" and template == "pair":
        return 1
    return 0 if template == "single" or kind == "RobertaProcessing" else None


def gives_token_types(folder: Path, model_type: str) -> bool | None:
    """Return whether transformers gives an encoder the token types of its tokenizer.

    Only pairs of texts have types other than 0.

    Returns:
        Whether it does; None if transformers 4, which may have trained it, differs from 5.
    """
    config = read_config(folder)
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    name = tokenizer_class(folder, model_type)
    # Only transformers 5 writes a backend.
    if name in ("AlbertTokenizer", "PreTrainedTokenizer") and "backend" not in config:
        return None
    return name in ("BertTokenizer", "DebertaV2Tokenizer")


def lowercases(tokenizer: Mapping[str, object]) -> bool:
    """Return whether the contents of a `tokenizer.json` lowercase text."""
    normalizer = tokenizer.get("normalizer")
    parts: list[object] = [normalizer]
    if isinstance(normalizer, dict) and isinstance(normalizer.get("normalizers"), list):
        parts += normalizer["normalizers"]
    return any(
        isinstance(part, dict) and (part.get("type") == "Lowercase" or part.get("lowercase") is True)
        for part in parts
    )


def check_tokenizer(folder: Path, model_type: str) -> None:
    """Check that the server can tokenise as transformers does with a folder's files.

    Raises:
        CheckpointError: The files name a class, or a way to tokenise, that is not supported.
    """
    path, config = folder / CONFIG, read_config(folder)
    name = tokenizer_class(folder, model_type)
    if name not in BUILT and name not in FROM_FILE:
        raise CheckpointError(
            f"{path}: tokenizer_class must be one of {', '.join((*BUILT, *FROM_FILE))}, was {name!r}, whose "
            f"code is not there to be followed: if {TOKENIZER} has all that it does, name "
            "'PreTrainedTokenizerFast' instead"
        )
    for field in ("split_special_tokens", "fast_tokenizer_files", "init_inputs"):
        if config.get(field):
            raise CheckpointError(
                f"{path}: {field} must be left out, was {config[field]!r}: it is not supported"
            )
    truncation_side(folder)


def truncation_side(folder: Path) -> Literal["left", "right"]:
    """Return the side on which long texts are cut.

    Raises:
        CheckpointError: It is neither.
    """
    truncation = read_object(folder / TOKENIZER).get("truncation")
    own = truncation.get("direction", "right") if isinstance(truncation, dict) else "right"
    side = read_config(folder).get("truncation_side", str(own).lower())
    for known in ("left", "right"):
        if side == known:
            return known
    raise CheckpointError(f"{folder / CONFIG}: truncation_side must be 'left' or 'right', was {side!r}")


def read_config(folder: Path) -> dict[str, object]:
    """Return the contents of tokenizer_config.json; nothing if there is none."""
    path = folder / CONFIG
    return read_object(path) if path.is_file() else {}


def tokenizer_class(folder: Path, model_type: str) -> str:
    """Return the class that transformers 5 gives a folder's tokenizer, without the suffix Fast."""
    if model_type == "modernbert":  # whatever is named
        return "TokenizersBackend"
    model = folder / "config.json"
    named = read_config(folder).get("tokenizer_class")
    if named is None and model.is_file():
        named = read_object(model).get("tokenizer_class")
    name = str(named or _CLASSES[model_type]).removesuffix("Fast")
    return _ALIASES.get(name, name)


def _token(config: Mapping[str, object], name: str, default: str) -> str:
    token = config.get(name)
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else default


def _added(tokenizer: Mapping[str, object]) -> dict[str, int]:
    added = tokenizer.get("added_tokens")
    return {
        token["content"]: token["id"]
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
    }
