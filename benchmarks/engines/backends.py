"""Kinds of engines that embed texts in this process, each from text to normalised vectors.

Each imports what it needs when it is opened: they are in different environments.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort

from benchmarks.engines.plans import (
    BatchPlan,
    Ids,
    Sequences,
    Vectors,
    open_tokenizer,
    pad,
    pool,
    run_in_batches,
    token_ids,
)
from benchmarks.graph import open_graph

Embed: TypeAlias = Callable[[Sequences, BatchPlan], Vectors]


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """What an engine opens."""

    kind: str
    """A key of `ENGINES`."""
    path: str
    """A graph, or the folder of a model."""
    tokenizer: str = ""
    """A `tokenizer.json`; empty where sequences are vectors."""
    variant: str = ""
    """Its kind of numbers, its back end, or the file of its graph."""


def open_engine(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Return what embeds texts by plans of so many lanes and threads."""
    return ENGINES[model.kind](model, lanes, threads)


def _onnxruntime(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Run one of our graphs by onnxruntime."""
    session = open_graph(model.path, threads)

    def run(ids: Sequence[Ids]) -> Vectors:
        vectors: Vectors = session.run(["pooled"], pad(ids))[0]
        return vectors

    return _with_own_tokens(run, model.tokenizer, lanes)


def _openvino(model: EngineModel, lanes: int, threads: int) -> Embed:
    """Run one of our graphs by OpenVINO, with a stream for each lane."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it reports every import
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[model.variant],
        "NUM_STREAMS": lanes,
        "INFERENCE_NUM_THREADS": lanes * threads,
        "ENABLE_HYPER_THREADING": True,  # else it may take fewer threads
    }
    compiled = openvino.Core().compile_model(model.path, "CPU", settings)
    requests = [compiled.create_infer_request() for _ in range(lanes)]

    def run(ids: Sequence[Ids]) -> Vectors:
        request = requests.pop()
        request.infer(pad(ids), share_inputs=True)
        vectors: Vectors = np.array(request.get_tensor("pooled").data)
        requests.append(request)
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
    import torch
    from sentence_transformers import SentenceTransformer

    backend: Any = model.variant
    made = dict[str, Any]()
    torch.set_num_threads(threads)
    if backend == "onnx":
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        made = {"provider": "CPUExecutionProvider", "session_options": options}
    encoder = SentenceTransformer(
        model.path, device="cpu", backend=backend, model_kwargs=made, local_files_only=True
    )

    def embed(texts: Sequences, plan: BatchPlan) -> Vectors:
        vectors: Vectors = encoder.encode(list(texts), batch_size=plan.batch, show_progress_bar=False)
        return vectors

    return embed


ENGINES: dict[str, Callable[[EngineModel, int, int], Embed]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "ctranslate2": _ctranslate2,
    "sentence-transformers": _sentence_transformers,
}


def _with_own_tokens(run: Callable[[Sequence[Ids]], Vectors], tokenizer: str, lanes: int) -> Embed:
    """Return what tokenises texts, and runs them in batches."""
    opened, pool_of_lanes = open_tokenizer(tokenizer), ThreadPoolExecutor(lanes)

    def embed(texts: Sequences, plan: BatchPlan) -> Vectors:
        return run_in_batches(token_ids(opened, texts), plan, run, pool_of_lanes)

    return embed
