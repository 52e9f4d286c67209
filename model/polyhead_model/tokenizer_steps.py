"""What transformers' classes of tokenizers do to a text before their model: normalise it, and cut it up."""

import base64
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Qwen2Tokenizer takes for a word, whatever tokenizer.json says; Qwen's files say the same."""

_BERT = ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")
_PLAIN: Mapping[str, normalizers.Normalizer | None] = {
    "GPT2Tokenizer": None,
    "GemmaTokenizer": normalizers.Replace(" ", "\u2581"),
    "Qwen2Tokenizer": normalizers.NFC(),
    "RobertaTokenizer": None,
}
"""The normalizers that no setting changes."""


def normalizer_of(
    name: str, config: Mapping[str, Any], content: Mapping[str, Any]
) -> normalizers.Normalizer | None:
    """Return the normalizer of a class; None if it has none.

    Args:
        name: The class, without `Fast`.
        config: The settings of tokenizer_config.json.
        content: tokenizer.json.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _BERT:
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True),
        )
    if name == "DebertaV2Tokenizer":
        spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
        tidied = [spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
        lowered = [normalizers.Lowercase()] if config.get("do_lower_case", False) else []
        return normalizers.Sequence([*lowered, *tidied])
    charsmap = _charsmap(content)
    precompiled = [] if charsmap is None else [normalizers.Precompiled(charsmap)]
    if name != "AlbertTokenizer":
        return precompiled[0] if precompiled else None
    steps: list[normalizers.Normalizer] = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    if not config.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, *precompiled])


def _charsmap(content: Mapping[str, Any]) -> bytes | None:
    """Return the first map of characters of SentencePiece that tokenizer.json has."""
    normalizer = content.get("normalizer") or {}
    for step in normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]:
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def pre_tokenizer_of(name: str, config: Mapping[str, Any]) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of a class, with the settings of tokenizer_config.json."""
    if name in _BERT:
        return pre_tokenizers.BertPreTokenizer()
    match name:
        case "GPT2Tokenizer" | "RobertaTokenizer":
            return pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
        case "GemmaTokenizer":
            return pre_tokenizers.Split(" ", "merged_with_previous")
        case "Qwen2Tokenizer":
            prefix = bool(config.get("add_prefix_space"))
            words = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
            spaced = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
            return pre_tokenizers.Sequence([words, spaced])
    is_deberta = name == "DebertaV2Tokenizer"
    is_prefixed = config.get("add_prefix_space", True)
    spaces = pre_tokenizers.Metaspace(
        prepend_scheme="always" if is_prefixed else "first" if is_deberta else "never"
    )
    if is_deberta:
        marks = [pre_tokenizers.Punctuation("isolated")] if config.get("split_by_punct") else []
        return pre_tokenizers.Sequence([*marks, spaces])
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
