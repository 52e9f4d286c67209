"""Measure how far another precision of computation moves the numbers of a graph, where they are computed.

Shape letters: B batch, T tokens, D d_model, P behind dense layers, V width of token vectors, H heads, K head
width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.drift import SENTENCES, change, cosines_of
from polyhead_proto.names import TOKENS, TOP_KEYS
from polyhead_server.engine.engine import Arrays, Runner
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.serving.tokeniser import PLAIN, Tokeniser

Array = NDArray[Any]

MEASURED = SENTENCES[::3]
"""What families with a tokeniser are measured on."""

_BATCH = 4
_RANDOM_TOKENS = 16


@dataclass(frozen=True)
class VectorCosines:
    """Cosines of vectors with those of fp32."""

    least: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class ComputeDrift:
    """How far outputs are from those that fp32 gives. Padding does not count."""

    inputs: str
    """What was measured on."""
    cosines: Mapping[str, VectorCosines]
    """Of outputs that hold vectors."""
    deviations: Mapping[str, float]
    """The largest |difference| / max(1, |fp32|) of each output; infinite where only one is defined."""
    other_top_keys: Mapping[str, float]
    """The share of queries whose strongest key is another, of outputs that hold attention."""

    def facts(self) -> dict[str, Any]:
        """Return it for JSON, to six digits; null for what is infinite."""
        facts: dict[str, Any] = _rounded(asdict(self))
        return facts


def measure_drift(
    engine: Runner, reference: Runner, signature: Signature, tokeniser: Tokeniser | None
) -> ComputeDrift:
    """Run a graph on the same inputs twice, and compare.

    Args:
        engine: Computes in the precision to judge.
        reference: Computes in fp32.
        signature: The graph's inputs and outputs.
        tokeniser: The family's; without one, inputs are random.

    Raises:
        EngineError: A run failed.
    """
    measured = _Measured(signature)
    names = [spec.name for spec in signature.results]
    for feeds in _inputs(signature, tokeniser):
        measured.add(feeds, engine.run(feeds, names), reference.run(feeds, names))
    return measured.drift("random inputs" if tokeniser is None else f"{len(MEASURED)} sentences")


class _Measured:
    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._cosines: dict[str, list[Array]] = {}
        self._deviations: dict[str, float] = {}
        self._others: dict[str, list[Array]] = {}

    def add(self, feeds: Arrays, ours: Arrays, theirs: Arrays) -> None:
        """Compare the outputs of one run."""
        for spec in self._signature.results:
            mine, its = (np.asarray(each[spec.name]) for each in (ours, theirs))
            exists = self._exists(spec, feeds, mine.shape)
            if spec.role == TOP_KEYS:
                has_any = its[..., 0] >= 0
                self._others.setdefault(spec.name, []).append((mine != its)[..., 0][has_any])
            if not np.issubdtype(mine.dtype, np.floating):
                continue
            worst = change(mine[exists], its[exists])
            self._deviations[spec.name] = max(self._deviations.get(spec.name, 0.0), worst)
            if spec.axes[-1] in {"D", "P", "V", "K"}:
                vectors = exists[..., 0]
                self._cosines.setdefault(spec.name, []).append(cosines_of(mine[vectors], its[vectors]))
            elif spec.is_attention:
                tops = [np.where(exists, each, -1).argmax(-1) for each in (mine, its)]
                queries = exists.any(-1)
                self._others.setdefault(spec.name, []).append((tops[0] != tops[1])[queries])

    def drift(self, inputs: str) -> ComputeDrift:
        """Sum up."""
        cosines = {name: np.concatenate(parts) for name, parts in self._cosines.items()}
        return ComputeDrift(
            inputs=inputs,
            cosines={
                name: VectorCosines(float(each.min()), float(each.mean())) for name, each in cosines.items()
            },
            deviations=self._deviations,
            other_top_keys={
                name: float(np.concatenate(parts).mean()) for name, parts in self._others.items()
            },
        )

    def _exists(self, spec: TensorSpec, feeds: Arrays, shape: tuple[int, ...]) -> Array:
        """Return which elements of an output are not padding."""
        exists: Array = np.ones(shape, np.bool_)
        letters = {each.fill: feeds[each.name] for each in self._signature.lengths}
        for axis, letter in enumerate(spec.axes):
            if letter in letters:
                inside = np.arange(shape[axis]) < letters[letter][:, None]
                others = [at for at in range(1, len(shape)) if at != axis]
                exists = np.logical_and(exists, np.expand_dims(inside, others))
        return exists


def _inputs(signature: Signature, tokeniser: Tokeniser | None) -> Iterator[Arrays]:
    """Yield batches: of sentences where there is a tokeniser, otherwise of random lengths."""
    tokenizer, random = signature.manifest.tokenizer, np.random.default_rng(0)
    tokens = min(_RANDOM_TOKENS, signature.max_tokens or _RANDOM_TOKENS)
    for start in range(0, len(MEASURED), _BATCH):
        if tokeniser is None:
            ids: Array | None = None
            lengths: Array = random.integers(1, tokens + 1, _BATCH)
            lengths[0] = tokens
        else:
            made = tokeniser.encode(
                MEASURED[start : start + _BATCH],
                prompt="" if tokenizer is None else tokenizer.prompt,
                form=PLAIN if tokenizer is None else tokenizer.form or PLAIN,
                truncate=True,
                max_total=2**20,
                with_tokens=False,
            )
            ids, lengths = made.input_ids, made.lengths
        feeds = signature.example(_BATCH, tokens if ids is None else ids.shape[1])
        for spec in signature.feeds:
            if spec in signature.lengths:
                feeds[spec.name] = lengths.astype(spec.dtype)
            elif spec.role == TOKENS and ids is not None:
                feeds[spec.name] = ids.astype(spec.dtype)
            elif spec.fill is None:  # such as the vectors of queries
                feeds[spec.name] = _random_tensor(spec, feeds[spec.name].shape, random)
        yield feeds


def _random_tensor(spec: TensorSpec, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if np.issubdtype(spec.dtype, np.floating):
        least, largest = spec.range or (None, None)
        return np.clip(random.standard_normal(shape), least, largest).astype(spec.dtype)
    below = spec.below if isinstance(spec.below, int) else 1
    return random.integers(0, below, shape).astype(spec.dtype)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
