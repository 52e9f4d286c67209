"""Check that `tokenizer.json` alone tokenises as transformers does with all of a folder's files.

The server reads only `tokenizer.json`. transformers also reads `tokenizer_config.json`, which wins where the
two disagree. Such a folder is rejected, because its text would get different token ids.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, read_object

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"

_CLASSES: Mapping[str, str] = {
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""The tokenizer class that transformers uses for a model type if tokenizer_config.json names none."""

_BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_ROBERTA = ("RobertaTokenizer",)

_REMEDY = (
    "make the two files agree, or let transformers do it: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)


def tokenizer_limit(folder: Path) -> int | None:
    """Return the length, in tokens, at which the tokenizer truncates text; None if it does not.

    Raises:
        CheckpointError: The limit is below 1.
    """
    path = folder / CONFIG
    limit = _read_config(folder).get("model_max_length")  # about 10³⁰ means no limit
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
    """Return whether transformers gives an encoder the token types of its tokenizer; None if releases differ.

    Only pairs of texts have types other than 0.
    """
    config = _read_config(folder)
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return True if _class_of(config, model_type) in _BERT else None


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
    """Check that a folder's tokenizer.json alone tokenises as transformers does.

    Raises:
        CheckpointError: tokenizer_config.json disagrees, or needs something that the server does not support.
    """
    tokenizer = read_object(folder / TOKENIZER)
    path, config = folder / CONFIG, _read_config(folder)
    name = _class_of(config, model_type)
    if name in _BERT:
        _check_normalizer(path, config, tokenizer)
    elif name in _ROBERTA:
        _check_prefix_space(path, config, tokenizer)
    if config.get("split_special_tokens"):
        raise CheckpointError(
            f"{path}: split_special_tokens must be false, was true: special tokens in text are taken as such"
        )
    _check_added_tokens(path, tokenizer, _named(config))
    # Older releases of transformers wrote separate files, which newer ones still read.
    if (older := folder / SPECIAL_TOKENS).is_file():
        _check_added_tokens(older, tokenizer, _named(read_object(older)))
    if (older := folder / ADDED_TOKENS).is_file():
        _check_added_tokens(older, tokenizer, read_object(older))
    truncation = tokenizer.get("truncation")
    side = truncation.get("direction", "Right") if isinstance(truncation, dict) else "Right"
    side = str(config.get("truncation_side", side)).lower()
    if side != "right":
        raise CheckpointError(
            f"{path}: truncation_side must be 'right', was {side!r}: text is cut at its end only"
        )


def _read_config(folder: Path) -> dict[str, object]:
    path = folder / CONFIG
    return read_object(path) if path.is_file() else {}


def _class_of(config: Mapping[str, object], model_type: str) -> str:
    # Since transformers 5, only the fast classes exist, under the names of the slow ones.
    return str(config.get("tokenizer_class") or _CLASSES[model_type]).removesuffix("Fast")


def _check_normalizer(path: Path, config: Mapping[str, object], tokenizer: Mapping[str, object]) -> None:
    """Compare the normalizer with the three flags that BERT tokenizers read from tokenizer_config.json."""
    normalizer = tokenizer.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
        raise CheckpointError(
            f"{path.with_name(TOKENIZER)}: the normalizer must be a BertNormalizer, as transformers gives "
            f"a tokenizer of this class, was {kind}: {_REMEDY}, or name 'PreTrainedTokenizerFast' as "
            f"tokenizer_class in {CONFIG}"
        )
    lowercase = config.get("do_lower_case", True)
    strip = config.get("strip_accents")
    wanted = {
        "do_lower_case": (lowercase, normalizer.get("lowercase", True)),
        "strip_accents": (
            lowercase if strip is None else strip,
            normalizer.get("lowercase", True)
            if normalizer.get("strip_accents") is None
            else normalizer["strip_accents"],
        ),
        "tokenize_chinese_chars": (
            config.get("tokenize_chinese_chars", True),
            normalizer.get("handle_chinese_chars", True),
        ),
    }
    for flag, (said, done) in wanted.items():
        _check_flag(path, flag, bool(said), bool(done), given=config.get(flag) is not None)


def _check_prefix_space(path: Path, config: Mapping[str, object], tokenizer: Mapping[str, object]) -> None:
    """Compare add_prefix_space, which RoBERTa tokenizers read from tokenizer_config.json."""
    pre_tokenizer = tokenizer.get("pre_tokenizer")
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "ByteLevel":
        said = bool(config.get("add_prefix_space", False))
        done = bool(pre_tokenizer.get("add_prefix_space", False))
        _check_flag(path, "add_prefix_space", said, done, given="add_prefix_space" in config)


def _check_flag(path: Path, flag: str, said: bool, done: bool, *, given: bool) -> None:
    if said != done:
        how = "" if given else " (what transformers takes where it is not given)"
        raise CheckpointError(
            f"{path}: {flag} is {str(said).lower()}{how}, but tokenizer.json does as if it were "
            f"{str(done).lower()}: {_REMEDY}"
        )


def _check_added_tokens(path: Path, tokenizer: Mapping[str, object], named: Iterable[str]) -> None:
    """Reject tokens that the other files add: only transformers would recognise them in text."""
    known = _added(tokenizer)
    for token in named:
        if token not in known:
            raise CheckpointError(
                f"{path}: adds the token {token!r}, which is not among the added_tokens of tokenizer.json: "
                f"{_REMEDY}"
            )


def _named(config: Mapping[str, object]) -> Iterable[str]:
    tokens = [config.get(f"{name}_token") for name in ("unk", "sep", "pad", "cls", "mask", "bos", "eos")]
    for several in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        value = config.get(several)
        tokens += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content


def _added(tokenizer: Mapping[str, object]) -> dict[str, int]:
    added = tokenizer.get("added_tokens")
    return {
        token["content"]: token["id"]
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
    }
