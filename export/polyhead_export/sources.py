"""Sources of encoders to export: presets and descriptions with random weights, and checkpoints.

Encoders are built lazily, one at a time, so that a sweep of heads need not fit into memory.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyhead_export.errors import ExportError
from polyhead_export.family import check_name
from polyhead_export.memory import check_memory
from polyhead_export.tokenizers import TokenizerFile
from polyhead_model import (
    PRESETS,
    Encoder,
    EncoderConfig,
    load_checkpoint,
    read_checkpoint_info,
    read_description,
)
from polyhead_model.description import near
from polyhead_model.head_choices import HeadChoice
from polyhead_model.task_heads import Pooling


@dataclass(frozen=True, kw_only=True)
class Built:
    """An encoder that is ready for export."""

    encoder: Encoder
    model_type: str | None = None
    """Of a checkpoint: the `model_type` of its config.json."""
    tokenizer: TokenizerFile | None = None
    left_out: tuple[str, ...] = ()
    """The parts of a checkpoint that cannot be served, in words."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One family to export.

    Raises:
        ExportError: The name is not valid; checked before anything is built.
    """

    name: str
    build: Callable[[], Built]

    def __post_init__(self) -> None:
        check_name(self.name)


def from_preset(
    preset: str,
    *,
    name: str | None = None,
    heads: Sequence[HeadChoice] = (),
    layers: int | None = None,
    mask: bool = False,
    head_mask: bool = False,
    seed: int = 0,
) -> list[Source]:
    """Return the source for a preset, or one source for each choice of heads.

    Args:
        preset: A key of `polyhead_model.PRESETS`.
        name: The family's name; None means the preset's. With heads, `-h1`, `-h8-g2` … is appended.
        heads: The heads to build instead of the preset's own. D stays.
        layers: The number of layers; None means the preset's.
        mask: Whether the graphs take an arbitrary mask.
        head_mask: Whether the graphs take a factor for each head.
        seed: The seed of the random weights.

    Raises:
        ExportError: There is no such preset, or it cannot have these heads or layers, or that name.
    """
    if preset not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        raise ExportError(f"the preset must be one of {known}, was {preset!r}{near(preset, PRESETS)}")
    if len(set(heads)) != len(heads):
        raise ExportError(f"--heads must differ from each other, were {', '.join(map(str, heads))}")
    base = PRESETS[preset]
    if layers is not None:
        base = _changed(base, layers=layers)
    if mask:
        base = _changed(base, mask_input=True)
    if head_mask:
        base = _changed(base, head_mask_input=True)
    name = name or preset
    if not heads:
        return [_random(name, base, seed)]
    try:
        return [_random(f"{name}-{choice.suffix}", choice.of(base), seed) for choice in heads]
    except ValueError as error:
        raise ExportError(str(error)) from error


def from_description(file: Path, name: str, *, head_mask: bool = False, seed: int = 0) -> Source:
    """Return the source for an encoder that a JSON file describes, with the fields of `EncoderConfig`.

    Args:
        file: A file such as `{"d_model": 768, "heads": 12, "layers": 1}`.
        name: The family's name.
        head_mask: Whether the graphs take a factor for each head, whatever the file says.
        seed: The seed of the random weights.

    Raises:
        ExportError: The name is not valid.
        DescriptionError: The file does not describe an encoder.
        OSError: The file cannot be read.
    """
    config = read_description(file)
    return _random(name, _changed(config, head_mask_input=True) if head_mask else config, seed)


def from_checkpoint(
    folder: Path,
    name: str,
    *,
    prompt_name: str | None = None,
    task: str | None = None,
    pooling: Pooling | None = None,
    normalise: bool = False,
    matryoshka: tuple[int, ...] | None = None,
    strict: bool = False,
    head_mask: bool = False,
) -> Source:
    """Return the source for a trained encoder from a Hugging Face folder.

    The folder is read by `build`, which raises `polyhead_model.CheckpointError` if it cannot be, and
    `ExportError` if `strict` forbids it.

    Args:
        folder: The checkpoint.
        name: The family's name.
        prompt_name: The prompt to put before each text, among those of sentence-transformers; None means the
            task's, or the checkpoint's own default, and empty no prompt.
        task: The task whose adapter is merged into the weights; None means none.
        pooling: The pooling of a checkpoint that does not say how to pool.
        normalise: Whether to scale the vectors that are pooled by `pooling` to length 1.
        matryoshka: The numbers of dimensions to which vectors were trained to be cut; None means what the
            checkpoint says.
        strict: Whether to reject a checkpoint if a part of it cannot be served.
        head_mask: Whether the graphs take a factor for each head.
    """

    def build() -> Built:
        options: Any = {
            "prompt_name": prompt_name,
            "task": task,
            "pooling": pooling,
            "normalise": normalise,
        }
        check_memory(read_checkpoint_info(folder, **options).encoder)
        checkpoint = load_checkpoint(folder, **options)
        if strict and checkpoint.left_out:
            missing = "; ".join(checkpoint.left_out)
            raise ExportError(f"{folder}: with --strict, all of a checkpoint must be served, but {missing}")
        if head_mask:
            checkpoint.encoder.config = _changed(checkpoint.encoder.config, head_mask_input=True)
        if matryoshka is not None:
            checkpoint.encoder.config = _changed(checkpoint.encoder.config, matryoshka=matryoshka)
        tokenizer = None
        if checkpoint.tokenizer is not None:
            tokenizer = TokenizerFile(
                path=checkpoint.tokenizer,
                content=checkpoint.tokenizer_content,
                max_tokens=checkpoint.max_tokens,
                prompt=checkpoint.prompts.default,
                prompts=checkpoint.prompts.texts,
                forms=checkpoint.prompts.forms,
                form=checkpoint.prompts.form,
                pair=checkpoint.prompts.pair,
                gives_token_types=checkpoint.gives_token_types,
            )
        return Built(
            encoder=checkpoint.encoder,
            model_type=checkpoint.model_type,
            tokenizer=tokenizer,
            left_out=checkpoint.left_out,
        )

    return Source(name=name, build=build)


def _changed(config: EncoderConfig, **changes: int | bool | tuple[int, ...]) -> EncoderConfig:
    try:
        return dataclasses.replace(config, **changes)  # type: ignore[arg-type]  # fields of several types
    except ValueError as error:
        raise ExportError(str(error)) from error


def _random(name: str, config: EncoderConfig, seed: int) -> Source:
    check_memory(config)

    def build() -> Built:
        # The layers initialise themselves from the global generator, so that is what is seeded.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Built(encoder=Encoder(config))

    return Source(name=name, build=build)
