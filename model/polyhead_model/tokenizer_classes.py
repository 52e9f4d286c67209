"""Make one `tokenizer.json` of a folder's files, which tokenises as transformers does with all of them.

The release that is meant is transformers 5; tests compare with 5.23. Of `tokenizer.json`, its classes of
tokenizers take only the vocabulary, and build anew what is around it: normalizer, pre-tokenizer, template,
added tokens, and settings of the model. The server reads nothing but a `tokenizer.json`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, processors

from polyhead_model.checkpoint_files import CheckpointError, read_object
from polyhead_model.tokenizer_files import (
    ADDED_TOKENS,
    BUILT,
    SPECIAL_TOKENS,
    TOKENIZER,
    read_config,
    tokenizer_class,
    truncation_side,
)
from polyhead_model.tokenizer_steps import normalizer_of, pre_tokenizer_of

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT_TOKENS = (None, None, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_ROBERTA_TOKENS = ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>")
_DEFAULTS: Mapping[str, tuple[str | None, ...]] = {
    "AlbertTokenizer": ("[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"),
    "BertTokenizer": _BERT_TOKENS,
    "CamembertTokenizer": _ROBERTA_TOKENS,
    "DebertaV2Tokenizer": ("[CLS]", "[SEP]", *_BERT_TOKENS[2:]),
    "DistilBertTokenizer": _BERT_TOKENS,
    "GPT2Tokenizer": (*["<|endoftext|>"] * 3, None, None, None, None),
    "GemmaTokenizer": ("<bos>", "<eos>", "<unk>", None, "<pad>", None, "<mask>"),
    "MPNetTokenizer": ("<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"),
    "Qwen2Tokenizer": (None, "<|endoftext|>", "<|endoftext|>", None, "<|endoftext|>", None, None),
    "RobertaTokenizer": _ROBERTA_TOKENS,
    "XLMRobertaTokenizer": _ROBERTA_TOKENS,
}
"""The special tokens of the classes where no file names them, in the order of `_NAMED`."""

_UNUSED = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
"""What CamembertTokenizer adds where no file names additional tokens.

To a vocabulary that lacks them it would give ids that the encoder has no embeddings for.
"""

_HARD = (
    "The Cat sat on the mat.",
    "Café CAFÉ cafe\u0301 naïve İstanbul ß \ufb01 Ⅷ ²",
    "日本語のテキスト。中文 한국어 العربية हिन्दी",
    "a <mask> b [MASK] c<mask>d [UNK] <unk> [PAD] <pad> [CLS] <s> </s>x <|endoftext|>",
    "  two  spaces\tand a tab,\nlines \r\n and more   ",
    "\u00a0no-break\u2009thin\u3000wide\u200bnone\u200d\ufeff",
    "``quoted'' \"words\" don't we'll I'm 'x' -- \u2014 \u2026 (a,b) [c] {d} $5.00 50% #1 @you e=mc^2 a_b",
    "x" * 99 + " " + "y" * 101 + " " + "ab" * 150,
    "1234567890 3.14159 2024-01-02 12:34:56",
    "control\x01\x7f\u0085\u202e characters \ufffd",
    "😀👩\u200d👩\u200d👧 🇩🇪 z\u0335\u0321",
    "https://example.org/a?b=c&d=e#f C:\\path <b>html</b>",
    "ONE two OnE2three ŒUVRE ŁÓDŹ Σς ΑΣ",
    "\u2581low \u0120line ##ing",
    "",
    " ",
)
"""Strings for which tokenizers differ if parts of them do."""


_MOST_TOKENS = 100
_MOST_NAMED = 3


@dataclass(frozen=True)
class ServedTokenizer:
    """A tokenizer as the server gets it."""

    content: str
    """That of its `tokenizer.json`."""
    left_out: tuple[str, ...]
    """What the checkpoint's own `tokenizer.json` says, and is not followed, in words."""


def served_tokenizer(folder: Path, model_type: str, *, vocabulary: int | None = None) -> ServedTokenizer:
    """Make one `tokenizer.json` that tokenises as transformers does with a folder's files.

    The folder's own stays as it is if it does so.

    Args:
        folder: The checkpoint's folder, which has a tokenizer.json.
        model_type: The checkpoint's.
        vocabulary: How many token ids the encoder has embeddings for; added tokens beyond are left out,
            unless each text has them. None = for all.

    Raises:
        CheckpointError: A file cannot be read, or the class that is named cannot take this vocabulary.
    """
    served = _followed(folder, model_type)
    content = json.loads(served.content)
    template = json.dumps(content["post_processor"])
    beyond = [
        token
        for token in content["added_tokens"]
        if vocabulary is not None
        and token["id"] >= vocabulary
        and json.dumps(token["content"]) not in template
    ]
    if not beyond:
        return served
    content["added_tokens"] = [token for token in content["added_tokens"] if token not in beyond]
    names = ", ".join(token["content"] for token in beyond[:_MOST_NAMED]) + ", …" * (
        len(beyond) > _MOST_NAMED
    )
    said = f"the encoder has no embedding for {names}: in text, that is no token"
    return ServedTokenizer(json.dumps(content, ensure_ascii=False), (*served.left_out, said))


def _followed(folder: Path, model_type: str) -> ServedTokenizer:
    path, name = folder / TOKENIZER, tokenizer_class(folder, model_type)
    content = read_object(path)
    try:
        own = _parts(Tokenizer.from_str(json.dumps(content)))
        own["model"] |= {"dropout": None} if "dropout" in own["model"] else {}  # noise for training
        file = Tokenizer.from_str(json.dumps(own))
        served = _Files(folder, content, name).tokenizer(file)
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and panics
        raise CheckpointError(f"{path}: cannot be read as the tokenizer of {name} ({error})") from error
    parts = _parts(served)
    changed = [
        part for part in own if part not in ("decoder", "padding", "truncation") and parts[part] != own[part]
    ]
    direction = truncation_side(folder).capitalize()
    if (own["truncation"] or {"direction": "Right"})["direction"] != direction:
        own["truncation"] = {
            "direction": direction,
            "max_length": 512,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    elif not changed and not (isinstance(model := content["model"], dict) and model.get("dropout")):
        return ServedTokenizer(path.read_bytes().decode(), ())
    left_out: tuple[str, ...] = ()
    try:
        text = _difference(file, served)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # likewise
        raise CheckpointError(f"{path}: cannot tokenise as {name} does ({error})") from error
    if text is not None:
        left_out = (
            f"tokenizer.json is not followed in {', '.join(changed)}, as in transformers 5, where {name} "
            f"has its own: tokens differ for {text[:40]!r}, among others",
        )
    own |= {part: parts[part] for part in changed}
    return ServedTokenizer(json.dumps(own, ensure_ascii=False), left_out)


def _parts(tokenizer: Tokenizer) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    return parts


def _difference(one: Tokenizer, other: Tokenizer) -> str | None:
    """Return a text, or the first of two, of which two tokenizers make different tokens; None if none is."""
    for tokenizer in (one, other):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    added = [{token["content"]: token for token in _parts(each)["added_tokens"]} for each in (one, other)]
    differing = [token for token in added[0] | added[1] if added[0].get(token) != added[1].get(token)]
    for text in (*_HARD, *(f"a {token} b{token}c" for token in differing[:_MOST_TOKENS])):
        for pair in (None, "dog"):
            first, second = one.encode(text, pair), other.encode(text, pair)
            if (first.ids, first.type_ids) != (second.ids, second.type_ids):
                return text
    return None


class _Files:
    """A folder's files, read as transformers does.

    Args:
        folder: The folder.
        content: Its tokenizer.json.
        name: The class of its tokenizer.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any], name: str) -> None:
        self._name, self._content = name, content
        self._config: dict[str, Any] = dict(read_config(folder))
        decoder = self._config.pop("added_tokens_decoder", None)
        if (more := self._config.pop("additional_special_tokens", None)) is not None:
            self._config["extra_special_tokens"] = self._config.get("extra_special_tokens") or more
        if decoder is not None:
            self._added = {int(number): _added_token(token) for number, token in decoder.items()}
        else:  # what releases before 4.34 wrote
            self._read_older(folder)
        named = dict(zip(_NAMED, _DEFAULTS.get(name, [None] * len(_NAMED)), strict=True)) | self._config
        self._named = {
            key: self._special(key, token)
            for key, token in named.items()
            if key.endswith("_token") and isinstance(token, str | dict)
        }

    def _read_older(self, folder: Path) -> None:
        if (path := folder / SPECIAL_TOKENS).is_file():
            more = dict(read_object(path))
            extra = more.pop("additional_special_tokens", None)
            if extra is not None and "extra_special_tokens" not in self._config:
                more.setdefault("extra_special_tokens", extra)
            self._config |= more
        self._added = {}
        if (path := folder / ADDED_TOKENS).is_file():
            special = {_content(token) for key in _NAMED if (token := self._config.get(key))}
            special |= {_content(token) for token in self._config.get("extra_special_tokens") or ()}
            for token, number in read_object(path).items():
                is_special = token in special
                self._added[int(str(number))] = AddedToken(
                    token, normalized=not is_special, special=is_special
                )
        for entry in self._content.get("added_tokens", ()):
            self._added[entry["id"]] = _added_token(entry)

    def _special(self, key: str, token: Any) -> AddedToken:
        if not isinstance(token, str) or key not in _NAMED:
            return _added_token(token)
        is_mask = key == "mask_token" and self._name in ("CamembertTokenizer", "MPNetTokenizer")
        return AddedToken(token, lstrip=is_mask, normalized=self._name == "MPNetTokenizer", special=True)

    def tokenizer(self, file: Tokenizer) -> Tokenizer:
        """Return the tokenizer that transformers makes of `file`, the folder's own."""
        if self._name not in BUILT:
            tokenizer = Tokenizer.from_str(file.to_str())
            self._add_tokens(tokenizer)
            return tokenizer
        tokenizer = Tokenizer(self._model())
        if (normalizer := normalizer_of(self._name, self._config, self._content)) is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer_of(self._name, self._config)
        self._add_tokens(tokenizer)
        processor = self._post_processor(tokenizer, file.post_processor)
        if processor is not None:
            tokenizer.post_processor = processor
        return tokenizer

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        there = tokenizer.get_added_tokens_decoder().values()
        known = {repr(token) for token in there}
        added = [token for _, token in sorted(self._added.items()) if repr(token) not in known]
        contents = {token.content for token in (*there, *added)}
        extra = self._config.get("extra_special_tokens")
        if extra is None and self._name == "CamembertTokenizer":
            extra = [token for token in _UNUSED if tokenizer.token_to_id(token) is not None]
        others = extra.values() if isinstance(extra, dict) else extra or ()
        for token in (*self._named.values(), *map(_added_token, others)):
            if token.content not in contents:
                contents.add(token.content)
                added.append(token)
        named = {token.content for token in self._named.values()}
        for token in added:
            token.special = token.special or token.content in named
        tokenizer.add_tokens(added)
        if self._name == "Qwen2Tokenizer":  # all special ones once more, whatever their flags were
            contents = {*named, *(_content(token) for token in others)}
            tokenizer.add_tokens([AddedToken(content, special=True) for content in sorted(contents)])

    def _model(self) -> models.Model:
        model = self._content["model"]
        vocabulary: Any = model["vocab"]
        match self._name:
            case "BertTokenizer" | "DistilBertTokenizer" | "MPNetTokenizer":
                if isinstance(vocabulary, list):
                    vocabulary = {_content(token): number for number, token in enumerate(vocabulary)}
                return models.WordPiece(vocabulary, unk_token=self._named["unk_token"].content)
            case "GPT2Tokenizer" | "Qwen2Tokenizer" | "RobertaTokenizer":
                return models.BPE(
                    vocabulary, self._merges(), continuing_subword_prefix="", end_of_word_suffix=""
                )
            case "GemmaTokenizer":
                word = self._named["unk_token"].content
                return models.BPE(
                    vocabulary, self._merges(), unk_token=word, fuse_unk=True, byte_fallback=True
                )
        scored = [(token, score) for token, score in vocabulary]
        if self._name == "DebertaV2Tokenizer":
            entry = self._named["unk_token"].content, 0.0
            number = scored.index(entry) if entry in scored else self._config.get("unk_id", 1)
            return models.Unigram(scored, number, byte_fallback=False)
        unknown = {"AlbertTokenizer": 1, "XLMRobertaTokenizer": 3}.get(self._name)
        if unknown is None:
            words = [token for token, _ in scored]
            name = self._named["unk_token"].content
            unknown = words.index(name) if name in words else 0
        return models.Unigram(scored, unknown, byte_fallback=False)

    def _merges(self) -> list[tuple[str, str]]:
        merges = self._content["model"]["merges"]
        return [tuple(each.split(" ") if isinstance(each, str) else each) for each in merges]

    def _post_processor(self, tokenizer: Tokenizer, own: Any) -> Any:
        def named(key: str) -> tuple[str, int]:
            content = self._named[f"{key}_token"].content
            number = tokenizer.token_to_id(content)
            if number is None:
                raise ValueError(f"{key}_token must be a token, was {content!r}")
            return content, number

        def template(single: list[str], pair: list[str], *tokens: tuple[str, int]) -> Any:
            return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(tokens))

        match self._name:
            case "BertTokenizer" | "DebertaV2Tokenizer" | "DistilBertTokenizer":
                first, last = named("cls"), named("sep")
                single = [f"{first[0]}:0", "$A:0", f"{last[0]}:0"]
                return template(single, [*single, "$B:1", f"{last[0]}:1"], first, last)
            case "AlbertTokenizer" if own is None:
                first, last = ("[CLS]", named("cls")[1]), ("[SEP]", named("sep")[1])
                single = ["[CLS]:0", "$A:0", "[SEP]:0"]
                return template(single, [*single, "$B:1", "[SEP]:1"], first, last)
            case "AlbertTokenizer" | "GPT2Tokenizer" | "GemmaTokenizer" | "Qwen2Tokenizer":
                return own
            case "MPNetTokenizer":
                return processors.RobertaProcessing(named("sep"), named("cls"), True, False)
            case "RobertaTokenizer":
                flags = self._config.get("trim_offsets", True), self._config.get("add_prefix_space", False)
                return processors.RobertaProcessing(named("sep"), named("cls"), *flags)
        first, last = named("bos"), named("eos")
        single = [first[0], "$A", last[0]]
        return template(single, [*single, last[0], "$B", last[0]], first, last)


def _added_token(token: Any) -> AddedToken:
    """Return a token that a file has as an object, or as the content of a special one."""
    if isinstance(token, str):
        return AddedToken(token, special=True)
    return AddedToken(**{key: value for key, value in token.items() if key not in ("__type", "id")})


def _content(token: Any) -> str:
    """Return the text of a token that a file has as it is, as an object, or with a score."""
    content = token["content"] if isinstance(token, dict) else token[0] if isinstance(token, list) else token
    return str(content)
