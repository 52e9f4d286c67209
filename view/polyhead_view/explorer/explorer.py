"""Answer what the page asks, by calls of a polyhead server.

Shape letters: T tokens, D d_model, H heads, L layers, S scores.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import AsyncClient, Encoding, InvalidRequest, ModelInfo
from polyhead_view.explorer.frames import pack, quantise, thumbnails
from polyhead_view.similarity import split_similarity

_MOST_SILENCED = 65_536


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the page asks about: a sentence, or two, in a family, with some heads silenced."""

    model: str
    text: str
    other: str = ""
    """The sentence to compare with."""
    truncate: bool = False
    silenced: tuple[tuple[int, int], ...] = ()
    """Layer and head of each."""
    layer: int = 0
    head: int = 0
    weighted: bool = False

    @classmethod
    def read(cls, sent: Any) -> "Question":
        """Read what the page sent, after JSON.

        Raises:
            InvalidRequest: It is not a question; the message names the field.
        """
        if not isinstance(sent, dict) or not sent.keys() <= cls.__dataclass_fields__.keys():
            raise InvalidRequest(f"a question must be an object of {', '.join(cls.__dataclass_fields__)}")
        types = {"model": str, "text": str, "other": str, "truncate": bool, "weighted": bool, "layer": int}
        for name, kind in (types | {"head": int}).items():
            if name in sent and type(sent[name]) is not kind:
                raise InvalidRequest(
                    f"{name} must be of type {kind.__name__}, was {type(sent[name]).__name__}"
                )
        if not sent.get("model") or not sent.get("text"):
            raise InvalidRequest("a question must name a model, and have a text")
        pairs = sent.get("silenced", [])
        if not (
            isinstance(pairs, list)
            and len(pairs) <= _MOST_SILENCED
            and all(isinstance(pair, list) and [type(at) for at in pair] == [int, int] for pair in pairs)
        ):
            raise InvalidRequest("silenced must be a list of [layer, head]")
        return cls(**{**sent, "silenced": tuple(map(tuple, pairs))})


class Explorer:
    """The half of the explorer that calls the server."""

    def __init__(self, connect: Callable[[], AsyncClient], *, address: str, model: str | None = None) -> None:
        """Prepare an explorer; the first question connects.

        Args:
            connect: Makes a client.
            address: The server's address, to show.
            model: The family to show first.
        """
        self._connect = connect
        self._client = connect()
        self._address = address
        self._model = model
        self._listing: object = None

    async def server(self) -> dict[str, Any]:
        """Describe the server's families: what can be shown of each, and what is missing.

        Raises:
            PolyheadError: The call failed.
        """
        models = await self._client.models()
        listing = sorted((model.name, model.version, model.state) for model in models)
        if listing != self._listing:
            # Clients remember what a family has; it may have another graph now.
            self._client = self._client if self._listing is None else self._connect()
            self._listing = listing
        states: dict[str, set[str]] = defaultdict(set)
        for name, _, state in listing:
            states[name].add(state)
        families = [
            {"name": name, "refused": f"{name} is not ready: it is {' and '.join(sorted(found))}."}
            if "READY" not in found
            else describe(await self._client.model(name))
            for name, found in states.items()
            if "." not in name
        ]
        return {"address": self._address, "model": self._model, "families": families}

    async def overview(self, asked: Question) -> bytes:
        """Return the tokens, and a thumbnail and the scores of each head.

        Without an insight graph there are no scores, and thumbnails are made here from the attention graph.
        """
        insight = has_insight(await self._client.model(asked.model))
        encoding = await self._encode(
            asked,
            scores=insight,
            thumbnails=insight,
            attention=not insight,
            dtype=None if insight else "UINT8",
        )
        scores, maps = encoding.scores, encoding.attention or {}
        header = {
            **_header(encoding),
            "pruned": [
                f"{layer}.{head}"
                for layer in (scores.layers if scores else maps)
                for head in encoding.heads or ()
                if encoding.is_pruned(layer, head)
            ],
            "layers": list(scores.layers if scores else maps),
            "scores": list(scores.names if scores else ()),
        }
        found = {"raw": scores, "weighted": scores and scores.weighted}
        arrays = {name: one.values for name, one in found.items() if one is not None}
        drawn = (
            await asyncio.to_thread(_draw, list(maps.values()))
            if encoding.thumbnails is None
            else encoding.thumbnails
        )
        return pack(header, {"thumbnails": drawn, **arrays})

    async def head(self, asked: Question) -> bytes:
        """Return the map of one head, [T, T]."""
        encoding = await self._encode(
            asked, attention=[asked.layer], heads=[asked.head], weighted=asked.weighted, dtype="FP16"
        )
        ((weights,),) = (encoding.attention or {}).values()
        return _map(encoding, weights)

    async def rollout(self, asked: Question) -> bytes:
        """Return attention rollout, [T, T]: how much of each output token comes from each input token."""
        info = await self._client.model(asked.model)
        if not has_insight(info):
            raise InvalidRequest(f"rollout is not available: {how_to_export(info, 'insight')}")
        encoding = await self._encode(asked, rollout=True)
        return _map(encoding, encoding.rollout)

    async def change(self, asked: Question) -> bytes:
        """Return what silencing heads changes: cosines of the embedding and each token before and after."""
        before, after = await asyncio.gather(
            *(self._encode(one, output=True, pooled=None) for one in (replace(asked, silenced=()), asked))
        )
        first, second = (
            one.output.mean(axis=0) if one.pooled is None else one.pooled for one in (before, after)
        )
        header = {**_header(after), "cosine": float(cosine(first, second))}
        return pack(header, {"cosines": cosine(before.output, after.output).astype(np.float32)})

    async def similarity(self, asked: Question) -> bytes:
        """Return the split of the cosine of two sentences into pairs of tokens, [T, T of the other]."""
        kept = kept_heads(await self._client.model(asked.model), asked.silenced)
        encoding = await self._client.encode(
            [asked.text, asked.other], model=asked.model, truncate=asked.truncate, **kept
        )
        split = split_similarity(encoding, await self._client.model(encoding.model))
        codes, scale = quantise(split.contributions, signed=True)
        header = {
            "scale": scale,
            "cosine": split.cosine,
            "tokens": split.tokens[0],
            "columns": split.tokens[1],
        }
        return pack(header, {"map": codes})

    async def _encode(self, asked: Question, **wanted: Any) -> Encoding:
        """Encode the text as it is asked for, without any output that is not wanted."""
        encoding = await self._client.encode(
            asked.text,
            model=asked.model,
            truncate=asked.truncate,
            **kept_heads(await self._client.model(asked.model), asked.silenced),
            **({"output": False, "pooled": False} | wanted),
        )
        if not encoding.tokens:
            raise InvalidRequest("the text must have tokens, it has none")
        return encoding


def describe(info: ModelInfo) -> dict[str, Any]:
    """Describe a family for the page."""
    if not info.takes_text:
        refused = (
            f"{info.family} takes no texts. The explorer needs a family with a tokeniser: "
            "polyhead export --checkpoint FOLDER."
        )
        return {"name": info.family, "refused": refused}
    missing = []
    if not has_insight(info):
        missing.append(f"Scores and rollout are not available: {how_to_export(info, 'insight')}")
    if "head_mask" not in info.inputs:
        missing.append(
            f"Heads cannot be silenced: {info.family} takes no head mask; export it with --head-mask."
        )
    return {
        "name": info.family,
        "layers": info.layers,
        "heads": info.heads,
        "insight": has_insight(info),
        "head_mask": "head_mask" in info.inputs,
        "missing": missing,
    }


def has_insight(info: ModelInfo) -> bool:
    """Return whether a family has an insight graph."""
    return f"{info.family}.insight" in info.models


def how_to_export(info: ModelInfo, graph: str) -> str:
    """Say how a family gets a graph."""
    return f"{info.family}.{graph} is not served; export the family with --graphs {graph}."


def kept_heads(info: ModelInfo, silenced: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Return the argument `head_mask` of `encode`, float32 [L, H]; none if no head is silenced.

    Raises:
        InvalidRequest: There is no such head, or the family takes no head mask.
    """
    if not silenced:
        return {}
    if "head_mask" not in info.inputs:
        raise InvalidRequest(
            f"silenced must be empty: {info.family} takes no head mask (--head-mask at export)"
        )
    layers, heads = info.layers or 0, info.heads or 0
    mask = np.ones((layers, heads), np.float32)
    for layer, head in silenced:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise InvalidRequest(
                f"silenced must be heads within {layers} layers of {heads} heads, was {[layer, head]}"
            )
        mask[layer, head] = 0
    return {"head_mask": mask}


def cosine(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the cosines of vectors along the last axis; 0 where one of them is zero."""
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products: NDArray[Any] = (first * second).sum(axis=-1)
    return products / np.where(norms > 0, norms, 1)


def _header(encoding: Encoding) -> dict[str, Any]:
    """Describe a call: the tokens, who answered, and how long it took in milliseconds."""
    compute = encoding.timings.compute_ns
    return {
        "tokens": encoding.tokens,
        "model": encoding.model,
        "total_ms": encoding.timings.total_ns / 1e6,
        "compute_ms": None if compute is None else compute / 1e6,
    }


def _draw(maps: list[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.stack([thumbnails(layer) for layer in maps])


def _map(encoding: Encoding, values: Any) -> bytes:
    codes, scale = quantise(values)
    return pack({**_header(encoding), "columns": encoding.tokens, "scale": scale}, {"map": codes})
