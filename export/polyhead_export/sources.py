"""Where the encoders of an export come from: presets and descriptions with random weights, or a checkpoint.

Encoders are built one at a time, when their turn comes: a sweep of head counts need not fit memory.
"""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from polyhead_export.errors import ExportError
from polyhead_export.family import TokenizerFile, check_name
from polyhead_model import PRESETS, Encoder, EncoderConfig, load_checkpoint, read_description


@dataclass(frozen=True, kw_only=True)
class Built:
    """An encoder, ready to be exported."""

    encoder: Encoder
    tokenizer: TokenizerFile | None = None
    left_out: tuple[str, ...] = ()
    """What of a checkpoint cannot be served, in words."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One family to export.

    Raises:
        ExportError: The name is not valid; said here, before anything is built.
    """

    name: str
    build: Callable[[], Built]

    def __post_init__(self) -> None:
        check_name(self.name)


def from_preset(
    preset: str,
    *,
    name: str | None = None,
    heads: Sequence[int] = (),
    layers: int | None = None,
    mask: bool = False,
    seed: int = 0,
) -> list[Source]:
    """The preset, or one family for each head count.

    Args:
        preset: A key of `polyhead_model.PRESETS`.
        name: The family's name; the preset's where it is None. With head counts, `-h1` … is added.
        heads: Head counts to build instead of the preset's own. At the preset's width, a head is D / H wide.
        layers: Another number of layers.
        mask: The graphs take an arbitrary mask.
        seed: Of the random weights.

    Raises:
        ExportError: There is no such preset, it cannot have that many heads or layers, or be called so.
    """
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ExportError(f"the preset must be one of {', '.join(sorted(PRESETS))}, was {preset!r}{hint}")
    if len(set(heads)) != len(heads):
        raise ExportError(f"head counts must differ from each other, were {', '.join(map(str, heads))}")
    base = PRESETS[preset]
    if layers is not None:
        base = _changed(base, layers=layers)
    if mask:
        base = _changed(base, mask_input=True)
    name = name or preset
    if not heads:
        return [_random(name, base, seed)]
    return [
        _random(f"{name}-h{count}", _changed(base, heads=count, head_width=None), seed) for count in heads
    ]


def from_description(file: Path, name: str, *, seed: int = 0) -> Source:
    """An encoder that a JSON file describes: an object with the fields of `EncoderConfig`.

    Args:
        file: Such as `{"d_model": 768, "heads": 12, "layers": 1}`.
        name: The family's name.
        seed: Of the random weights.

    Raises:
        ExportError: The name is not valid.
        DescriptionError: The file does not describe an encoder.
        OSError: It cannot be read.
    """
    return _random(name, read_description(file), seed)


def from_checkpoint(folder: Path, name: str, *, prompt: bool = True, strict: bool = False) -> Source:
    """A trained encoder from a Hugging Face folder.

    Reading the folder waits for `build`, which raises `polyhead_model.CheckpointError` where it cannot, and
    `ExportError` where `strict` forbids it.

    Args:
        folder: The checkpoint.
        name: The family's name.
        prompt: Put sentence-transformers' default prompt before each text, where the folder has one.
        strict: Refuse a checkpoint of which a part cannot be served.
    """

    def build() -> Built:
        checkpoint = load_checkpoint(folder, prompt=prompt)
        if strict and checkpoint.left_out:
            missing = "; ".join(checkpoint.left_out)
            raise ExportError(f"{folder}: with --strict, all of a checkpoint must be served, but {missing}")
        tokenizer = None
        if checkpoint.tokenizer is not None:
            tokenizer = TokenizerFile(
                path=checkpoint.tokenizer, max_tokens=checkpoint.max_tokens, prompt=checkpoint.prompt
            )
        return Built(encoder=checkpoint.encoder, tokenizer=tokenizer, left_out=checkpoint.left_out)

    return Source(name=name, build=build)


def _changed(config: EncoderConfig, **changes: int | bool | None) -> EncoderConfig:
    try:
        return dataclasses.replace(config, **changes)  # type: ignore[arg-type]  # fields of several types
    except ValueError as error:
        raise ExportError(str(error)) from error


def _random(name: str, config: EncoderConfig, seed: int) -> Source:
    def build() -> Built:
        # A generator for this alone would not reach the layers' own initialisation.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Built(encoder=Encoder(config))

    return Source(name=name, build=build)
