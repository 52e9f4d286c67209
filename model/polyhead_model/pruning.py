"""Remove attention heads, and measure which of them matter least.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.config import EncoderConfig
from polyhead_model.encoder import Encoder, EncoderOutput

Head = tuple[int, int]
"""The number of a layer, and that of a head in it."""

Loss = Callable[[EncoderOutput, Mapping[str, Tensor]], Tensor]
"""Computes the loss of each sequence, [B], from an encoder's output and the inputs that gave it."""


def prune_heads(encoder: Encoder, heads: Iterable[Head]) -> Encoder:
    """Return a copy of an encoder without some heads: W_q, W_k, W_v and W_o are smaller.

    It computes what the encoder does if its `head_mask` silences these heads. The others keep their numbers.
    Keys and values that several heads share stay until the last of these is removed.

    Args:
        encoder: The encoder; heads may have been pruned before.
        heads: The heads to remove.

    Raises:
        ValueError: There is no such head, or no other in its layer.
    """
    config, removed = encoder.config, set(heads)
    check_heads(config, removed)
    before = [config.heads_of(layer) for layer in range(config.layers)]
    after = [
        tuple(head for head in numbers if (layer, head) not in removed)
        for layer, numbers in enumerate(before)
    ]
    for layer, numbers in enumerate(after):
        if not numbers:
            raise ValueError(f"a head of each layer must be left, none would be in layer {layer}")
    state = encoder.state_dict()
    if removed:
        config = dataclasses.replace(config, kept_heads=tuple(after))
    for layer in range(1 if config.shared_layers else config.layers):
        columns = _left_columns(encoder.config, config, layer)
        for name in state:
            if name.startswith(f"layers.{layer}."):
                state[name] = _select_columns(name, state[name], *columns)
    with torch.device("meta"):  # do not allocate or initialise: every parameter is assigned
        pruned = type(encoder)(config)
    pruned.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return pruned.train(encoder.training)


def check_heads(config: EncoderConfig, heads: Iterable[Head]) -> None:
    """Check that an encoder has these heads.

    Raises:
        ValueError: It does not; the message names the first that it does not have.
    """
    for layer, head in heads:
        if not 0 <= layer < config.layers:
            raise ValueError(f"layers must be from 0 to {config.layers - 1}, was {layer}")
        if head not in (numbers := config.heads_of(layer)):
            raise ValueError(
                f"heads of layer {layer} must be some of {', '.join(map(str, numbers))}, was {head}"
            )


class Choice(NamedTuple):
    """The heads that are to be pruned."""

    removed: tuple[Head, ...]
    spared: tuple[Head, ...]
    """Heads that would have been removed, if each did not leave its layer without any."""


def choose_heads(
    config: EncoderConfig, ranking: Sequence[Head], count: int, *, groups: bool = False, least: int = 1
) -> Choice:
    """Choose the first heads of a ranking, but leave one in each layer.

    Where layers are shared, a head is removed from all of them.

    Args:
        config: The encoder's configuration.
        ranking: Heads, that to be removed first in front.
        count: How many to remove; fewer are if no more can be.
        groups: Whether a head takes along those that share its keys and values; `count` is of groups then.
        least: How many heads each layer keeps; 0 where they are not to be removed.

    Raises:
        ValueError: There is no such head, or one is given twice.
    """
    check_heads(config, ranking)
    if len(set(ranking)) < len(ranking):
        raise ValueError("each head must be given once")
    left = [len(config.heads_of(layer)) for layer in range(config.layers)]
    removed: list[Head] = []
    spared: list[Head] = []
    taken = 0
    for layer, head in ranking:
        numbers = group_of(config, layer, head) if groups else [head]
        layers = range(config.layers) if config.shared_layers else [layer]
        together = [(each, number) for each in layers for number in numbers]
        if {*together} & {*removed, *spared}:
            continue
        if taken + len(layers) > count:
            break
        if left[layer] - len(numbers) >= least:
            for each in layers:
                left[each] -= len(numbers)
            removed += together
            taken += len(layers)
        else:
            spared += together
    return Choice(tuple(removed), tuple(spared))


def group_of(config: EncoderConfig, layer: int, head: int) -> list[int]:
    """Return the heads of a layer that share the keys and values of one, and that head itself."""
    shared = dict(zip(config.heads_of(layer), config.kv_heads_of(layer), strict=True))
    return [each for each, its_own in shared.items() if its_own == shared[head]]


def rank_heads(config: EncoderConfig, importance: Tensor, *, groups: bool = False) -> list[Head]:
    """Return an encoder's heads, the least important first.

    Args:
        config: The encoder's configuration.
        importance: [L, H]; those of heads that are gone are not read.
        groups: Whether those of heads that share keys and values are added up.

    Raises:
        ValueError: The shape is another, or the importance of a head is not finite.
    """
    if importance.shape != (config.layers, config.heads):
        raise ValueError(
            f"importance must be [L, H] = {[config.layers, config.heads]}, was {list(importance.shape)}"
        )
    heads = [(layer, head) for layer in range(config.layers) for head in config.heads_of(layer)]
    for head in heads:
        if not importance[head].isfinite():
            raise ValueError(
                f"importance must be finite, was {importance[head]} of head {head[1]} of layer {head[0]}"
            )
    if config.shared_layers:
        importance = importance.sum(0).expand_as(importance)

    def rank(head: Head) -> float:
        layer, number = head
        return float(importance[layer, group_of(config, layer, number) if groups else number].sum())

    return sorted(heads, key=rank)


def gradient_importance(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]], *, loss: Loss | None = None, seed: int = 0
) -> Tensor:
    """Measure how much each head matters: I = E |∂L/∂ξ|, where ξ = 1 is the head's factor in `head_mask`.

    From Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650), without
    scaling each layer's importances to a norm of 1: layers matter differently (numbers: docs/precision.md).

    Args:
        encoder: The encoder.
        batches: Its inputs by name, with `lengths`.
        loss: The loss; None means `random_projection`, which needs no labels.
        seed: The seed of the random projection.

    Returns:
        [L, H]; 0 for heads that are gone.

    Raises:
        ValueError: There are no sequences.
    """
    generator = torch.Generator().manual_seed(seed)
    config, training = encoder.config, encoder.training
    total = torch.zeros(config.layers, config.heads, dtype=torch.float64)
    count = 0
    encoder.eval()
    try:
        for inputs in batches:
            lengths = inputs["lengths"]
            head_mask = torch.ones(len(lengths), config.layers, config.heads, requires_grad=True)
            result = run_encoder(encoder, inputs, head_mask=head_mask)
            losses = random_projection(result, inputs, generator) if loss is None else loss(result, inputs)
            # No sequence affects another's loss, so the gradient of the sum has each one's own.
            (gradient,) = torch.autograd.grad(losses.sum(), head_mask)
            total += gradient.abs().sum(0)
            count += int((lengths > 0).sum())
    finally:
        encoder.train(training)
    if count == 0:
        raise ValueError("importance needs a sequence with tokens, there is none")
    return total / count


def run_encoder(
    encoder: Encoder, inputs: Mapping[str, Tensor], *, head_mask: Tensor | None = None
) -> EncoderOutput:
    """Run an encoder on inputs by name."""
    others = {name: value for name, value in inputs.items() if name != encoder.config.main_input}
    result: EncoderOutput = encoder(inputs[encoder.config.main_input], **others, head_mask=head_mask)
    return result


def random_projection(
    result: EncoderOutput, inputs: Mapping[str, Tensor], generator: torch.Generator
) -> Tensor:
    """Project the vector, or the tokens, of each sequence onto a random direction: a loss without labels.

    y being the logits, or else the pooled vector, and v standard normal, E |∂(v·y)/∂ξ| = √(2/π) ‖∂y/∂ξ‖: to
    first order, how far y moves if the head is silenced. The drift ‖y(ξ) − y(1)‖² itself has no gradient at
    ξ = 1, its minimum. An encoder with neither has y = its tokens. What there is of each token is divided by
    √length, so that sequences of all lengths count the same.

    Args:
        result: The encoder's output.
        inputs: The inputs that gave it.
        generator: Draws v, another for each sequence.

    Returns:
        [B].
    """
    y = result.pooled if result.logits is None else result.logits
    if y is None:
        y = result.output
    if y.ndim == 3:
        y = y / inputs["lengths"].clamp(min=1)[:, None, None].sqrt()
    return (y * torch.randn(y.shape, generator=generator)).flatten(1).sum(1)


def stack_layers(layers: Sequence[Tensor], kept: Sequence[Sequence[int]] | None, heads: int) -> Tensor:
    """Stack values of each layer's heads, [B, H of the layer, …], to [B, L, H, …].

    Args:
        layers: The values of each layer.
        kept: The numbers of each layer's heads; None = all. Those that are gone have 0.
        heads: H.
    """
    if kept is not None:
        layers = [restore_heads(values, numbers, heads) for values, numbers in zip(layers, kept, strict=True)]
    return torch.stack(list(layers), 1)


def restore_heads(values: Tensor, kept: Sequence[int], heads: int) -> Tensor:
    """Put values of heads in their places, 0 where a head is gone: [B, H of the layer, …] → [B, H, …]."""
    if len(kept) == heads:
        return values
    # Not padded, since CUDA has no kernel that pads integers.
    padded = torch.cat((values, torch.zeros_like(values[:, :1])), 1)
    return padded[:, [kept.index(head) if head in kept else len(kept) for head in range(heads)]]


def _left_columns(before: EncoderConfig, after: EncoderConfig, layer: int) -> tuple[Tensor, Tensor]:
    """Return which columns of a layer's queries are left, and which of its keys and of its values."""
    left = after.heads_of(layer)
    queries = zip(before.heads_of(layer), before.widths_of(layer), strict=True)
    of_queries = [head in left for head, width in queries for _ in range(width)]
    if before.kv_heads is None:
        return (columns := torch.tensor(of_queries)), columns
    shared, its_left = dict.fromkeys(before.kv_heads_of(layer)), after.kv_heads_of(layer)
    of_keys = [head in its_left for head in shared for _ in range(before.head_size)]
    return torch.tensor(of_queries), torch.tensor(of_keys)


def _select_columns(name: str, tensor: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Select columns from a parameter of one of the projections; return others as they are."""
    match = re.fullmatch(r".+\.w_(q|k|v|qkv|o|pq|pk)\.(weight|bias)", name)
    if match is None or match.groups() == ("o", "bias"):
        return tensor
    if match[1] == "o":
        return tensor[:, queries]
    parts = {"k": keys, "v": keys, "pk": keys, "qkv": torch.cat((queries, keys, keys))}
    return tensor[parts.get(match[1], queries)]
