"""The insight graph: what heads do, as scores, rollout, strongest keys and small pictures.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead_export.comparison import part_of
from polyhead_export.forward_pass import ForwardPass, for_each_window
from polyhead_export.precision import Precision
from polyhead_export.signature import GraphKind, bias_maps
from polyhead_model import EncoderConfig, masks
from polyhead_model.insight.measures import measure
from polyhead_model.insight.patterns import Patterns, patterns_of
from polyhead_model.insight.scores import score_names
from polyhead_model.insight.thumbnails import SIDE
from polyhead_model.insight.top_keys import TOP
from polyhead_model.pruning import stack_layers
from polyhead_proto.tensors import TensorSpec

Array = NDArray[Any]


class InsightGraph(GraphKind):
    """Attention reduced inside the graph: what is returned does not grow with T², rollout and mix apart."""

    name: ClassVar[str] = "insight"
    file: ClassVar[str] = "insight.onnx"
    masks_by_bias: ClassVar[bool] = True

    def explicit_layers(self, config: EncoderConfig) -> Sequence[int]:
        """Return all layers: rollout needs them all."""
        return range(config.layers)

    def scores(self, config: EncoderConfig) -> tuple[str, ...]:
        """Return the names of the scores."""
        return score_names(
            tokens=config.vocabulary is not None, classes=[each.name for each in self.token_classes]
        )

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return the numbers of scores, of kept keys, and of cells along a picture's side."""
        return {"Scores": len(self.scores(config)), "Top": TOP, "Side": SIDE}

    def maps(self, config: EncoderConfig, precision: Precision = "fp32") -> int:
        """Count one layer's logits and weights, five values made of them, and patterns being built."""
        kinds = len({config.is_local(layer) for layer in range(config.layers)})
        return 7 * config.heads + 3 * kinds * len(self.scores(config)) + bias_maps(config)

    def inputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `head_mix`."""
        return (
            TensorSpec(
                name="head_mix",
                datatype="FP32",
                axes=("B", "L", "H"),
                role="head_mix",
                fill=1 / sum(len(config.heads_of(layer)) for layer in range(config.layers)),
                range=(None, None),
            ),
        )

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return the outputs in the order of `Measures`."""
        layers = tuple(range(config.layers))
        scores = self.scores(config)

        def of_heads(
            name: str, datatype: str, *axes: str, labels: tuple[str, ...] | None = None
        ) -> TensorSpec:
            return TensorSpec(
                name=name,
                datatype=datatype,
                axes=("B", "L", "H", *axes),
                role=name,
                layers=layers,
                labels=labels,
            )

        return (
            of_heads("head_scores", "FP32", "Scores", labels=scores),
            of_heads("weighted_scores", "FP32", "Scores", labels=scores),
            TensorSpec(name="rollout", datatype="FP32", axes=("B", "T", "T"), role="rollout"),
            TensorSpec(name="mixed", datatype="FP32", axes=("B", "T", "T"), role="mixed"),
            of_heads("top_keys", "INT32", "T", "Top"),
            of_heads("top_weights", "FP32", "T", "Top"),
            of_heads("residual", "FP32", "T"),
            of_heads("thumbnails", "UINT8", "Side", "Side"),
            of_heads("value_norms", "FP32", "T"),
        )

    def samples(
        self, config: EncoderConfig, batch: int, tokens: int, random: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Return random weights of the heads."""
        return {"head_mix": torch.rand(batch, config.layers, config.heads, generator=random)}

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Measure the attention of all layers."""
        valid = run.valid
        visible = valid[:, :, None] & masks.key_padding(run.key_lengths, valid.shape[1])
        if config.causal:
            visible = visible & masks.causal(valid.shape[1])
        if "mask" in inputs:
            visible = visible & inputs["mask"]
        # Padding may hold any number, which need not be a valid id.
        ids = None if config.vocabulary is None else torch.where(valid, inputs["input_ids"], 0)
        classes = self._classes_of(ids, config)

        def patterns_within(window: Tensor | None) -> Patterns:
            return patterns_of(
                visible if window is None else visible & window,
                ids,
                classes,
                class_names=[each.name for each in self.token_classes],
            )

        patterns = for_each_window(run.windows, patterns_within)
        layers = self.explicit_layers(config)
        measures = measure(
            [run.weights[layer] for layer in layers],
            [run.value_norms(layer) for layer in layers],
            patterns=patterns,
            lengths=run.lengths,
            head_mix=inputs["head_mix"],
            logits=[run.logits.get(layer) for layer in layers],
            kept=config.kept_heads,
        )
        return (
            measures.head_scores,
            measures.weighted_scores,
            measures.rollout,
            measures.mixed,
            *measures.top,
            measures.thumbnails,
            measures.value_norms,
        )

    def _classes_of(self, ids: Tensor | None, config: EncoderConfig) -> Tensor | None:
        """Look up the classes of tokens in a table that is a constant of the graph: [B, T] → [B, T, C]."""
        if ids is None or config.vocabulary is None or not self.token_classes:
            return None
        table = np.zeros((config.vocabulary, len(self.token_classes)), np.bool_)
        for column, each in enumerate(self.token_classes):
            table[list(each.ids), column] = True
        return torch.from_numpy(table).index_select(0, ids.flatten()).reshape(*ids.shape, -1)

    def align(
        self,
        config: EncoderConfig,
        actual: Mapping[str, Array],
        expected: Mapping[str, Array],
        run: ForwardPass,
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """Judge scores one by one, and leave out what rounding decides.

        That is which of two equal keys is stronger, and a picture's last digit. Keys are judged with the
        weights: by what the reference gives them, beside what it gives the strongest.
        """
        ours, theirs = dict(actual), dict(expected)
        for name in ("head_scores", "weighted_scores"):
            for values in (ours, theirs):
                scores = np.nan_to_num(values.pop(name), nan=-1)  # no score is negative
                values |= {
                    part_of(name, score): scores[..., column]
                    for column, score in enumerate(self.scores(config))
                }
        heads = theirs["top_weights"].shape[2]
        weights = stack_layers(list(run.weights.values()), run.kept_heads, heads).numpy()
        keys = ours.pop("top_keys")
        del theirs["top_keys"]
        ordered = np.sort(keys, axis=-1)
        repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        there = np.take_along_axis(weights, np.clip(keys, 0, weights.shape[-1] - 1), axis=-1)
        there = np.where(keys < 0, 0, there)
        if repeated.any() or keys.max() >= weights.shape[-1]:
            there = np.full(keys.shape, np.inf)
        ours["top_weights"] = np.stack((ours["top_weights"], there))
        theirs["top_weights"] = np.stack((theirs["top_weights"],) * 2)
        ours["thumbnails"], theirs["thumbnails"] = (
            values["thumbnails"].astype(np.float32) / 255 for values in (ours, theirs)
        )
        close = np.abs(ours["thumbnails"] - theirs["thumbnails"]) < 1.5 / 255
        ours["thumbnails"] = np.where(close, theirs["thumbnails"], ours["thumbnails"])
        return ours, theirs
