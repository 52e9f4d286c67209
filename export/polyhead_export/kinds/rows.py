"""The rows graph: attention is fused, and the weights of a few chosen queries are computed beside it.

The weights of R queries are a product [R, K] × [K, T] for each head, where those of all are [T, K] × [K, T].
Shape letters: B batch, T tokens, H heads, K head width, L layers, A chosen layers, R rows asked for.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from polyhead_export.attention_ops import attention_weights
from polyhead_export.forward_pass import AttentionPass, ForwardPass
from polyhead_export.signature import GraphKind, key_axis
from polyhead_model import EncoderConfig, masks
from polyhead_model.packing import split_heads
from polyhead_model.pruning import stack_layers
from polyhead_proto.tensors import TensorSpec


class RowsGraph(GraphKind):
    """The attention weights of chosen queries."""

    name: ClassVar[str] = "rows"
    file: ClassVar[str] = "rows.onnx"

    def side_layers(self, config: EncoderConfig) -> Sequence[int]:
        """Return the layers whose rows are returned."""
        return range(config.layers) if self.attention_layers is None else self.attention_layers

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return the number of chosen layers."""
        return {} if self.attention_layers is None else {"A": len(self.attention_layers)}

    def inputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `rows`."""
        return (TensorSpec(name="rows", datatype="INT64", axes=("B", "R"), role="rows", below="T"),)

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `attention_rows`, and of decoder blocks `cross_attention_rows`."""
        keys = {"attention_rows": key_axis(config)}
        if config.cross_attention == "after_self":
            keys["cross_attention_rows"] = "S"
        return tuple(
            TensorSpec(
                name=name,
                datatype="FP32",
                axes=("B", "L" if self.attention_layers is None else "A", "H", "R", letter),
                role=name,
                layers=tuple(self.side_layers(config)),
            )
            for name, letter in keys.items()
        )

    def samples(
        self, config: EncoderConfig, batch: int, tokens: int, random: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Return two different rows of each sequence, or one if it has no more."""
        rows = [torch.randperm(tokens, generator=random)[:2] for _ in range(batch)]
        return {"rows": torch.stack(rows)}

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Return the rows of each layer; from its weights where attention is explicit."""
        rows = inputs["rows"]  # [B, R]
        exist = rows < run.lengths[:, None]
        rows = torch.where(exist, rows, 0)  # a row that does not exist may lie behind T, too
        return tuple(
            self._rows_of(config, attention, rows, exist)
            for attention in (run, run.cross)
            if attention is not None
        )

    def _rows_of(
        self, config: EncoderConfig, attention: AttentionPass, rows: Tensor, exist: Tensor
    ) -> Tensor:
        of_queries, of_keys = attention.layouts
        by_head = [
            of_keys.by_head(keys, len(config.heads_of(layer))) for layer, keys in enumerate(attention.keys)
        ]
        keys = by_head[0].shape[2]
        valid = masks.valid_tokens(attention.key_lengths, keys)
        mask = attention.mask
        visible = masks.combine(
            exist[:, :, None] & valid[:, None, :],
            torch.arange(keys) <= rows[:, :, None] if attention.causal else None,
            None if mask is None else _take(mask, rows),
        )
        found = []
        layers = self.side_layers(config)
        kept = [config.heads_of(layer) for layer in layers]
        for layer, numbers in zip(layers, kept, strict=True):
            if (weights := attention.weights.get(layer)) is not None:
                taken = _take(weights, rows[:, None].expand(-1, len(numbers), -1))
                found.append(torch.where(exist[:, None, :, None], taken, 0))
                continue
            queries = split_heads(_take(of_queries.pad(attention.queries[layer]), rows), len(numbers))
            window, bias = attention.windows[layer], attention.biases[layer]
            seen = visible if window is None else masks.combine(visible, _rows_of_all(window, rows))
            added = None
            if bias is not None:
                own = config.disentangled is not None  # each sequence has its own
                of_heads = rows[:, None].expand(-1, len(numbers), -1)
                added = _take(bias, of_heads) if own else _rows_of_all(bias, rows)
            found.append(attention_weights(queries, by_head[layer], seen, bias=added))
        return stack_layers(found, kept, config.heads)


def _rows_of_all(values: Tensor, rows: Tensor) -> Tensor:
    """Take rows [B, R] of values [1, …, T, X] that all sequences share: [B, …, R, X]."""
    taken = values.index_select(-2, rows.flatten())[0]  # […, B·R, X]
    return taken.reshape(*taken.shape[:-2], *rows.shape, taken.shape[-1]).movedim(-3, 0)


def _take(values: Tensor, rows: Tensor) -> Tensor:
    """Take rows [B, …, R] of values [B, …, T, X]."""
    return values.gather(-2, rows[..., None].expand(*rows.shape, values.shape[-1]))
