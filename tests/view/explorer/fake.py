"""A client without a server: encoders of any size with made-up attention, for the explorer's tests."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyhead_client import (
    AsyncClient,
    Encoding,
    HeadScores,
    InvalidRequest,
    ModelInfo,
    NotFound,
    PolyheadError,
    ServedModel,
    Timings,
)
from polyhead_client.tracing import Trace
from polyhead_client.visibility import Visibility
from polyhead_proto.tensors import TensorSpec
from polyhead_view.explorer.frames import thumbnails

NAMES = ("previous", "next", "current", "first", "entropy", "normalised_entropy", "confidence", "distance")
D = 8


class FakeClient:
    """Answers as `AsyncClient` does; raises `error` instead, and while `held` waits until it is cancelled."""

    def __init__(self, *, layers: int = 2, heads: int = 3, max_tokens: int = 512) -> None:
        self.layers, self.heads, self.max_tokens = layers, heads, max_tokens
        self.kv_heads: int | None = None
        self.graphs = {"words": ["attention", "insight"], "vectors": ["attention"]}
        self.memory = False  # whether `vectors` attend to one as well
        self.ranks = False  # whether families of texts are rerankers
        self.head_mask = True
        self.causal = False
        self.error: PolyheadError | None = None
        self.held = False
        self.calls: list[dict[str, Any]] = []
        self.waiting = 0
        self.reached = asyncio.Event()
        self.state = "READY"

    def as_client(self) -> AsyncClient:
        return cast(AsyncClient, self)

    async def models(self) -> list[ServedModel]:
        await self._answer()
        names = [
            name
            for family, graphs in self.graphs.items()
            for name in (family, *(f"{family}.{graph}" for graph in graphs))
        ]
        return [ServedModel(name=name, version="1", state=self.state, reason="") for name in names]

    async def model(self, name: str) -> ModelInfo:
        await self._answer()
        family = name.partition(".")[0]
        if name != family and name.partition(".")[2] not in self.graphs.get(family, ()):
            raise NotFound(f"no model {name}")
        vectors = ["x", "memory"] if self.memory else ["x"]
        inputs = vectors if family == "vectors" else ["text", "text_pair"]
        inputs += ["head_mask"] if self.head_mask else []
        maps = {"attention": "T", **({"cross_attention": "S"} if "memory" in inputs else {})}
        outputs = [
            TensorSpec(
                name=f"{role}.{layer}",
                datatype="FP32",
                shape=(-1, self.heads, -1, -1),
                axes=("B", "H", "T", keys),
                role=role,
                layer=layer,
            )
            for layer in range(self.layers)
            for role, keys in maps.items()
            if name != family
        ]
        outputs += [TensorSpec(name=one, datatype="BYTES", shape=(-1, -1)) for one in ("tokens", "lengths")]
        outputs += [
            TensorSpec(name=one, datatype="FP32", shape=(-1, -1, -1), axes=("B", "T", "T"), role=one)
            for one in ("rollout", "contacts")
        ]
        if self.ranks:
            labels = ("relevance",)
            outputs.append(
                TensorSpec(
                    name="logits",
                    datatype="FP32",
                    shape=(-1, 1),
                    axes=("B", "C"),
                    role="logits",
                    labels=labels,
                )
            )
        return ModelInfo(
            name=name,
            versions=("1",),
            platform="fake",
            inputs={one: TensorSpec(name=one, datatype="BYTES", shape=(-1,)) for one in inputs},
            outputs={one.name: one for one in outputs},
            properties={
                "layers": str(self.layers),
                "heads": str(self.heads),
                "kv_heads": str(self.kv_heads or ""),
                "pooling": "" if self.ranks else "mean",
                "d_model": str(D),
                "causal": "true" if self.causal else "false",
                "models": ",".join([family, *(f"{family}.{graph}" for graph in self.graphs[family])]),
            },
        )

    async def encode(self, inputs: Any, **wanted: Any) -> Encoding:
        if isinstance(inputs, list):
            text = inputs
            parts = [await self.encode(one, **wanted) for one in text]
            listed: dict[str, Any] = {
                name: [getattr(part, name) for part in parts]
                for name in ("tokens", "output", "pooled", "lengths")
            }
            return replace(parts[0], **listed)
        self.calls.append({"inputs": inputs, **wanted})
        await self._answer()
        pair = wanted.get("text_pair")
        if isinstance(inputs, str):
            tokens = ["[CLS]", *inputs.split(), "[SEP]"] if inputs.strip() else []
            tokens += [*pair.split(), "[SEP]"] if pair else []
        else:
            tokens = [str(at) for at in range(len(inputs))]
        if len(tokens) > self.max_tokens:
            if not wanted.get("truncate"):
                raise InvalidRequest(
                    f"text[0] must be at most {self.max_tokens} tokens, was {len(tokens)}: "
                    "shorten it or set the parameter truncate to true"
                )
            tokens = tokens[: self.max_tokens]
        T, L, H = len(tokens), self.layers, self.heads
        starts = np.array([-1 if token in {"[CLS]", "[SEP]"} else at for at, token in enumerate(tokens)])
        kept = np.asarray(wanted.get("head_mask", np.ones((L, H))))
        output = np.array(
            [[len(token) + d * kept.mean() for d in range(D)] for token in tokens], np.float32
        ).reshape(T, D)
        for edit in wanted.get("edits", ()):
            output[edit.token] = edit.vector
        heads = tuple(wanted.get("heads") or range(H))
        maps: dict[str, Any] = {}
        for name in ("attention", "cross_attention"):
            asked: Any = wanted.get(name) or []
            found = {
                layer: np.stack([_weights(T, layer, head) for head in heads])
                for layer in (range(L) if asked is True else asked)
            }
            if name == "cross_attention":
                found = {layer: weights[:, :, : len(wanted["memory"])] for layer, weights in found.items()}
            maps[name] = found or None
        if self.causal and maps["attention"]:
            maps["visible"] = Visibility(causal=True).of_layers(maps["attention"], None)
            maps["attention"] = {layer: np.tril(weights) for layer, weights in maps["attention"].items()}
        return Encoding(
            model=wanted["model"],
            version="1",
            output=output,
            pooled=output.sum(axis=0) / max(T, 1),
            heads=heads,
            queries=None,
            tokens=tokens if isinstance(inputs, str) else None,
            **maps,
            lengths=T,
            spans=np.stack([starts] * 3, axis=1) if wanted.get("spans") else None,
            logits=np.array([T / 10 * kept.mean()], np.float32) if self.ranks else None,
            labels=("relevance",) if self.ranks else None,
            timings=Timings(total_ns=2_000_000, compute_ns=1_000_000),
            scores=self._scores(T) if wanted.get("scores") else None,
            rollout=_weights(T, 0, 0) if wanted.get("rollout") else None,
            contacts=_weights(T, 1, 1) if wanted.get("contacts") else None,
            stream=output[[token for _, token in wanted["read"]]] if "read" in wanted else None,
            thumbnails=self._thumbnails(T) if wanted.get("thumbnails") else None,
        )

    async def trace(self, clean: str, corrupted: str, **wanted: Any) -> Trace:
        self.calls.append({"clean": clean, "corrupted": corrupted, **wanted})
        await self._answer()
        tokens = [["[CLS]", *text.split(), "[SEP]"] for text in (clean, corrupted)]
        if len(tokens[0]) != len(tokens[1]):
            raise InvalidRequest("clean and corrupted must have as many tokens")
        differ = np.array([float(one != other) for one, other in zip(*tokens, strict=True)])
        return Trace(
            model=f"{wanted['model']}.stream",
            version="1",
            by="token",
            shares=np.linspace(1, -0.25, self.layers + 1)[:, None] * differ,
            clean=1.0,
            corrupted=0.75,
            tokens=(tokens[0], tokens[1]),
        )

    def _scores(self, T: int) -> HeadScores:
        values = np.random.default_rng(T).random((2, self.layers, self.heads, len(NAMES)), np.float32)
        values[..., 0, 1] = np.nan
        layers, heads = tuple(range(self.layers)), tuple(range(self.heads))
        weighted = HeadScores(values=values[1], names=NAMES, layers=layers, heads=heads)
        return HeadScores(values=values[0], names=NAMES, layers=layers, heads=heads, weighted=weighted)

    def _thumbnails(self, T: int) -> NDArray[np.uint8]:
        layers = [[_weights(T, layer, head) for head in range(self.heads)] for layer in range(self.layers)]
        return np.stack([thumbnails(np.stack(heads)) for heads in layers])

    async def _answer(self) -> None:
        if self.error is not None:
            raise self.error
        if self.held:
            self.waiting += 1
            self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1


def _weights(T: int, layer: int, head: int) -> Any:
    """Attention [T, T] around a diagonal, which differs between heads."""
    query, key = np.ogrid[:T, :T]
    raw = np.exp(-np.abs(query - key + head - layer) / (1 + (layer + head) % 5)) + 0.3 * (key == 0)
    return np.asarray(raw / raw.sum(axis=-1, keepdims=True), np.float32)
