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
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "esm": "EsmTokenizer",
    "gpt2": "GPT2Tokenizer",
    "modernbert": "PreTrainedTokenizerFast",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""The tokenizer class that transformers uses for a model type if tokenizer_config.json names none."""

_BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
_BYTE_LEVEL = ("GPT2Tokenizer", "RobertaTokenizer")
_ROBERTA_TEMPLATE = ("MPNetTokenizer", "RobertaTokenizer")

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
    for config in (_read_config(folder), read_object(older) if older.is_file() else {}):
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
    """Return whether transformers gives an encoder the token types of its tokenizer; None if releases differ.

    Only pairs of texts have types other than 0.
    """
    config = _read_config(folder)
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return True if _class_of(config, model_type) in ("BertTokenizer", "ElectraTokenizer") else None


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
    # Whatever is named, transformers uses one class for ModernBERT.
    name = _CLASSES[model_type] if model_type == "modernbert" else _class_of(config, model_type)
    if name in _BERT:
        _check_normalizer(path, config, tokenizer)
    elif name in _BYTE_LEVEL:
        _check_byte_level(path, config, tokenizer)
    elif name == "AlbertTokenizer":
        _check_albert(path, config, tokenizer)
    elif name == "EsmTokenizer":
        raise CheckpointError(
            f"{path}: tokenizer_class must be 'PreTrainedTokenizerFast' where there is a tokenizer.json, was "
            f"{config.get('tokenizer_class')!r}: EsmTokenizer reads vocab.txt instead"
        )
    if name in _ROBERTA_TEMPLATE:
        first, last = _token(config, "cls_token", "<s>"), _token(config, "sep_token", "</s>")
        _check_templates(path, tokenizer, (first, "A", last), (first, "A", last, last, "B", last))
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


def _check_byte_level(path: Path, config: Mapping[str, object], tokenizer: Mapping[str, object]) -> None:
    """Compare what byte-level BPE does before its model; add_prefix_space is read from the configuration."""
    pre_tokenizer = tokenizer.get("pre_tokenizer")
    kind = pre_tokenizer.get("type") if isinstance(pre_tokenizer, dict) else pre_tokenizer
    if tokenizer.get("normalizer") is not None or not isinstance(pre_tokenizer, dict) or kind != "ByteLevel":
        raise CheckpointError(
            f"{path.with_name(TOKENIZER)}: must have no normalizer and the pre_tokenizer ByteLevel, as "
            f"transformers gives a tokenizer of this class, has {tokenizer.get('normalizer')} and {kind}: "
            f"{_REMEDY}, or name 'PreTrainedTokenizerFast' as tokenizer_class in {CONFIG}"
        )
    said = bool(config.get("add_prefix_space", False))
    done = bool(pre_tokenizer.get("add_prefix_space", False))
    _check_flag(path, "add_prefix_space", said, done, given="add_prefix_space" in config)


def _check_albert(path: Path, config: Mapping[str, object], tokenizer: Mapping[str, object]) -> None:
    """Compare normalizers and prefix space, which ALBERT tokenizers build from tokenizer_config.json."""
    normalizer = tokenizer.get("normalizer")
    parts = normalizer.get("normalizers") if isinstance(normalizer, dict) else None
    done = [
        (part.get("pattern"), part.get("content")) if part.get("type") == "Replace" else part.get("type")
        for part in (parts if isinstance(parts, list) else [normalizer])
        if isinstance(part, dict)
    ]
    wanted: list[object] = [({"String": quotes}, '"') for quotes in ("``", "''")]
    wanted += [] if config.get("keep_accents", False) else ["NFKD", "StripAccents"]
    wanted += ["Lowercase"] if config.get("do_lower_case", True) else []
    wanted += ["Precompiled"] if "Precompiled" in done else []
    remedy = f"{_REMEDY}, or name 'PreTrainedTokenizerFast' as tokenizer_class in {CONFIG}"
    if done != wanted:
        raise CheckpointError(
            f"{path}: do_lower_case and keep_accents stand for the normalizers {wanted}, but tokenizer.json "
            f"has {done}: {remedy}"
        )
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    if (found := _metaspace(tokenizer)) != scheme:
        raise CheckpointError(
            f"{path}: add_prefix_space stands for the pre_tokenizers WhitespaceSplit and Metaspace with "
            f"prepend_scheme {scheme!r}, but tokenizer.json has {found!r}: {remedy}"
        )
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("unk_id") != 1 or model.get("byte_fallback"):
        raise CheckpointError(
            f"{path.with_name(TOKENIZER)}: the model must be Unigram with the unknown token 1 and without "
            f"byte_fallback, as transformers gives a tokenizer of this class: {remedy}"
        )


def _metaspace(tokenizer: Mapping[str, object]) -> object:
    """Return the prepend_scheme of the pre-tokenizers WhitespaceSplit, Metaspace; else what there is."""
    pre_tokenizer = tokenizer.get("pre_tokenizer")
    parts = pre_tokenizer.get("pretokenizers") if isinstance(pre_tokenizer, dict) else None
    match parts:
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", **rest}]:
            return rest.get("prepend_scheme", "always" if rest.get("add_prefix_space") else "never")
    return pre_tokenizer


def _check_templates(
    path: Path, tokenizer: Mapping[str, object], single: tuple[str, ...], pair: tuple[str, ...]
) -> None:
    """Compare the special tokens around one text and around two with those that transformers adds."""
    if (done := _templates(tokenizer)) != (single, pair):
        raise CheckpointError(
            f"{path}: stands for the special tokens {_shown(single)} and {_shown(pair)}, but tokenizer.json "
            f"adds {' and '.join(map(_shown, done))}: {_REMEDY}"
        )


def _shown(template: Iterable[str]) -> str:
    return repr(" ".join(template))


def _templates(tokenizer: Mapping[str, object]) -> tuple[tuple[str, ...], ...]:
    """Return the special tokens around texts A, and A and B."""
    processor = tokenizer.get("post_processor")
    match processor:
        case {"type": "RobertaProcessing", "cls": [str(first), _], "sep": [str(last), _]}:
            return (first, "A", last), (first, "A", last, last, "B", last)
        case {"type": "BertProcessing", "cls": [str(first), _], "sep": [str(last), _]}:
            return (first, "A", last), (first, "A", last, "B", last)
        case {"type": "TemplateProcessing", "single": list(single), "pair": list(pair)}:
            return tuple(tuple(map(_piece, each)) for each in (single, pair))
        case {"type": "Sequence", "processors": list(several)}:
            adding = [each for each in several if not isinstance(each, dict) or each["type"] != "ByteLevel"]
            return _templates({"post_processor": adding[0]}) if len(adding) == 1 else (("A",), ("A", "B"))
    return ("A",), ("A", "B")


def _piece(piece: object) -> str:
    match piece:
        case {"SpecialToken": {"id": str(token)}} | {"Sequence": {"id": str(token)}}:
            return token
    return str(piece)


def _token(config: Mapping[str, object], name: str, default: str) -> str:
    token = config.get(name)
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else default


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
