"""Answer what the page asks, by calls of a polyhead server.

Shape letters: T tokens, D d_model, H heads, L layers, S scores.
"""

import asyncio
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import AsyncClient, Edit, Encoding, InvalidRequest, ModelInfo
from polyhead_proto.names import LOGITS, TEXT_PAIR, Property
from polyhead_proto.outputs.attention import CROSS_ATTENTION_WEIGHTS
from polyhead_view.explorer import code
from polyhead_view.explorer.answers import head_map_of, header_of, layers_of, map_of, overview, rank_of
from polyhead_view.explorer.frames import pack, quantise
from polyhead_view.explorer.questions import WHOLE, Question
from polyhead_view.explorer.saved import SavedPage
from polyhead_view.inputs import NO_FILES, SequenceFiles
from polyhead_view.similarity import split_similarity

_TOO_LONG = re.compile(r"must be at most (\d+) tokens(?:, was (\d+)| and \d+ characters)")


class Explorer:
    """The half of the explorer that calls the server."""

    def __init__(
        self,
        connect: Callable[[], AsyncClient],
        *,
        address: str,
        model: str | None = None,
        files: SequenceFiles = NO_FILES,
    ) -> None:
        """Prepare an explorer; the first question connects.

        Args:
            connect: Makes a client.
            address: The server's address, to show.
            model: The family to show first.
            files: What to encode in families that take no texts.
        """
        self._connect = connect
        self._client = connect()
        self._address = address
        self._model = model
        self._files = files
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
            else await self._described(name)
            for name, found in states.items()
            if "." not in name
        ]
        return {
            "address": self._address,
            "model": self._model,
            "input": self._files.input and self._files.input.name,
            "families": families,
        }

    async def overview(self, asked: Question) -> bytes:
        """Return the tokens, and a thumbnail and the scores of each head.

        Without an insight graph there are no scores, and thumbnails are made here from the attention graph.
        """
        info = await self._client.model(asked.model)
        if has(info, "insight") and not asked.cross:
            encoding, left_out = await self._counted(asked, scores=True, thumbnails=True)
            visible = visible_of(info, encoding)
            return await asyncio.to_thread(overview, encoding, {}, left_out=left_out, visible=visible)
        encoding, left_out = await self._counted(asked, **all_heads(asked), dtype="UINT8")
        return await asyncio.to_thread(overview, encoding, layers_of(encoding), left_out=left_out)

    async def map(self, asked: Question) -> bytes:
        """Return the map of one head, [T, S], or of all of them."""
        encoding = await self._map(asked, **({} if asked.whole else {"dtype": "FP16"}))
        if asked.whole:
            return map_of(encoding, getattr(encoding, asked.whole))
        (maps,) = layers_of(encoding).values()
        return head_map_of(encoding, maps)

    async def npz(self, asked: Question) -> bytes:
        """Return the map of one head, or of all of them, as a file that `Encoding.load` reads."""
        file = io.BytesIO()
        (await self._map(asked)).save(file)
        return file.getvalue()

    async def code(self, asked: Question) -> bytes:
        """Return the request for the map of one head, or of all of them, as code.

        The header's fields are python and curl; the latter is empty where there is no text.
        """
        info = await self._client.model(asked.model)
        graph = await self._client.model(f"{info.family}.{WHOLE.get(asked.whole, 'attention')}")
        header = {
            "python": code.python(asked, info, address=self._address, files=self._files),
            "curl": code.curl(asked, graph, address=self._address),
        }
        return pack(header, {})

    async def page(self, asked: Question) -> bytes:
        """Return all heads of the sentence as an HTML page that works without a server."""
        info = await self._client.model(asked.model)
        encoding, left_out = await self._counted(
            asked, **all_heads(asked), weighted=asked.weighted, dtype="FP16"
        )
        scores = rollout = contacts = None
        if has(info, "insight") and not asked.cross:
            insight = await self._encode(asked, scores=True, rollout=True)
            scores, rollout = insight.scores, insight.rollout
        if has(info, "contacts"):
            contacts = (await self._encode(asked, contacts=True)).contacts
        try:
            page = SavedPage.of(
                replace(encoding, rollout=rollout, contacts=contacts),
                maps := layers_of(encoding),
                layer=asked.layer if asked.layer in maps else None,
                head=asked.head if asked.head in (encoding.heads or ()) else None,
                scores=scores,
                left_out=left_out,
                text=asked.text,
                pair=asked.pair,
                silenced=asked.silenced,
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        return (await asyncio.to_thread(page.html)).encode()

    async def change(self, asked: Question) -> bytes:
        """Return what silencing heads changes: cosines of the embedding and each token before and after."""
        before, after = await asyncio.gather(
            *(self._encode(one, output=True, pooled=None) for one in (replace(asked, silenced=()), asked))
        )
        return change_of(before, after)

    async def similarity(self, asked: Question) -> bytes:
        """Return the split of the cosine of two sentences into pairs of tokens, [T, T of the other]."""
        info, kept = await self._of_two(asked)
        encoding = await self._call(info, inputs=[asked.text, asked.other], truncate=asked.truncate, **kept)
        split = split_similarity(encoding, await self._client.model(encoding.model))
        codes, scale = quantise(split.contributions, signed=True)
        header = {
            "scale": scale,
            "cosine": split.value,
            "tokens": split.tokens[0],
            "columns": split.tokens[1],
        }
        return pack(header, {"map": codes})

    async def trace(self, asked: Question) -> bytes:
        """Return what each place of the first sentence recovers in the run of the other, [L + 1, T]."""
        info = await self._traced(asked)
        with _as_too_many_tokens(info.family):
            found = await self._client.trace(
                asked.text, asked.other, model=info.family, truncate=asked.truncate
            )
        codes, scale = quantise(found.shares, signed=True)
        header = {
            "scale": scale,
            "model": found.model,
            "clean": found.clean,
            "corrupted": found.corrupted,
            "tokens": [f"before layer {layer}" for layer in range(len(found.shares) - 1)]
            + ["after the last"],
            "columns": [
                mine if mine == other else f"{mine} ← {other}"
                for mine, other in zip(*found.tokens, strict=True)
            ],
        }
        return pack(header, {"map": codes})

    async def patch(self, asked: Question) -> bytes:
        """Return what one place of the first sentence changes in the run of the other, as `change` does."""
        info = await self._traced(asked)
        place = (asked.layer, asked.token)

        async def run(text: str, **wanted: Any) -> Encoding:
            return await self._call(info, inputs=text, truncate=asked.truncate, **wanted)

        # All of one graph, so that they differ by the patch alone.
        clean, before = await asyncio.gather(*(run(text, read=[place]) for text in (asked.text, asked.other)))
        vector: Any = clean.stream
        after = await run(asked.other, edits=[Edit(*place, vector[0], mode="replace")])
        return change_of(before, after)

    async def _of_two(self, asked: Question) -> tuple[ModelInfo, dict[str, Any]]:
        """Return the family that a question about two sentences is about, and the argument `head_mask`.

        Raises:
            InvalidRequest: It takes no texts, or there are not two; or there is no such head.
        """
        info = await self._client.model(asked.model)
        kept = code.kept_heads(info, asked.silenced)
        if not (info.takes_text and asked.text and asked.other):
            raise InvalidRequest(
                "a question about two sentences must have a text, and another to compare with"
            )
        return info, kept

    async def _traced(self, asked: Question) -> ModelInfo:
        """Return the family, if it can be traced.

        Raises:
            InvalidRequest: It cannot.
        """
        info, kept = await self._of_two(asked)
        if not has(info, "stream"):
            raise InvalidRequest(f"a trace is not available: {how_to_export(info, 'stream')}")
        if kept:
            raise InvalidRequest("silenced must be empty for a trace, which is of all heads: restore them")
        return info

    async def _map(self, asked: Question, **more: Any) -> Encoding:
        if asked.whole:
            info, graph = await self._client.model(asked.model), WHOLE[asked.whole]
            if not has(info, graph):
                raise InvalidRequest(
                    f"the map of {asked.whole} is not available: {how_to_export(info, graph)}"
                )
        return await self._encode(asked, **code.wanted_of(asked), **more)

    async def _encode(self, asked: Question, **wanted: Any) -> Encoding:
        """Encode what it is asked about, without any output that is not wanted.

        Raises:
            InvalidRequest: It has no tokens, or too many.
            PolyheadError: The call failed.
        """
        info = await self._client.model(asked.model)
        if info.takes_text and not asked.text:
            raise InvalidRequest("a question must have a text")
        inputs: dict[str, Any] = (
            {"inputs": asked.text} if info.takes_text else dict(self._files.arguments(info, asked.length))
        )
        if asked.pair:
            inputs |= {"text_pair": asked.pair, "spans": True}  # which tell where the second text begins
        wanted = {"output": False, "pooled": False} | wanted | code.kept_heads(info, asked.silenced)
        encoding = await self._call(info, **inputs, **wanted, truncate=asked.truncate)
        if not encoding.lengths:
            raise InvalidRequest("the text must have tokens, it has none")
        return encoding

    async def _counted(self, asked: Question, **wanted: Any) -> tuple[Encoding, int | None]:
        """Do so, and count the tokens that truncation left out; None if the server does not count them.

        Replies do not say whether a text was truncated, so it is sent whole first.
        """
        try:
            return await self._encode(replace(asked, truncate=False), **wanted), 0
        except TooManyTokens as error:
            if not asked.truncate:
                raise
            left_out = None if error.count is None else error.count - error.most
            return await self._encode(asked, **wanted), left_out

    async def _call(self, info: ModelInfo, **arguments: Any) -> Encoding:
        """Encode.

        Raises:
            TooManyTokens: A text is too long.
            PolyheadError: The call failed.
        """
        with _as_too_many_tokens(info.family):
            return await self._client.encode(**arguments, model=info.family)

    async def _described(self, family: str) -> dict[str, Any]:
        info, graph = await self._client.model(family), f"{family}.attention"
        maps = await self._client.model(graph) if graph in info.models else info
        return describe(info, cross=bool(maps.with_role(CROSS_ATTENTION_WEIGHTS.role)))


@contextmanager
def _as_too_many_tokens(family: str) -> Iterator[None]:
    """Raise `TooManyTokens` for a text that the server finds too long."""
    try:
        yield
    except InvalidRequest as error:
        if found := _TOO_LONG.search(str(error)):
            most, count = found.groups()
            raise TooManyTokens(family, int(most), None if count is None else int(count)) from error
        raise


class TooManyTokens(InvalidRequest):
    """A sentence that is too long for a family."""

    def __init__(self, family: str, most: int, count: int | None) -> None:
        self.most, self.count = most, count
        more = "more than" if count is None else f"{count} tokens, {count - most} more than"
        super().__init__(
            f"the sentence has {more} the {most} tokens that {family} takes: shorten it, or truncate it"
        )


def describe(info: ModelInfo, *, cross: bool) -> dict[str, Any]:
    """Describe a family for the page; `cross` says whether its layers attend to a memory as well."""
    if not any(has(info, graph) for graph in ("attention", "insight")):
        return {
            "name": info.family,
            "refused": f"{info.family} gives no attention: {how_to_export(info, 'attention')}",
        }
    missing = []
    if not has(info, "insight") and info.takes_text:
        missing.append(f"Scores and rollout are not available: {how_to_export(info, 'insight')}")
    if "head_mask" not in info.inputs:
        missing.append(
            f"Heads cannot be silenced: {info.family} takes no head mask; export it with --head-mask."
        )
    return {
        "name": info.family,
        "text": info.takes_text,
        "layers": info.layers,
        "heads": info.heads,
        "kv_heads": info.kv_heads,
        "cross": cross,
        "whole": [name for name, graph in WHOLE.items() if has(info, graph)],
        "stream": has(info, "stream"),
        "pairs": TEXT_PAIR in info.inputs,
        "ranks": any(each.role == LOGITS and len(each.labels or ()) == 1 for each in info.outputs.values()),
        "splits": info.properties.get(Property.POOLING) == "mean",
        "head_mask": "head_mask" in info.inputs,
        "missing": missing,
    }


def has(info: ModelInfo, graph: str) -> bool:
    """Return whether a family has a graph."""
    return f"{info.family}.{graph}" in info.models


def how_to_export(info: ModelInfo, graph: str) -> str:
    """Say how a family gets a graph."""
    return f"{info.family}.{graph} is not served; export the family with --graphs {graph}."


def change_of(before: Encoding, after: Encoding) -> bytes:
    """Return the cosines of the embedding and of each token's vector, before and after a change."""
    first, second = (
        np.mean(one.output, axis=0) if one.pooled is None else one.pooled for one in (before, after)
    )
    header = {**header_of(after), "cosine": float(cosine(first, second)), "before": rank_of(before)}
    cosines = cosine(np.asarray(before.output), np.asarray(after.output))
    return pack(header, {"cosines": cosines.astype(np.float32)})


def cosine(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the cosines of vectors along the last axis; 0 where one of them is zero."""
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products: NDArray[Any] = (first * second).sum(axis=-1)
    return products / np.where(norms > 0, norms, 1)


def all_heads(asked: Question) -> dict[str, Any]:
    """Return the argument of `encode` that asks for the weights of all heads."""
    return {"cross_attention" if asked.cross else "attention": True}


def visible_of(info: ModelInfo, encoding: Encoding) -> Mapping[int, NDArray[np.bool_]]:
    """Return layer → what the masks of a family let the tokens of a sequence see, [1, T, T]."""
    if info.visibility is None or encoding.scores is None:
        return {}
    tokens: Any = encoding.lengths  # of one sequence
    alike = np.broadcast_to(np.float32(0), (1, tokens, tokens))
    return info.visibility.of_layers(dict.fromkeys(encoding.scores.layers, alike), None)
