"""Causal tracing: which places carry what makes two inputs differ.

The value that a place has for one input, the clean one, is put there in the run of another, the corrupted
one; what this recovers of a metric is the place's share. Known as activation patching, or as interchange
intervention (Vig et al. 2020, arXiv 2004.12265; Meng et al. 2022, arXiv 2202.05262).

Shape letters: T tokens, D d_model, H heads, K head width, L layers, P width of pooled vectors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from polyhead_client.calls import Operation
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.frozen import Picklable
from polyhead_client.models import ModelInfo
from polyhead_client.operations import Operations, Progress
from polyhead_client.padding import as_array, described
from polyhead_client.places import Edit, Place
from polyhead_client.server_operations import Timeout

By: TypeAlias = Literal["token", "head"]

Metric: TypeAlias = str | Callable[[Encoding], float] | NDArray[Any] | Sequence[float] | None
"""What is traced: the logit of a label, a function of the encoding of one sequence, or the cosine of the
pooled vector with a vector [P]. None: a reranker's score, or the cosine with the clean input's vector."""

_AT_ONCE_BYTES = 2**26
"""Of the vectors of tokens that are held for a metric that is a function."""

_SAME = 1e-6
"""Relative difference of a metric below which there is nothing to recover but rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(Picklable):
    """What each place recovers of a metric."""

    model: str
    version: str
    by: By
    shares: NDArray[np.float64]
    """[L + 1, T]: the stream before each layer and after the last, at each token. Or by head [L, H]: what a
    head gives, at all tokens; NaN where it was pruned. 1 is all of the difference between clean and
    corrupted, 0 nothing; below 0, the place takes the run further away."""
    clean: float
    """The metric of the clean run."""
    corrupted: float
    """That of the corrupted one."""
    tokens: tuple[list[str], list[str]]
    """Of the clean and of the corrupted input; their positions where the server names no tokens."""

    def strongest(self) -> Iterator[tuple[int, int, float]]:
        """Yield the layer, the token or head, and the share of each place, from the largest share on."""
        order = np.argsort(-self.shares, axis=None, kind="stable")  # NaN comes last
        for layer, place in zip(*np.unravel_index(order, self.shares.shape), strict=True):
            yield int(layer), int(place), float(self.shares[layer, place])


class Tracing(Operations):
    """The operation of causal tracing."""

    def trace(
        self,
        clean: Any,
        corrupted: Any,
        *,
        metric: Metric = None,
        by: By = "token",
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[Trace]:
        """Find the places that carry what makes two inputs differ, by causal tracing.

        For every layer and token, or layer and head, the value of the clean run is put into the corrupted
        one. These runs share requests, as few as the server's limits allow.

        Args:
            clean: A text, a pair of texts as a tuple, or another single sequence that `encode` takes.
            corrupted: Another, with as many tokens.
            metric: What is to be recovered: the name of a label, for its logit; a vector [P], for the cosine
                of the pooled vector with it; or a function of the `Encoding` of one sequence, which has the
                output. None means a reranker's score, or else the cosine with the clean input's vector.
            by: `token`, for [L + 1, T] shares of the stream; or `head`, for [L, H] of what heads give, each
                at all tokens.
            model: The family, exported with `--graphs stream`; None means the only one that takes the inputs.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of places that are done, and of all.
            timeout: Seconds for each batch of runs; None means no limit, ... the client's default.

        Raises:
            InvalidRequest: The request is not valid, or the metric does not tell the inputs apart.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        options: dict[str, Any] = {
            "model": model,
            "version": version,
            "truncate": truncate,
            "timeout": timeout,
        }
        if by not in get_args(By):
            raise InvalidRequest(f"by must be one of {', '.join(get_args(By))}, was {by!r:.80}")
        with_output = callable(metric)
        # All runs are of one graph, so that they differ by what is patched alone.
        base = yield from self.encode(
            **_batch([clean, corrupted]), read=[(0, 0)], output=with_output, **options
        )
        counts = np.asarray(base.lengths).tolist()
        if counts[0] != counts[1] or not counts[0]:
            raise InvalidRequest(
                f"clean and corrupted must have as many tokens, one or more, had {counts[0]} and {counts[1]}"
            )
        measure = _measure(metric, base)
        first, second = map(float, measure(base))
        if not abs(first - second) > _SAME * max(1.0, abs(first)):
            raise InvalidRequest(
                f"clean and corrupted must differ in the metric, had {first:g} and {second:g}"
            )
        info = yield from self.model(base.model, version=version, timeout=timeout)
        if info.layers is None or info.heads is None:
            raise InvalidRequest(f"{base.model} must say how many layers and heads it has, and does not")
        tokens = range(counts[0])
        values = np.full((info.layers + (by == "token"), info.heads if by == "head" else counts[0]), np.nan)
        patches = yield from _patches(self.encode, clean, info, len(tokens), by=by, options=options)
        at_once = len(patches)
        if with_output:
            at_once = max(1, _AT_ONCE_BYTES // (4 * counts[0] * (info.d_model or 1024)))
        for start in range(0, len(patches), at_once):
            some = patches[start : start + at_once]
            patched = yield from self.encode(
                **_batch([corrupted] * len(some)),
                edits=[edits for _, edits in some],
                output=with_output,
                progress=None if progress is None else _shifted(progress, start, len(patches)),
                **options,
            )
            for (place, _), value in zip(some, measure(patched), strict=True):
                values[place] = value
        named: Any = base.tokens or [[str(at) for at in tokens]] * 2
        return Trace(
            model=base.model,
            version=base.version,
            by=by,
            shares=(values - second) / (first - second),
            clean=first,
            corrupted=second,
            tokens=(list(named[0]), list(named[1])),
        )


def _patches(
    encode: Callable[..., Operation[Encoding]],
    clean: Any,
    info: ModelInfo,
    count: int,
    *,
    by: By,
    options: dict[str, Any],
) -> Operation[list[tuple[tuple[int, int], list[Edit]]]]:
    """Read the clean run, and return for each place the edits that put its values elsewhere."""
    layers, tokens = range((info.layers or 0) + (by == "token")), range(count)
    heads: list[Sequence[int]] = [range(info.heads or 0)] * len(layers)
    if info.kept_heads is not None and by == "head":
        heads = list(info.kept_heads)
    places = [
        [Place(layer, token) for token in tokens]
        if by == "token"
        else [Place(layer, token, head) for head in heads[layer] for token in tokens]
        for layer in layers
    ]
    # A sequence for each layer: replies and their memory stay small, however many layers there are.
    found = yield from encode(
        **_batch([clean] * len(layers)),
        read=places,
        **options | {"output": False, "pooled": False, "logits": False, "tokens": False},
    )
    values: Any = found.stream if by == "token" else found.head_outputs
    edits = [
        [
            Edit(*place[:2], vector, head=place.head, mode="replace")
            for place, vector in zip(*each, strict=True)
        ]
        for each in zip(places, values, strict=True)
    ]
    if by == "token":
        return [((layer, token), [edits[layer][token]]) for layer in layers for token in tokens]
    return [
        ((layer, head), edits[layer][at * count : (at + 1) * count])
        for layer in layers
        for at, head in enumerate(heads[layer])
    ]


def _batch(inputs: list[Any]) -> dict[str, Any]:
    """Return inputs, pairs of texts among them, as arguments of `encode`."""
    if all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in inputs):
        return {"inputs": [each[0] for each in inputs], "text_pair": [each[1] for each in inputs]}
    return {"inputs": inputs}


def _shifted(progress: Callable[[int, int], object], start: int, of: int) -> Callable[[int, int], object]:
    return lambda done, _: progress(start + done, of)


def _measure(metric: Metric, base: Encoding) -> Callable[[Encoding], Sequence[float] | NDArray[Any]]:
    """Return what gives the metric of each sequence of a batch, [B], given the encoding of both inputs."""
    if callable(metric):
        return lambda found: [float(metric(found.sequence(at))) for at in range(len(found.lengths))]  # type: ignore[arg-type]
    labels = base.labels or ()
    if metric is None and base.logits is not None and base.logits.shape[-1] == 1:
        return lambda found: np.asarray(found.logits)[:, 0]
    if isinstance(metric, str):
        if metric not in labels:
            raise InvalidRequest(
                f"metric must be one of the {len(labels)} labels of {base.model}, such as "
                f"{', '.join(labels[:8]) or 'none'}, was {metric!r:.80}"
            )
        return lambda found: np.asarray(found.logits)[:, labels.index(metric)]
    if base.pooled is None:
        raise InvalidRequest(f"metric must be a label or a function, as {base.model} does not pool")
    target = base.pooled[0] if metric is None else as_array("metric", metric)
    if target.dtype.kind not in "fiu" or target.shape != base.pooled.shape[1:] or not np.any(target):
        width = base.pooled.shape[1]
        raise InvalidRequest(
            f"metric must be a label, a function or {width} numbers, not all 0, was {described(target)}"
        )
    unit = target / np.linalg.norm(target.astype(np.float64))

    def cosines(found: Encoding) -> NDArray[Any]:
        pooled = np.asarray(found.pooled, np.float64)
        cosine: NDArray[Any] = (
            pooled @ unit / np.maximum(np.linalg.norm(pooled, axis=1), np.finfo(float).tiny)
        )
        return cosine

    return cosines
