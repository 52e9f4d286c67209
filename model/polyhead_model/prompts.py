"""The prompts of sentence-transformers: what may be put before texts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from polyhead_model.checkpoint_files import CheckpointError, read_object
from polyhead_model.late_interaction import TextForm
from polyhead_model.pair_template import PairTemplate, read_pair_template

_NO_FORMS: Mapping[str, TextForm] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What may be put before texts."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    default: str = ""
    """The text that is put before every text unless a request says otherwise; may be empty."""
    forms: Mapping[str, TextForm] = field(default_factory=dict)
    """What else some of their names do, by name."""
    form: TextForm | None = None
    """What else is done by default."""
    pair: PairTemplate | None = None
    """What makes one text of a pair; a prompt takes the place of what precedes the first. None = nothing."""


def read_prompts(path: Path, name: str | None, forms: Mapping[str, TextForm] = _NO_FORMS) -> Prompts:
    """Read the prompts, beside those that have forms, and choose the default one.

    Args:
        path: The file that has them, if there is one.
        name: The default's; None = the file's own choice, empty = none.
        forms: What some names do.

    Raises:
        CheckpointError: They are not texts by name, or there is no such prompt.
    """
    config = read_object(path) if path.is_file() else {}
    given = config.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise CheckpointError(f"{path}: prompts must be texts by name, were {given!r}")
    prompts = dict.fromkeys(forms, "") | {name: text or "" for name, text in given.items()}
    if "" in prompts:
        raise CheckpointError(f"{path}: a prompt's name must not be empty: that stands for no prompt")
    known = ", ".join(map(repr, prompts)) or "none"
    wanted = config.get("default_prompt_name") if name is None else name
    default = prompts.get(wanted) if isinstance(wanted, str) else None
    if default is None and wanted not in (None, ""):
        what = "default_prompt_name" if name is None else "the prompt"
        raise CheckpointError(f"{path}: {what} must be one of prompts ({known}), was {wanted!r}")
    form = forms.get(wanted) if isinstance(wanted, str) else None
    return Prompts(texts=prompts, default=default or "", forms=dict(forms), form=form)


def in_pairs(prompts: Prompts, transformer: Path) -> Prompts:
    """Return the prompts of a CrossEncoder, which its chat template takes for instructions if it has one.

    Args:
        prompts: As they are stored.
        transformer: The folder of the transformer and its tokenizer.

    Raises:
        CheckpointError: The template is not supported.
    """
    for path in sorted(transformer.glob("sentence_*_config.json")):
        instructions = [text for text in dict.fromkeys([*prompts.texts.values(), prompts.default]) if text]
        templates = read_pair_template(transformer, path, read_object(path), instructions)
        if templates is not None:
            plain, *others = templates
            before = {"": plain.before} | {
                instruction: other.before for instruction, other in zip(instructions, others, strict=True)
            }
            return dataclasses.replace(
                prompts,
                texts={name: before[text] for name, text in prompts.texts.items()},
                default=before[prompts.default] if prompts.default else "",
                pair=plain,
            )
    return prompts


def without_pooled_prompts(path: Path, prompts: Prompts) -> tuple[Prompts, tuple[str, ...]]:
    """Leave out the prompts whose tokens would have to be left out of pooling; say which.

    Raises:
        CheckpointError: One of them is the default.
    """
    if prompts.default:
        raise CheckpointError(
            f"{path}: include_prompt must be true where there is a default prompt ({prompts.default!r}), was "
            "false: pooling without the prompt's tokens is not supported; leave the prompt out (--no-prompt)"
        )
    empty = {name: text for name, text in prompts.texts.items() if not text}
    others = ", ".join(name for name in prompts.texts if name not in empty)
    left_out = f"the prompts {others} are not served: pooling would have to leave their tokens out"
    return Prompts(texts=empty), (left_out,) if others else ()
