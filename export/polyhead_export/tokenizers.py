"""The tokenizer of a family, and whether it fits the encoder."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polyhead_export.errors import ExportError
from polyhead_model import EncoderConfig
from polyhead_model.checkpoint_files import read_object
from polyhead_model.late_interaction import TextForm
from polyhead_model.pair_template import PairTemplate
from polyhead_model.tokenizer_files import TOKENIZER, largest_token_id, largest_token_type


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """The tokenizer of an encoder that takes token ids."""

    path: Path
    """A `tokenizer.json` of the `tokenizers` library."""
    content: str | None = None
    """What is served instead of the file's content."""
    max_tokens: int
    """The longest text; a longer one is rejected, or truncated where the request asks for it."""
    prompt: str = ""
    """Put before each text by the server, unless a request names one of `prompts`."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What requests may have put before their texts instead, by name."""
    forms: Mapping[str, TextForm] = field(default_factory=dict)
    """What else some of these names do."""
    form: TextForm | None = None
    """What else is done to texts of requests that name none."""
    pair: PairTemplate | None = None
    """What makes one text of a pair, but for the suffix, which is in `content`; None = the tokenizer does."""
    gives_token_types: bool | None = True
    """Whether the encoder gets the token types of the file's template; None if that is not known, so that
    pairs of texts, which alone have several, are not served."""

    def text(self) -> str:
        """Return the `tokenizer.json` that is served."""
        return self.path.read_bytes().decode() if self.content is None else self.content

    def parts(self) -> dict[str, object]:
        """Return what is in it.

        Raises:
            CheckpointError: The file is not JSON.
        """
        return read_object(self.path) if self.content is None else json.loads(self.content)


def check_tokenizer(tokenizer: TokenizerFile, config: EncoderConfig) -> None:
    """Check that the encoder has an embedding for every token id and every token type of the tokenizer.

    Raises:
        ExportError: It does not, or it takes no token ids.
        CheckpointError: The file is not JSON.
    """
    if config.vocabulary is None:
        raise ExportError(f"{tokenizer.path}: an encoder of vectors takes no tokenizer")
    contents = tokenizer.parts()
    largest = largest_token_id(contents)
    if largest >= config.vocabulary:
        raise ExportError(
            f"{tokenizer.path}: token ids must be at most {config.vocabulary - 1}, as the encoder has "
            f"{config.vocabulary} token embeddings, but the largest is {largest}"
        )
    largest_type = largest_token_type(contents, pair=False) or 0
    if config.types and largest_type >= config.types:
        raise ExportError(
            f"{tokenizer.path}: token types must be at most {config.types - 1}, as the encoder has "
            f"{config.types}, but the template gives a text the type {largest_type}"
        )


def takes_pairs(tokenizer: TokenizerFile, config: EncoderConfig) -> bool:
    """Return whether two texts are joined in a way that the encoder can have been trained with.

    Raises:
        CheckpointError: The file is not JSON.
    """
    if tokenizer.pair is not None:
        return True
    largest_type = largest_token_type(tokenizer.parts(), pair=True)
    if not largest_type or not config.types or tokenizer.gives_token_types is False:
        return largest_type is not None
    return tokenizer.gives_token_types is True and largest_type < config.types


def describe_tokenizer(tokenizer: TokenizerFile, config: EncoderConfig) -> dict[str, Any]:
    """Return what the manifest has of a tokenizer."""
    return {
        "file": TOKENIZER,
        "sha256": hashlib.sha256(tokenizer.text().encode()).hexdigest(),
        "max_tokens": tokenizer.max_tokens,
        "prompt": tokenizer.prompt,
        "prompts": dict(tokenizer.prompts),
        "forms": {name: asdict(form) for name, form in tokenizer.forms.items()},
        "form": None if tokenizer.form is None else asdict(tokenizer.form),
        "types": tokenizer.gives_token_types is not False,
        # A server that does not know of templates must take no pairs.
        "pairs": tokenizer.pair is None and takes_pairs(tokenizer, config),
        "pair_template": None
        if tokenizer.pair is None
        else {"before": tokenizer.pair.before, "between": tokenizer.pair.between},
    }
