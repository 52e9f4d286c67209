"""Where the encoders of an export come from: presets and descriptions with random weights, or a checkpoint.

Encoders are built one at a time, when their turn comes: a sweep of head counts need not fit memory.
"""

import dataclasses
import difflib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from polyhead_export.errors import ExportError
from polyhead_export.family import TokenizerFile, check_name
from polyhead_model import PRESETS, Encoder, EncoderConfig, load_checkpoint


@dataclass(frozen=True, kw_only=True)
class Source:
    """One family to export.

    Raises:
        ExportError: The name is not valid; said here, before anything is built.
    """

    name: str
    build: Callable[[], tuple[Encoder, TokenizerFile | None]]

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
        ExportError: The file does not describe an encoder.
        OSError: It cannot be read.
    """
    try:
        fields = json.loads(file.read_bytes())
    except ValueError as error:
        raise ExportError(f"--encoder must be a JSON file, {file} is none: {error}") from error
    if not isinstance(fields, dict):
        raise ExportError(f"--encoder must hold a JSON object, {file} does not")
    known = [field.name for field in dataclasses.fields(EncoderConfig)]
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ExportError(f"{file}: there is no field {field!r} of an encoder{hint}")
    try:
        config = EncoderConfig(**fields)
    except (TypeError, ValueError) as error:
        missing = [name for name in ("d_model", "heads", "layers") if name not in fields]
        problem = f"{', '.join(missing)} must be given" if missing else str(error)
        raise ExportError(f"{file}: {problem}") from error
    return _random(name, config, seed)


def from_checkpoint(folder: Path, name: str) -> Source:
    """A trained encoder from a Hugging Face folder.

    Reading the folder waits for `build`, which raises `polyhead_model.CheckpointError` where it cannot.
    """

    def build() -> tuple[Encoder, TokenizerFile | None]:
        checkpoint = load_checkpoint(folder)
        tokenizer = None
        if checkpoint.tokenizer is not None and checkpoint.max_tokens is not None:
            tokenizer = TokenizerFile(path=checkpoint.tokenizer, max_tokens=checkpoint.max_tokens)
        return checkpoint.encoder, tokenizer

    return Source(name=name, build=build)


def _changed(config: EncoderConfig, **changes: int | bool | None) -> EncoderConfig:
    try:
        return dataclasses.replace(config, **changes)  # type: ignore[arg-type]  # fields of several types
    except ValueError as error:
        raise ExportError(str(error)) from error


def _random(name: str, config: EncoderConfig, seed: int) -> Source:
    def build() -> tuple[Encoder, None]:
        # A generator for this alone would not reach the layers' own initialisation.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Encoder(config), None

    return Source(name=name, build=build)
