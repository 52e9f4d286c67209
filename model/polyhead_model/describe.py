"""What an encoder costs: parameters, FLOPs, bytes and arithmetic intensity. Needs no torch.

Everything is counted from the steps of `polyhead_model.steps`.
"""

import dataclasses
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from polyhead_model.config import EncoderConfig
from polyhead_model.step import ParameterTensor, Section, Step, factors
from polyhead_model.steps import ATTENTION, forward_sections

REPLY_LIMIT = 64 * 2**20
"""The largest message that a server sends unless its `--max-reply-bytes` says otherwise."""

ITEM_BYTES = {"FP32": 4, "FP16": 2, "UINT8": 1}
"""The bytes of a number in each datatype that attention can be sent in."""

_MOST_TOKENS = 2**20
"""No longer sequence is looked for."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """One part of a total."""

    name: str
    formula: str
    each: int
    layers: Sequence[int] | None = None
    """The layers with this part; None = it occurs once, outside the layers."""

    @property
    def times(self) -> int:
        """How often it occurs."""
        return 1 if self.layers is None else len(self.layers)

    @property
    def total(self) -> int:
        """The count over all layers."""
        return self.each * self.times


@dataclass(frozen=True, kw_only=True)
class TensorCount:
    """The parameters of one tensor."""

    name: str
    axes: tuple[str, ...]
    """Its shape in letters, such as ("D", "H·K")."""
    shape: tuple[int, ...]
    formula: str
    each: int


@dataclass(frozen=True, kw_only=True)
class ParameterCount(Count):
    """The parameters of one part."""

    tensors: tuple[TensorCount, ...]
    """Its matrices, biases and other tensors."""


@dataclass(frozen=True, kw_only=True)
class FlopCount(Count):
    """The floating-point operations of one part, and the memory traffic that they cannot do without."""

    bytes_each: int
    """The bytes of the operands and results of its matrix products in FP32, each read or written once."""

    @property
    def total_bytes(self) -> int:
        """The bytes over all layers."""
        return self.bytes_each * self.times

    @property
    def intensity(self) -> float:
        """FLOPs per byte: the arithmetic intensity of the roofline model (Williams et al. 2009)."""
        return self.each / self.bytes_each


def parameter_counts(config: EncoderConfig) -> tuple[ParameterCount, ...]:
    """List an encoder's parameters, part by part."""
    sections = forward_sections(config)
    if config.shared_layers:  # they have their parameters once
        sections = tuple(
            section if section.layers is None else dataclasses.replace(section, layers=[0])
            for section in sections
            if section.layers is None or 0 in section.layers
        )

    def count(section: Section, name: str, steps: Iterable[Step]) -> ParameterCount:
        tensors = [tensor for step in steps for tensor in step.parameters if tensor.part == name]
        return ParameterCount(
            name=name,
            formula=_formula(tensor.axes for tensor in tensors),
            each=sum(section.count(tensor.axes) for tensor in tensors),
            layers=section.layers,
            tensors=tuple(_tensor_count(section, tensor) for tensor in tensors),
        )

    return _counted(sections, lambda step: [each.part for each in step.parameters], count)


def _tensor_count(section: Section, tensor: ParameterTensor) -> TensorCount:
    return TensorCount(
        name=tensor.name,
        axes=tuple(tensor.axes.split()),
        shape=section.shape(tensor.axes),
        formula=_formula([tensor.axes]),
        each=section.count(tensor.axes),
    )


def parameters(config: EncoderConfig) -> int:
    """Count all parameters of an encoder."""
    return sum(count.total for count in parameter_counts(config))


def flop_counts(
    config: EncoderConfig, batch: int, tokens: int, memory: int | None = None
) -> tuple[FlopCount, ...]:
    """List the floating-point operations of one forward pass, part by part.

    Only matrix products are counted, at two operations for each multiplication and addition. Padding and
    scores that are hidden, causally or outside a window, are computed too, so they count.

    Args:
        config: The encoder.
        batch: B.
        tokens: T.
        memory: S, for cross-attention; None = T.
    """

    def count(section: Section, name: str, steps: Iterable[Step]) -> FlopCount:
        products = [step for step in steps if step.part == name]
        shapes = [f"2 {step.product or step.axes} {step.over}" for step in products]
        return FlopCount(
            name=name,
            formula=_formula(shapes),
            each=sum(map(section.count, shapes)),
            layers=section.layers,
            bytes_each=4 * sum(_numbers_moved(section, step) for step in products),
        )

    return _counted(
        forward_sections(config, batch, tokens, memory), lambda step: [step.part] if step.part else [], count
    )


def flops(config: EncoderConfig, batch: int, tokens: int, memory: int | None = None) -> int:
    """Count the floating-point operations of one forward pass, see `flop_counts`."""
    return sum(count.total for count in flop_counts(config, batch, tokens, memory))


def attention_bytes(
    config: EncoderConfig,
    batch: int,
    tokens: int,
    memory: int | None = None,
    *,
    layers: Collection[int] | None = None,
    itemsize: int = 4,
) -> int:
    """Return the bytes of attention weights, B·H·T² numbers for each layer's attention to its own sequence.

    Args:
        config: The encoder.
        batch: B.
        tokens: T.
        memory: S, for cross-attention; None = T.
        layers: The layers whose weights are counted; None = all.
        itemsize: The bytes of a number: 4 for FP32, see `ITEM_BYTES`.
    """
    sections = forward_sections(config, batch, tokens, memory)
    return itemsize * _numbers_sent(sections, layers, attention=True)


def longest_sequence(
    config: EncoderConfig,
    batch: int,
    reply_limit: int,
    memory: int | None = None,
    *,
    layers: Collection[int] | None = None,
    itemsize: int = 4,
) -> int:
    """Return the largest T whose outputs and attention fit into one reply; 0 if none does.

    Names and framing, some hundred bytes, are left out of account.

    Args:
        config: The encoder.
        batch: B.
        reply_limit: The largest reply, in bytes.
        memory: S, for cross-attention; None = T.
        layers: The layers whose attention is asked for; None = all.
        itemsize: The bytes of a number of attention: 4 for FP32, see `ITEM_BYTES`.
    """

    def reply_bytes(tokens: int) -> int:
        sections = forward_sections(config, batch, tokens, memory)
        attention = itemsize * _numbers_sent(sections, layers, attention=True)
        return attention + 4 * _numbers_sent(sections, layers, attention=False)

    lengths = range(1, (config.positions or _MOST_TOKENS) + 1)
    return bisect_right(lengths, reply_limit, key=reply_bytes)


def summary(
    name: str,
    config: EncoderConfig,
    batch: int,
    tokens: int,
    memory: int | None = None,
    *,
    reply_limit: int = REPLY_LIMIT,
) -> dict[str, Any]:
    """Return all numbers of an encoder as JSON values.

    Raises:
        ValueError: A size is not positive, T is more than the encoder's positions, or S has no use.
    """
    sections = forward_sections(config, batch, tokens, memory)
    parts = parameter_counts(config)
    embeddings = {tensor.part for step in sections[0].steps for tensor in step.parameters}
    flop_parts = flop_counts(config, batch, tokens, memory)
    total_flops = sum(count.total for count in flop_parts)
    total_bytes = sum(count.total_bytes for count in flop_parts)
    # Layers differ where heads are pruned: the one that sends most must fit.
    firsts = [section.layers[0] for section in sections if section.layers is not None]
    widest = [max(firsts, key=lambda layer: attention_bytes(config, 1, 1, layers=[layer]))]
    return {
        "name": name,
        "encoder": dataclasses.asdict(config),
        "sizes": sections[0].sizes,
        "sections": [
            {
                "stage": section.stage,
                "layers": _numbered(section.layers),
                "times": 1 if section.layers is None else len(section.layers),
                "steps": list(_step_values(section)),
            }
            for section in sections
        ],
        "parameters": {
            "parts": [
                _count_values(count) | {"tensors": list(map(dataclasses.asdict, count.tensors))}
                for count in parts
            ],
            "embeddings": None
            if config.vocabulary is None
            else sum(count.total for count in parts if count.name in embeddings),
            "total": sum(count.total for count in parts),
        },
        "flops": {
            "parts": [
                _count_values(count)
                | {
                    "share": count.total / total_flops,
                    "bytes": count.total_bytes,
                    "flops_per_byte": count.intensity,
                }
                for count in flop_parts
            ],
            "total": total_flops,
            "bytes": total_bytes,
            "flops_per_byte": total_flops / total_bytes,
        },
        "attention": {
            "reply_limit": reply_limit,
            "sent_as": {
                datatype: {
                    which: {
                        "bytes": attention_bytes(
                            config, batch, tokens, memory, layers=layers, itemsize=itemsize
                        ),
                        "longest_sequence": longest_sequence(
                            config, batch, reply_limit, memory, layers=layers, itemsize=itemsize
                        ),
                    }
                    for which, layers in (("a_layer", widest), ("all", None))
                }
                for datatype, itemsize in ITEM_BYTES.items()
            },
        },
    }


def _counted(
    sections: Iterable[Section],
    parts_of: Callable[[Step], list[str]],
    count: "Callable[[Section, str, Iterable[Step]], _Count]",
) -> "tuple[_Count, ...]":
    """Count every part of every section; what is equal in several kinds of layers is one part."""
    merged: dict[tuple[str, int, bool], list[_Count]] = defaultdict(list)
    for section in sections:
        for name in dict.fromkeys(part for step in section.steps for part in parts_of(step)):
            part = count(section, name, section.steps)
            merged[name, part.each, part.layers is None].append(part)
    return tuple(
        first
        if not others
        else dataclasses.replace(first, layers=sorted(i for c in (first, *others) for i in c.layers or ()))
        for first, *others in merged.values()
    )


def _numbers_sent(sections: Iterable[Section], layers: Collection[int] | None, *, attention: bool) -> int:
    """Return how many numbers the attention of these layers has in a reply, or all other outputs."""
    total = 0
    for section in sections:
        times = 1
        if section.layers is not None:
            times = len(section.layers) if layers is None else sum(i in section.layers for i in set(layers))
        sent = [step for step in section.steps if step.role and (step.role in ATTENTION) is attention]
        total += times * sum(section.count(step.axes) for step in sent)
    return total


def _numbered(layers: Sequence[int] | None) -> str | None:
    """Write the numbers of layers briefly, such as 0-3, 5."""
    if layers is None:
        return None
    runs: list[tuple[int, int]] = []
    for layer in layers:
        first = runs.pop()[0] if runs and runs[-1][1] == layer - 1 else layer
        runs.append((first, layer))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _numbers_moved(section: Section, step: Step) -> int:
    """Return how many numbers a matrix product reads and writes at least."""
    made = step.product or step.axes
    *rows, width = made.split()
    left = " ".join([*rows, step.over or ""])
    # Two activations are multiplied for each sequence and head; a matrix of parameters is read once.
    right = " ".join([*rows[:-1], step.over or "", width])
    read = 0 if step.product else sum(section.count(each.axes) for each in step.parameters)
    return section.count(left) + (read or section.count(right)) + section.count(made)


def _formula(shapes: Iterable[str]) -> str:
    """Add up products of letters: "D H·K" and "H·K D" give 2·D·H·K."""
    terms: Counter[str] = Counter()
    for shape in shapes:
        coefficient, letters = 1, Counter[str]()
        for factor in factors(shape):
            if factor.isdigit():
                coefficient *= int(factor)
            else:
                letters[factor] += 1
        ordered = sorted(letters.items(), key=lambda item: "BTSEDF(H+2G)HGKΣKPC".find(item[0]))
        terms["·".join(letter + {1: "", 2: "²"}[power] for letter, power in ordered)] += coefficient
    return " + ".join(
        letters if times == 1 else f"{times:,}" + (f"·{letters}" if letters else "")
        for letters, times in terms.items()
    )


def _step_values(section: Section) -> Iterator[dict[str, Any]]:
    before = ""
    for step in section.steps:
        yield {
            "tensor": step.name,
            "symbol": step.symbol,
            "reads": [before] if step.reads is None else step.reads,
            "axes": step.axes.split(),
            "shape": section.shape(step.axes),
            "parameters": [
                {"part": each.part} | dataclasses.asdict(_tensor_count(section, each))
                for each in step.parameters
            ],
        }
        before = step.symbol


def _count_values(count: Count) -> dict[str, Any]:
    return {
        "part": count.name,
        "formula": count.formula,
        "each": count.each,
        "layers": _numbered(count.layers),
        "times": count.times,
        "total": count.total,
    }


_Count = TypeVar("_Count", bound=Count)
