"""Make one text of the two of a pair, as the chat template of a reranker does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from polyhead_model.checkpoint_files import CheckpointError, read_object

TEMPLATE = "chat_template.jinja"
_TOKENIZER_CONFIG = "tokenizer_config.json"

_PROBES = (
    ("\x02query\x03", "\x02document\x03"),
    (" \t\n\"a' <b>&amp; \\n é {{ b }} \n", "\n\n{% c %} d\r\n "),
    ("", ""),
    ("a " * 400, "b\n" * 400),
)
"""Pairs that a template must put into its text as they are; the first tells where."""

_VARIABLES = ("add_generation_prompt", "enable_thinking")


@dataclass(frozen=True, kw_only=True)
class PairTemplate:
    """What stands around and between the texts of a pair, which are one text to the tokenizer."""

    before: str
    between: str
    after: str
    """Kept where a text is cut: its tokens follow every text."""


def read_pair_template(
    folder: Path, transformer: Path, settings: Mapping[str, object], instructions: Sequence[str]
) -> list[PairTemplate] | None:
    """Read the chat template of a CrossEncoder, which has the roles `query` and `document`.

    Args:
        folder: That of the tokenizer.
        transformer: The file that has `settings`, for messages.
        settings: What sentence-transformers says of the transformer.
        instructions: Prompts, which the template gets as the role `system`.

    Returns:
        The template without an instruction and with each of them; None if pairs are not put into one.

    Raises:
        CheckpointError: The template does not put the texts as they are between texts that are always the
            same, or arguments of it are not supported.
    """
    modes = settings.get("modality_config")
    message = modes.get("message") if isinstance(modes, dict) else None
    if message is None:
        return None
    is_flat = isinstance(message, dict) and message.get("format") == "flat"
    template = _Template(folder, _variables(transformer, settings), is_flat=is_flat)
    plain, *others = (template.around(instruction) for instruction in (None, *instructions))
    for other in others:
        if (other.between, other.after) != (plain.between, plain.after):
            raise CheckpointError(
                f"{template.path}: the role 'system' must change what precedes the query alone, "
                f"changed {other.between!r} or {other.after!r}"
            )
    return [plain, *others]


def _variables(path: Path, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of the template that are stored."""
    stored = settings.get("processing_kwargs")
    given = dict(stored.get("chat_template") or {}) if isinstance(stored, dict) else {}
    if given.pop("restore_suffix", True) is not True:
        raise CheckpointError(f"{path}: restore_suffix must be true, was false: what is cut keeps its suffix")
    if others := given.keys() - set(_VARIABLES):
        raise CheckpointError(
            f"{path}: chat_template must have {', '.join(_VARIABLES)} alone, has {', '.join(sorted(others))}"
        )
    return given


class _Template:
    """A chat template, rendered as transformers does, but that an undefined name is an error."""

    def __init__(self, folder: Path, variables: Mapping[str, object], *, is_flat: bool) -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.path = folder / TEMPLATE
        config = read_object(folder / _TOKENIZER_CONFIG) if (folder / _TOKENIZER_CONFIG).is_file() else {}
        if self.path.is_file():
            try:
                source: object = self.path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{self.path}: cannot be read as text ({error})") from error
        else:
            self.path, source = folder / _TOKENIZER_CONFIG, config.get("chat_template")
        if not isinstance(source, str):
            raise CheckpointError(f"{self.path}: chat_template must be a text, was {source!r:.100}")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            extensions=["jinja2.ext.loopcontrols"],
        )
        self._is_flat = is_flat
        self._variables: dict[str, object] = {"add_generation_prompt": False}
        for name, token in config.items():
            if name.endswith("_token") and (content := _content(token)) is not None:
                self._variables[name] = content
        self._variables |= {"tools": None, "documents": None, **variables}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: cannot be read as a chat template ({error})") from error

    def around(self, instruction: str | None) -> PairTemplate:
        """Return what the template puts around texts."""
        found: PairTemplate | None = None
        for query, document in _PROBES:
            text = self._render(instruction, query, document)
            if found is None:
                before, met, rest = text.partition(query)
                between, also, after = rest.partition(document)
                if not (met and also):
                    raise self._refused(query, document, text)
                found = PairTemplate(before=before, between=between, after=after)
            if text != f"{found.before}{query}{found.between}{document}{found.after}":
                raise self._refused(query, document, text)
        if found is None:
            raise AssertionError("there are probes")
        return found

    def _render(self, instruction: str | None, query: str, document: str) -> str:
        roles = {"query": query, "document": document}
        given = roles if instruction is None else {"system": instruction, **roles}
        messages = [
            {"role": role, "content": text if self._is_flat else [{"type": "text", "text": text}]}
            for role, text in given.items()
        ]
        try:
            return self._template.render(messages=messages, **self._variables)
        except Exception as error:  # whatever its expressions raise
            raise CheckpointError(f"{self.path}: cannot be rendered with a pair ({error})") from error

    def _refused(self, query: str, document: str, text: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: the chat template must put the texts of the roles 'query' and 'document', in this "
            f"order and as they are, between texts that are always the same, made of {query!r:.40} and "
            f"{document!r:.40}: {text!r:.400}"
        )


def _content(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def with_suffix(path: Path, tokenizer: str, after: str) -> str:
    """Return a `tokenizer.json` that gives every text the tokens of a suffix, and no others.

    A tokenizer keeps what it adds where it cuts a text.

    Args:
        path: The folder, for messages.
        tokenizer: The content of the file.
        after: The suffix.

    Raises:
        CheckpointError: The suffix does not begin with an added token, so that its tokens would depend on the
            text before it.
    """
    content: dict[str, Any] = json.loads(tokenizer)
    content["post_processor"] = None
    bare = Tokenizer.from_str(json.dumps(content))
    bare.no_truncation()
    bare.no_padding()
    encoding = bare.encode(after, add_special_tokens=False)
    if encoding.ids and not any(
        after.startswith(token["content"]) and not token["lstrip"] and not token["single_word"]
        for token in content["added_tokens"]
    ):
        raise CheckpointError(
            f"{path}: what follows the document must begin with an added token, was {after!r:.200}"
        )
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    name = "suffix"
    suffix = [{"SpecialToken": {"id": name, "type_id": 0}}] if encoding.ids else []
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece, *suffix],
        "pair": [piece, {"Sequence": {"id": "B", "type_id": 0}}, *suffix],
        "special_tokens": {name: {"id": name, "ids": encoding.ids, "tokens": encoding.tokens}}
        if encoding.ids
        else {},
    }
    return json.dumps(content, ensure_ascii=False)
