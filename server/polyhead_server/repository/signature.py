"""What one served model takes and gives, described once by axes and roles.

Batching, padding, trimming, selection, sizes and metadata all follow from the axes of its tensors. B joins
requests; letters with a fixed size (D, H, L, …) stay as they are; every other letter (T, S, …) is padded to
the longest of a batch and trimmed again. Shape letters: B batch, T tokens, N tokens of a batch that exist,
D d_model, H heads, L layers.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from polyhead_proto import names
from polyhead_proto.outputs import DECLARED, declared
from polyhead_proto.outputs.attention import Weights
from polyhead_proto.tensors import TensorSpec
from polyhead_server.repository.manifest import PACKED, GraphName, Manifest

_COPIES = 4
"""How many values a run holds at once of the size of each that is asked along `Signature.optional` axes."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One graph of one version of a family, as it is served."""

    name: str
    version: int
    graph: GraphName
    manifest: Manifest
    feeds: tuple[TensorSpec, ...]
    """The inputs of the graph itself."""
    results: tuple[TensorSpec, ...]
    """The outputs of the graph itself."""
    inputs: Mapping[str, TensorSpec]
    """What requests may hold: the graph's inputs, and where there is a tokeniser, texts."""
    outputs: Mapping[str, TensorSpec]
    """What replies may hold: the graph's outputs, and `tokens`, `spans` and `lengths` of token ids."""

    @cached_property
    def primary(self) -> TensorSpec:
        """The input that carries the sequences: the first required one with an axis beside B."""
        return next(spec for spec in self.feeds if spec.fill is None and len(spec.axes) > 1)

    @cached_property
    def length(self) -> str:
        """The letter of the primary input's length."""
        return self.primary.axes[1]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The axes that vary, without B; the primary input's come first."""
        return tuple(self.measures)

    @cached_property
    def measures(self) -> Mapping[str, tuple[str, int]]:
        """By letter of the axes that vary, without B: an input and its axis from which the size is read."""
        found: dict[str, tuple[str, int]] = {}
        for spec in (self.primary, *self.feeds):
            for axis, letter in enumerate(spec.axes[1:], 1):
                if letter not in self.manifest.sizes and not spec.broadcasts:
                    found.setdefault(letter, (spec.name, axis))
        return found

    @cached_property
    def optional(self) -> Mapping[str, tuple[str, ...]]:
        """By letter of the axes that only inputs have which may be left out: these inputs.

        A request gives all of them or none, and then the axis has size 1.
        """
        needed = {letter for spec in self.feeds if spec.fill is None for letter in spec.axes}
        return {
            letter: tuple(spec.name for spec in self.feeds if letter in spec.axes)
            for letter in self.letters
            if letter not in needed
        }

    @cached_property
    def token_bytes(self) -> int:
        """The bytes of the eight [D] values that a run holds of each token at once."""
        return 8 * 4 * self.manifest.sizes.get("D", 1)

    def asked_bytes(self, letter: str) -> int:
        """Return the bytes that one index of such an axis has in all inputs and outputs of a sequence."""
        return sum(
            max(4, spec.dtype.itemsize) * math.prod(spec.sizes.values())
            for spec in (*self.feeds, *self.results)
            if letter in spec.axes
        )

    @cached_property
    def sequences(self) -> tuple[str, ...]:
        """Those of the letters that are lengths of sequences, not numbers of what is asked of them."""
        indices = {letter for spec in self.feeds if isinstance(spec.below, str) for letter in spec.axes[1:]}
        indices |= self.optional.keys()
        return tuple(letter for letter in self.letters if letter not in indices - {*self.primary.axes})

    @cached_property
    def lengths(self) -> tuple[TensorSpec, ...]:
        """The inputs that hold the lengths of sequences, each one's letter as its fill."""
        return tuple(spec for spec in self.feeds if isinstance(spec.fill, str) and spec.fill in self.letters)

    @cached_property
    def marked(self) -> frozenset[str]:
        """The outputs that hold anything but zeros in padding, such as the numbers of top keys."""
        return frozenset(
            spec.name
            for spec in self.results
            if spec.dtype.kind != "f" and not self.measures.keys().isdisjoint(spec.axes)
        )

    @cached_property
    def packed(self) -> bool:
        """Whether layers compute the tokens that exist, and no padding."""
        return self.manifest.graphs[self.graph].activations == PACKED

    @cached_property
    def inputs_by_role(self) -> Mapping[str, TensorSpec]:
        """The first of the graph's own inputs that has a role, by role."""
        return {spec.role: spec for spec in reversed(self.feeds)}

    @cached_property
    def outputs_by_role(self) -> Mapping[str, TensorSpec]:
        """The first of the outputs that has a role, by role."""
        return {spec.role: spec for spec in reversed([*self.outputs.values()])}

    @cached_property
    def max_tokens(self) -> int | None:
        """The largest T that the graph itself can take."""
        return self.manifest.max_tokens

    def example_sizes(self, batch: int, tokens: int) -> dict[str, int]:
        """Return sizes of the axes that vary: T of all sequences, and 1 of what indexes them."""
        return {letter: tokens if letter in self.sequences else 1 for letter in self.letters} | {"B": batch}

    def example(self, batch: int, tokens: int) -> dict[str, NDArray[Any]]:
        """Return inputs of (B, T): zeros, nothing masked, no padding."""
        sizes = self.example_sizes(batch, tokens)
        return {spec.name: spec.filled_at(sizes) for spec in self.feeds}

    def working_bytes(
        self, batch: int, longest: int, sizes: Mapping[str, int] | None = None, *, tokens: int | None = None
    ) -> int:
        """Estimate the memory of a run of this size beyond the weights, in bytes.

        Counts every output, asked for or not, as onnxruntime computes them all; inputs along `optional` axes;
        the values [B, T, T] (or of other axes) that the manifest says, else one layer's scores and weights;
        and eight [B, T, D] values. In packed graphs these are [N, D], but no fewer than what attention takes
        and gives, four [B, T, D].

        Args:
            batch: B.
            longest: T, or that of the longest sequences.
            sizes: Of all axes that vary; without it, all are as long, and nothing is asked along `optional`
                ones, whose bytes runs of several requests bound.
            tokens: N; without it, all B · T.
        """
        of = dict.fromkeys(self.optional, 1) if sizes is None else sizes
        outputs = 0
        for letters, fixed in self._output_bytes.items():
            size = fixed
            for letter in letters:
                size *= of.get(letter, longest)
            outputs += size
        maps = self.manifest.graphs[self.graph].maps
        if maps is None:
            maps = 2 * self.manifest.sizes.get("H", 1)
        area = longest * longest
        if sizes is not None:
            axes = self.manifest.graphs[self.graph].map_axes or ((self.length, self.length),)
            area = max(sizes.get(first, longest) * sizes.get(second, longest) for first, second in axes)
        padded = batch * longest
        tokens = padded if tokens is None or not self.packed else max(tokens, -(-padded // 2))
        return batch * (outputs + 4 * maps * area) + self.token_bytes * tokens

    @cached_property
    def _output_bytes(self) -> Mapping[tuple[str, ...], int]:
        """The bytes of outputs, and of what is asked, per sequence: by the axes that vary.

        Computed once, because the memory of every request is checked.
        """
        found: Counter[tuple[str, ...]] = Counter()
        asked = [spec for spec in self.feeds if self.optional.keys() & {*spec.axes}]
        for spec in (*self.results, *asked):
            fixed = [spec.sizes[letter] for letter in spec.axes if letter in spec.sizes]
            item_bytes = max(4, spec.dtype.itemsize)  # runs compute in FP32 at least
            varying = tuple(letter for letter in spec.axes[1:] if letter not in spec.sizes)
            copies = _COPIES if self.optional.keys() & set(varying) else 1
            found[varying] += copies * item_bytes * math.prod(fixed)
        return found


def signature_of(manifest: Manifest, graph: GraphName) -> Signature:
    """Describe a graph as it is served: with texts and tokens where the family has a tokeniser."""
    record = manifest.graphs[graph]
    feeds = tuple(_spec(tensor, manifest) for tensor in record.inputs)
    results = tuple(_spec(tensor, manifest) for tensor in record.outputs)
    inputs = {spec.name: spec for spec in feeds}
    # Weights in 16 bits are converted once they have crossed the bus of a GPU.
    outputs = {
        spec.name: replace(spec, datatype="FP32") if isinstance(declared(spec), Weights) else spec
        for spec in results
    }
    ids = next((spec for spec in feeds if spec.role == names.TOKENS), None)
    if ids is not None and any(spec.role == names.LENGTHS for spec in feeds):
        made = {each.role: each.made for each in DECLARED.values() if each.made is not None}
        if manifest.tokenizer is not None:
            inputs[ids.name] = replace(ids, optional=True)
            for name in (names.TEXT, names.TEXT_PAIR) if manifest.tokenizer.takes_pairs else (names.TEXT,):
                inputs[name] = TensorSpec(
                    name=name, datatype="BYTES", axes=("B",), shape=(-1,), optional=True
                )
            outputs |= made
        else:
            outputs[names.LENGTHS] = made[names.LENGTHS]
    return Signature(
        name=manifest.served_name(graph),
        version=manifest.version,
        graph=graph,
        manifest=manifest,
        feeds=feeds,
        results=results,
        inputs=inputs,
        outputs=outputs,
    )


def _spec(tensor: TensorSpec, manifest: Manifest) -> TensorSpec:
    """Return a tensor of the manifest with sizes, instead of letters where there are."""
    encoder, pooled = manifest.encoder, tensor.meaning == names.POOLED
    return replace(
        tensor.with_sizes(manifest.sizes),
        unit=encoder.normalise and encoder.truncate_dim is None if pooled else None,
        matryoshka=encoder.matryoshka if pooled else None,
        optional=tensor.fill is not None,
    )
