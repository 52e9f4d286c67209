"""Measure what moves the numbers of a graph where they are computed.

How far another precision of computation does, and whether the company of a sequence does.

Shape letters: B batch, T tokens, D d_model, P behind dense layers, V width of token vectors, H heads, K head
width.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.drift import SENTENCES, change, cosines_of
from polyhead_proto.names import TOKENS
from polyhead_proto.outputs import declared
from polyhead_proto.outputs.attention import Weights
from polyhead_proto.outputs.top_keys import TOP_KEYS
from polyhead_proto.tensors import TensorSpec
from polyhead_server.engine.engine import Arrays, Runner
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import PLAIN, Tokeniser

Array = NDArray[Any]

MEASURED = SENTENCES[::3]
"""What families with a tokeniser are measured on."""

_BATCH = 4
_RANDOM_TOKENS = 16
_LENGTHS = (1, 7, 66)
"""Of the sequences that are run alone and together: a matrix of one row, sums that end in a part of a vector,
and products that kernels cut otherwise than those of 64 columns."""
_VISIBLE = 0.7
"""The share of pairs that random masks show."""


def measure_drift(
    engine: Runner, reference: Runner, signature: Signature, tokeniser: Tokeniser | None
) -> dict[str, Any]:
    """Run a graph on the same inputs twice, and compare what is not padding.

    Args:
        engine: Runs the graph in the precision that is measured.
        reference: Runs it in fp32.
        signature: Its inputs and outputs.
        tokeniser: The family's, if it has one.

    Returns:
        What metadata show, to six digits: the `inputs` that were measured on, and by output the `cosines`
        of vectors with those of fp32 (`least` and `mean`), the `deviations`, the largest
        |difference| / max(1, |fp32|), which is None where only one is defined, and for attention the
        `other_top_keys`, the share of queries whose strongest key is another.
    """
    cosines: dict[str, list[Array]] = defaultdict(list)
    deviations: dict[str, list[float]] = defaultdict(list)
    others: dict[str, list[Array]] = defaultdict(list)
    names = [spec.name for spec in signature.results]
    for feeds in _inputs(signature, tokeniser):
        ours, theirs = engine.run(feeds, names), reference.run(feeds, names)
        for spec in signature.results:
            mine, its = np.asarray(ours[spec.name]), np.asarray(theirs[spec.name])
            exists = _exists(spec, signature, feeds, mine.shape)
            if spec.role == TOP_KEYS.role:
                others[spec.name].append((mine != its)[..., 0][its[..., 0] >= 0])
            if not np.issubdtype(mine.dtype, np.floating):
                continue
            deviations[spec.name].append(change(mine[exists], its[exists]))
            if spec.axes[-1] in {"D", "P", "V", "K"}:
                vectors = exists[..., 0]
                cosines[spec.name].append(cosines_of(mine[vectors], its[vectors]))
            elif isinstance(declared(spec), Weights):
                tops = [np.where(exists, each, -1).argmax(-1) for each in (mine, its)]
                others[spec.name].append((tops[0] != tops[1])[exists.any(-1)])
    found = {name: np.concatenate(parts) for name, parts in cosines.items()}
    return {
        "inputs": "random inputs" if tokeniser is None else f"{len(MEASURED)} sentences",
        "cosines": {
            name: {"least": _rounded(each.min()), "mean": _rounded(each.mean())}
            for name, each in found.items()
        },
        "deviations": {name: _rounded(max(each)) for name, each in deviations.items()},
        "other_top_keys": {name: _rounded(np.concatenate(each).mean()) for name, each in others.items()},
    }


def same_bits(engines: Sequence[Runner], signature: Signature) -> tuple[str, ...]:
    """Run sequences alone and together, and return the outputs whose bits are the same each time.

    Args:
        engines: Sessions of one graph, with few threads and with many.
        signature: Its inputs and outputs.
    """
    random = np.random.default_rng(0)
    lengths = sorted({min(length, signature.max_tokens or length) for length in _LENGTHS})
    sizes = signature.example_sizes(len(lengths), lengths[-1])
    together = {spec.name: _random_tensor(spec, spec.at(sizes), random) for spec in signature.feeds}
    together |= {spec.name: np.array(lengths, spec.dtype) for spec in signature.lengths}
    names = [spec.name for spec in signature.results]
    runs = [engine.run(together, names) for engine in engines]
    same = set(names)
    for row, length in enumerate(lengths):
        own = signature.example_sizes(1, length)
        feeds = {spec.name: spec.cut(together[spec.name][row:], own) for spec in signature.feeds}
        alone = [engine.run(feeds, names) for engine in engines]
        for spec in signature.results:
            first, *others = (
                *(each[spec.name] for each in alone),
                *(spec.cut(each[spec.name][row:], own) for each in runs),
            )
            if not all(np.array_equal(first, other, equal_nan=spec.dtype.kind == "f") for other in others):
                same.discard(spec.name)
    return tuple(name for name in names if name in same)


def _exists(spec: TensorSpec, signature: Signature, feeds: Arrays, shape: tuple[int, ...]) -> Array:
    """Return which elements of an output are not padding."""
    exists: Array = np.ones(shape, np.bool_)
    letters = {each.fill: feeds[each.name] for each in signature.lengths}
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
    if spec.dtype.kind == "b":
        return random.random(shape) < _VISIBLE
    below = spec.below if isinstance(spec.below, int) else 1
    return random.integers(0, below, shape).astype(spec.dtype)


def _rounded(value: Any) -> float | None:
    """Return a number to six digits; None for what is infinite, which JSON does not have."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
