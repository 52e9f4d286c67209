"""Engines that embed texts in this process, each from text to normalised vectors.

Each imports what it needs when it is opened: they are in different environments.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from natural.batches import BatchPlan, Ids, Vectors, open_tokenizer, pad, pool, run_in_batches, token_ids

Embed: TypeAlias = Callable[[Sequence[str], BatchPlan], Vectors]


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """What an engine opens."""

    kind: str
    """A key of `ENGINES`."""
    path: str
    """A graph, or the folder of a model."""
    tokenizer: str
    """A `tokenizer.json`."""
    variant: str = ""
    """Its kind of numbers, or its back end."""


def open_engine(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Return what embeds texts by plans of so many lanes and threads."""
    return ENGINES[model.kind](model, lanes, threads)


def _onnxruntime(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Run one of our graphs as the server runs it."""
    from polyhead_server.engine.devices import flush_denormals, on_cpu
    from polyhead_server.engine.session import open_session

    flush_denormals()
    session = open_session(Path(model.path), device=on_cpu("in process"), threads=threads)

    def run(ids: Sequence[Ids]) -> Vectors:
        vectors: Vectors = session.run(["pooled"], pad(ids))[0]
        return vectors

    return _with_own_tokens(run, model.tokenizer, lanes)


def _ctranslate2(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Run a converted model by CTranslate2, which removes padding and does not pool."""
    import ctranslate2

    encoder = ctranslate2.Encoder(
        model.path, compute_type=model.variant, inter_threads=lanes, intra_threads=threads
    )

    def run(ids: Sequence[Ids]) -> Vectors:
        states = np.asarray(encoder.forward_batch(ids).last_hidden_state)
        return pool(states, np.array([len(each) for each in ids]))

    return _with_own_tokens(run, model.tokenizer, lanes)


def _sentence_transformers(model: EngineModel, _lanes: int, threads: int) -> Embed:
    """Run a model by sentence-transformers, which sorts by length, tokenises and pools.

    It runs one batch at a time, with all threads.
    """
    from sentence_transformers import SentenceTransformer

    in_torch, made = model.variant == "torch", dict[str, Any]()
    if in_torch:
        import torch

        torch.set_num_threads(threads)
    else:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        made = {"provider": "CPUExecutionProvider", "session_options": options, "file_name": model.variant}
    encoder = SentenceTransformer(
        model.path,
        device="cpu",
        backend="torch" if in_torch else "onnx",
        model_kwargs=made,
        local_files_only=True,
    )

    def embed(texts: Sequence[str], plan: BatchPlan) -> Vectors:
        vectors: Vectors = encoder.encode(list(texts), batch_size=plan.batch, show_progress_bar=False)
        return vectors

    return embed


ENGINES: dict[str, Callable[[EngineModel, int, int], Embed]] = {
    "onnxruntime": _onnxruntime,
    "ctranslate2": _ctranslate2,
    "sentence-transformers": _sentence_transformers,
}


def _with_own_tokens(run: Callable[[Sequence[Ids]], Vectors], tokenizer: str, lanes: int) -> Embed:
    """Return what tokenises texts, and runs them in batches."""
    opened, pool_of_lanes = open_tokenizer(tokenizer), ThreadPoolExecutor(lanes)

    def embed(texts: Sequence[str], plan: BatchPlan) -> Vectors:
        return run_in_batches(token_ids(opened, texts), plan, run, pool_of_lanes)

    return embed
