"""Convert the tensors of a Hugging Face checkpoint to those of an `Encoder`."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.checkpoint_files import CheckpointError
from polyhead_model.config import EncoderConfig
from polyhead_model.encoder import Encoder
from polyhead_model.hf_layout import Rows
from polyhead_model.huggingface import CheckpointInfo
from polyhead_model.positions import rotary_frequencies
from polyhead_model.task_heads import ContactHead

_UNUSED = (r"pooler\.", r"embeddings\.position_ids", r"embeddings\.token_type_ids")
"""Patterns of names of the encoder's tensors that do not affect its outputs, in all types."""


_END_OF_CONTACTS = 2
"""The token id `<eos>`, which transformers takes whatever config.json says."""


class _Place(NamedTuple):
    """Where one of our tensors is."""

    name: str
    rows: Rows | None
    heads: int
    transposed: bool
    kernel: int | None = None
    """The width of a convolution, whose matrix has neighbours beside each other here, and there an axis."""

    def shape(self, ours: torch.Size) -> torch.Size:
        """Return the shape of the tensor there, from the shape of ours."""
        if self.kernel is not None:
            return torch.Size((ours[0], ours[1] // self.kernel, self.kernel))
        joined = torch.Size((ours[0] * (1 if self.rows is None else self.rows.of), *ours[1:]))
        return torch.Size(reversed(joined)) if self.transposed else joined

    def read(self, source: Mapping[str, Tensor]) -> Tensor:
        """Return our tensor in fp32."""
        tensor = source[self.name].T if self.transposed else source[self.name]
        if self.kernel is not None:
            tensor = tensor.transpose(1, 2).flatten(1)
        if self.rows is not None:
            tensor = _part(tensor, self.rows, self.heads)
        # Copy: safetensors maps the file, and reading a mapped file after it was truncated kills the process.
        return tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def convert(info: CheckpointInfo, encoder: Encoder, source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check that the tensors are exactly those of the encoder, and return its state.

    Raises:
        CheckpointError: A tensor is missing, has no place, or another shape or dtype.
    """
    # The dense layers of sentence-transformers have files of their own.
    in_files = ("pooler.", "token_head.", "lexical.", *(() if info.score is None else ("classifier.",)))
    ours = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(in_files)}
    places = {name: _place(info, name) for name in ours}
    expected = {places[name].name: places[name].shape(parameter.shape) for name, parameter in ours.items()}
    positions, width = "embeddings.positions.weight", info.encoder.embedding_size
    types = f"{info.dialect.modules.get('embeddings.types')}.weight"
    if positions in places:
        theirs = places[positions].name
        expected[theirs] = torch.Size((expected[theirs][0] + info.position_offset, width))
    if info.folded_types:
        expected[types] = torch.Size((1, width))
    _check_labels(info, source)
    others = _check_decoder(info, source)
    check_tensors(info.folder, expected, source, unused=(*_UNUSED, *others, *info.dialect.unused))
    state = {name: place.read(source) for name, place in places.items()}
    if info.dialect.norm_offset:
        state |= {name: each + info.dialect.norm_offset for name, each in state.items() if "norm" in name}
    if info.dialect.scales_embeddings:
        tokens = "embeddings.tokens.weight"
        state[tokens] = state[tokens] * torch.tensor(info.encoder.d_model**0.5)
    if info.dialect.divides_results is not None:
        divisor = info.dialect.divides_results(info.encoder.layers)
        for name in state:
            if name.rpartition(".")[0].endswith(("attention.w_o", "feed_forward.down")):
                state[name] = (state[name].double() / divisor).float()
    if positions in places:
        state[positions] = state[positions][info.position_offset :]
    if info.folded_types:
        table = positions if positions in places else "embeddings.tokens.weight"
        if table != positions and info.encoder.splade is not None:
            raise CheckpointError(
                f"{info.folder}: type_vocab_size must not be 1, as the type would be added to the embeddings "
                "that words are weighed by"
            )
        state[table] = state[table] + source[types].float()
    if (disentangled := info.encoder.disentangled) is not None:
        # They divide scores by √(K · n), where n counts the products that are added, and we by √K.
        factor = (1 + len(disentangled.terms)) ** -0.5
        state |= {name: each * factor for name, each in state.items() if re.search(r"\.w_p?q\.", name)}
    return state


def with_frequencies(info: CheckpointInfo, source: Mapping[str, Tensor]) -> EncoderConfig:
    """Return the configuration with the angles of rotations that the weights hold, if they hold others.

    Raises:
        CheckpointError: They are not the same in all layers.
    """
    config, ending = info.encoder, info.dialect.frequencies
    stored = [] if ending is None else [t for name, t in source.items() if name.endswith(ending)]
    if config.rotary_base is None or not stored:
        return config
    if any(not torch.equal(each, stored[0]) for each in stored) or not stored[0].is_floating_point():
        raise CheckpointError(f"{info.folder}: {ending} must be the same numbers in every layer, are not")
    frequencies = tuple(stored[0].float().flatten().tolist())
    if frequencies == rotary_frequencies(config.rotary_base, config.head_size):
        return config
    try:
        return dataclasses.replace(config, rotary_frequencies=frequencies)
    except ValueError as error:
        raise CheckpointError(f"{info.folder}: {ending}: {error}") from error


def with_contacts(info: CheckpointInfo, config: EncoderConfig, source: Mapping[str, Tensor]) -> EncoderConfig:
    """Return the configuration with the contact head that the weights hold, if they hold one for it."""
    weight, bias = (source.get(f"{info.dialect.contact_head}.{name}") for name in ("weight", "bias"))
    if weight is None or bias is None or weight.numel() != config.layers * config.heads or bias.numel() != 1:
        return config
    numbers = torch.cat([weight.flatten(), bias.flatten()]).float()
    if not numbers.isfinite().all():
        return config
    *weights, last = numbers.tolist()
    return dataclasses.replace(
        config, contacts=ContactHead(weights=tuple(weights), bias=last, end_id=_END_OF_CONTACTS)
    )


def with_score(info: CheckpointInfo, source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a classifier's matrix [1, D] in place of that of a language model's logits.

    Raises:
        CheckpointError: The latter is missing, or is to be that of the embeddings and is not.
    """
    tensors = dict(source)
    if (score := info.logit_score) is None or info.head is None:
        return tensors
    layer = f"{info.dialect.language_model}.weight"
    table = f"{info.dialect.modules['embeddings.tokens']}.weight"
    words = tensors.pop(layer, tensors.get(table) if score.tied else None)
    if words is None or len(words) <= max(score.ids):
        raise CheckpointError(f"{info.folder}: the weights must hold {layer}, for each token id")
    if score.tied and table in tensors and not torch.equal(words, tensors[table]):
        raise CheckpointError(
            f"{info.folder}: {layer} must be the token embeddings, {table} (tie_word_embeddings), is not"
        )
    row = words[score.true_id].float()
    if score.false_id is not None:
        row = row - words[score.false_id].float()
    return tensors | {f"{info.head.out}.weight": row[None]}


def _place(info: CheckpointInfo, name: str) -> _Place:
    """Find one of our parameters in a checkpoint."""
    dialect, head = info.dialect, info.head
    module, _, kind = name.rpartition(".")
    outside = {**dialect.modules, **(head.modules if head else {})}
    if dialect.masked_lm is not None:
        outside |= dialect.masked_lm.modules
    if module in outside:
        place, prefix = outside[module], ""
    else:
        _, number, inner = module.split(".", 2)  # "layers.3.attention.w_q"
        place, prefix = dialect.layer_modules[inner], f"{dialect.layer_prefix}{number}."
    rows = place if isinstance(place, Rows) else None
    theirs = place.module if isinstance(place, Rows) else place
    is_matrix = bool(prefix) and kind == "weight" and "norm" not in module
    convolution = info.encoder.convolution if name == "convolution.linear.weight" else None
    return _Place(
        f"{prefix}{theirs}.{kind}",
        rows,
        info.encoder.heads,
        transposed=dialect.transposed and is_matrix,
        kernel=None if convolution is None else convolution.width,
    )


def _part(tensor: Tensor, rows: Rows, heads: int) -> Tensor:
    """Return one of the matrices, or biases, that a tensor holds below each other."""
    if not rows.by_head:
        return tensor.chunk(rows.of)[rows.part]
    part = tensor.reshape(heads, rows.of, -1, *tensor.shape[1:])[:, rows.part]
    if rows.pairs:
        part = torch.cat((part[:, 0::2], part[:, 1::2]), 1)
    return part.flatten(0, 1)


def _check_decoder(info: CheckpointInfo, source: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Check that words are weighed by their embeddings; return patterns of names that have no use."""
    head = info.dialect.masked_lm
    if info.encoder.splade is None or head is None:
        return ()
    decoder, table = f"{head.decoder}.weight", f"{info.dialect.modules['embeddings.tokens']}.weight"
    if decoder in source and table in source and not torch.equal(source[decoder], source[table]):
        raise CheckpointError(
            f"{info.folder}: {decoder} must be the token embeddings, {table} (tie_word_embeddings), is not"
        )
    return (re.escape(decoder), re.escape(head.decoder) + r"\.bias", r"cls\.seq_relationship\.")


def _check_labels(info: CheckpointInfo, source: Mapping[str, Tensor]) -> None:
    """Compare the labels of config.json with the weights."""
    classifier, head = info.encoder.classifier, info.head
    if classifier is None or head is None:
        return
    name = f"{head.out}.weight"
    if name in source and len(source[name]) != len(classifier.labels):
        raise CheckpointError(
            f"{info.folder}: config.json has {len(classifier.labels)} labels (id2label), but {name} is for "
            f"{len(source[name])}"
        )


def check_tensors(
    folder: Path,
    expected: Mapping[str, torch.Size],
    source: Mapping[str, Tensor],
    *,
    unused: Sequence[str] = (),
) -> None:
    """Check that tensors are exactly those that are expected.

    Args:
        folder: Where they come from, for messages.
        expected: The shapes by name.
        source: The tensors by name.
        unused: Patterns of names of tensors that may be there, too.

    Raises:
        CheckpointError: A tensor is missing, has no place, or another shape or dtype.
    """
    if missing := [name for name in expected if name not in source]:
        raise CheckpointError(
            f"{folder}: the weights must hold {some(missing)}, which {_are(missing)} missing"
        )
    others = [name for name in source if name not in expected]
    if unexpected := [name for name in others if not any(re.match(pattern, name) for pattern in unused)]:
        raise CheckpointError(
            f"{folder}: the weights hold {some(unexpected)}, for which this encoder has no place; "
            "config.json may describe another model"
        )
    for name, shape in expected.items():
        tensor = source[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{folder}: {name} must have the shape {list(shape)}, was {list(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(f"{folder}: {name} must be floating point, was {tensor.dtype}")


def some(names: list[str]) -> str:
    """Join the first few names for a message."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
