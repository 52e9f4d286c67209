"""Check an int8 family against PyTorch, and measure how far it is from fp32.

An int8 graph cannot be compared from end to end with another implementation of the same arithmetic: where an
input is half-way between two integers, the last digit of a norm decides, and each such step makes others in
the layers after it. So the graph is cut at its products of integers, and three questions are answered
separately:

* Is the traced graph, before quantisation, the encoder? It is compared with PyTorch, as in fp32.
* Is each product what the recipe says? With what the graph itself put in, NumPy computes it again, from the
  weights before quantisation.
* Is everything between the products as traced? The traced graph computes it again, from the graph's own
  products.

What 8 bits change is measured from end to end, on sentences if there is a tokenizer.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyhead_export.comparison import check_parity
from polyhead_export.errors import ParityError
from polyhead_export.parity import (
    RANDOM_INPUTS,
    Cosine,
    Drift,
    Judged,
    Reference,
    compared_sizes,
    open_session,
    run_reference,
)
from polyhead_export.quantisation import InputRange, input_range, lookups, matrix_of, products
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, outputs_of
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto.drift import change, cosines_of, deviation
from polyhead_proto.tensors import TensorSpec

Array = NDArray[Any]
Vectors = NDArray[np.float32]

LEAST_MEAN_COSINE = 0.99
"""The lowest mean cosine with fp32 that is accepted: of pooled or token vectors, otherwise of the output."""

TOLERANCE = 1e-5
"""The largest deviation of a step from what its own inputs give.

A product of integers is exact, and is scaled in three roundings, on every processor; between two products
there are a norm, attention or an activation, whose rounding is far below one of 255 steps.
"""

_BATCH = 16
_RANDOM_SIZES = ((8, 16), (8, 64))


class JudgeInInt8:
    """Compares int8 graphs with PyTorch; a `Judge`.

    Args:
        encoder: The encoder, in fp32.
        folder: Holds the graphs as they will be served, and their weights.
        traced: The graphs before quantisation.
        texts: The token ids of sentences to measure drift on; None for random inputs.
    """

    def __init__(
        self,
        encoder: Encoder,
        folder: Path,
        traced: Mapping[GraphKind, ir.Model],
        texts: Sequence[Sequence[int]] | None,
    ) -> None:
        self._encoder = encoder
        self._reference = Reference(encoder)
        self._folder = folder
        self._traced = traced
        self._texts = texts

    def judge(self, kind: GraphKind) -> Judged:
        """Compare a graph in three parts, and measure its drift."""
        config, plain, served = self._encoder.config, self._traced[kind], self._folder / kind.file
        # Not in the system's temporary folder: the weights may be larger than the space there.
        with tempfile.TemporaryDirectory(prefix="fp32-", dir=self._folder) as place:
            file = Path(place) / kind.file
            ir.save(plain.clone(), file, external_data="fp32.bin")
            outputs = self._reference.compare(file, kind, plain)
            check_parity(outputs, kind.file)
        _check_products(served, plain, config, kind)
        drift, cosines = _measure_drift(self._encoder, open_session(served), kind, self._texts)
        _check_cosines(cosines, kind, config, self._inputs)
        return Judged(outputs=outputs, drift=drift, cosines=cosines)

    def drift(self, judged: Mapping[str, Judged]) -> Drift:
        """Return the drift of graphs."""
        return Drift(
            deviations={graph: each.drift or {} for graph, each in judged.items()},
            emulated=False,
            inputs=self._inputs,
            cosines={graph: each.cosines or {} for graph, each in judged.items()},
            least_mean_cosine=LEAST_MEAN_COSINE,
        )

    @property
    def _inputs(self) -> str:
        return RANDOM_INPUTS if self._texts is None else f"{len(self._texts)} sentences"


def reference_product(x: Vectors, weights: Vectors, how: InputRange) -> Vectors:
    """Compute x W in 8 bits, as the recipe of `polyhead_export.quantisation` says.

    Args:
        x: [..., K].
        weights: W, [K, N].
        how: How x becomes integers.

    Raises:
        ParityError: The integers of W would saturate on a CPU that adds products in 16 bits.
    """
    pairs = np.pad(weights, ((0, len(weights) % 2), (0, 0))).reshape(-1, 2, weights.shape[1])
    columns = np.maximum(_same_sign(pairs) / np.float32(127), np.float32(1e-30))
    if 255 * _same_sign(np.rint(pairs / columns)).max() >= 2**15:
        raise ParityError("two weights of a column saturate on a CPU without VNNI")
    largest = (np.abs(x) if how.signed else x).max(axis=-1, keepdims=True)
    scale = np.maximum(
        largest * np.float32(1 / (255 - how.zero)), np.float32(how.smallest_scale), dtype=np.float32
    )
    # Not clipped: a number out of range is an error.
    products = np.rint(x / scale).astype(np.float64) @ np.rint(weights / columns).astype(np.float64)
    result: Vectors = products.astype(np.float32) * columns * scale
    return result


def _same_sign(pairs: Vectors) -> Vectors:
    """Return the largest sum of one sign over pairs [K/2, 2, N], by column."""
    positive = np.clip(pairs, 0, None).sum(axis=1)
    negative = np.clip(-pairs, 0, None).sum(axis=1)
    largest: Vectors = np.maximum(positive, negative).max(axis=0)
    return largest


def _reference_rows(rows: Vectors) -> Vectors:
    """Round rows [..., D] of a table to 8 bits."""
    scales = np.maximum(np.abs(rows).max(axis=-1, keepdims=True) / np.float32(127), np.float32(1e-30))
    rounded: Vectors = np.rint(rows / scales) * scales
    return rounded


def _check_products(file: Path, plain: ir.Model, config: EncoderConfig, kind: GraphKind) -> None:
    """Check each product by NumPy, and what lies between them by the traced graph.

    Raises:
        ParityError: Either is not as it must be.
    """
    nodes, tables = products(plain), lookups(plain)
    inputs = {_name(node.inputs[0]) for node in nodes} | {_name(node.inputs[1]) for node in tables}
    results = {_name(node.outputs[0]) for node in (*nodes, *tables)}
    between = _with_results(plain.clone(), results)
    given = {_name(value) for value in plain.graph.inputs}
    shown = sorted((inputs | results) - given)
    checked = sorted(inputs - results - given)
    with tempfile.TemporaryDirectory(prefix="int8-", dir=file.parent) as place:
        path, its_path = Path(place) / "int8.onnx", Path(place) / "fp32.onnx"
        _show(ir.load(file), shown, path)
        _show(between, checked, its_path)
        session, its_session = open_session(path), open_session(its_path)
    # Integers, such as the strongest keys, are made of numbers that are compared here.
    outputs = [spec.name for spec in outputs_of(config, kind) if spec.datatype == "FP32"]
    worst: dict[str, float] = defaultdict(float)
    computed: list[dict[str, Array]] = []
    for seed, size in enumerate(compared_sizes(config), start=1):
        feeds = {name: each.numpy() for name, each in sample_inputs(config, kind, *size, seed=seed).items()}
        values = feeds | _run(session, feeds, [*outputs, *shown])
        for name, value in _run(its_session, values, [*outputs, *checked]).items():
            worst[name] = max(worst[name], change(values[name], value))
        computed.append(values)
    # All sizes at once: rounding the weights takes longer than the products.
    for node in nodes:
        x, weights, result = _value(node.inputs[0]), matrix_of(_value(node.inputs[1])), _name(node.outputs[0])
        rows = np.concatenate([values[_name(x)].reshape(-1, weights.shape[0]) for values in computed])
        got = np.concatenate([values[result].reshape(-1, weights.shape[1]) for values in computed])
        worst[result] = deviation(got, reference_product(rows, weights, input_range(x)))
    for node in tables:
        table, ids, result = matrix_of(_value(node.inputs[0])), _name(node.inputs[1]), _name(node.outputs[0])
        worst[result] = max(
            deviation(values[result], _reference_rows(table[values[ids]])) for values in computed
        )
    name, largest = max(worst.items(), key=lambda item: item[1])
    if not largest <= TOLERANCE:
        raise ParityError(
            f"{kind.file}: {name!r} must be what its own inputs give within {TOLERANCE:g}, deviates by "
            f"{largest:g}"
        )


def _with_results(model: ir.Model, results: Iterable[str]) -> ir.Model:
    """Make these values inputs of a graph, in place of the nodes that compute them."""
    wanted = set(results)
    for node in list(model.graph):
        old = node.outputs[0]
        if (name := old.name) in wanted:
            old.name = f"{name}_removed"
            given = ir.Value(name=name, type=old.type, shape=old.shape)
            model.graph.inputs.append(given)
            ir.convenience.replace_all_uses_with(old, given)
            model.graph.remove(node, safe=True)
    return model


def _show(model: ir.Model, names: Sequence[str], path: Path) -> None:
    """Save a graph that returns more of its values."""
    values = {output.name: output for node in model.graph for output in node.outputs}
    model.graph.outputs.extend(values[name] for name in names)
    RemoveUnusedNodesPass()(model)
    ir.save(model, path, external_data=f"{path.stem}.bin")


def _run(
    session: ort.InferenceSession, values: Mapping[str, Array], names: Sequence[str]
) -> dict[str, Array]:
    feeds = {each.name: values[each.name] for each in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


def _measure_drift(
    encoder: Encoder,
    session: ort.InferenceSession,
    kind: GraphKind,
    texts: Sequence[Sequence[int]] | None,
) -> tuple[dict[str, float], dict[str, Cosine]]:
    """Return the largest deviation of each output from fp32, and the cosines of vectors."""
    config = encoder.config
    specs = outputs_of(config, kind)
    names = [spec.name for spec in specs]
    worst: dict[str, float] = {}
    cosines: dict[str, list[NDArray[np.float64]]] = {spec.name: [] for spec in specs if _holds_vectors(spec)}
    for inputs in _drift_inputs(config, kind, texts):
        actual = _run(session, {name: value.numpy() for name, value in inputs.items()}, names)
        reference, expected = run_reference(encoder, kind, inputs)
        ours, theirs = kind.align(config, actual, expected, reference)
        for name, values in ours.items():
            worst[name] = max(worst.get(name, 0.0), deviation(values, theirs[name]))
        for spec in specs:
            if spec.name in cosines:
                valid = reference.valid.numpy()
                held = valid if "T" in spec.axes else valid.any(axis=1)
                cosines[spec.name].append(cosines_of(actual[spec.name][held], expected[spec.name][held]))
    every = {name: np.concatenate(parts) for name, parts in cosines.items()}
    return worst, {name: Cosine(float(each.min()), float(each.mean())) for name, each in every.items()}


def _drift_inputs(
    config: EncoderConfig, kind: GraphKind, texts: Sequence[Sequence[int]] | None
) -> Iterable[dict[str, Tensor]]:
    if texts is None:
        for seed, (sequences, tokens) in enumerate(_RANDOM_SIZES):
            yield sample_inputs(config, kind, sequences, min(tokens, config.positions or tokens), seed=seed)
        return
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        inputs = sample_inputs(config, kind, len(batch), len(batch[-1]), seed=start)
        inputs["input_ids"] = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
        inputs["lengths"] = torch.tensor([len(ids) for ids in batch], dtype=torch.int32)
        if "token_type_ids" in inputs:
            inputs["token_type_ids"] = torch.zeros_like(inputs["token_type_ids"])
        for name in ("mask", "head_mask"):
            if name in inputs:
                inputs[name] = torch.ones_like(inputs[name])
        yield inputs


def _holds_vectors(spec: TensorSpec) -> bool:
    return spec.datatype == "FP32" and spec.axes[-1] in ("D", "P", "V", "K")


def _check_cosines(
    cosines: Mapping[str, Cosine], kind: GraphKind, config: EncoderConfig, inputs: str
) -> None:
    if config.token_vectors is not None:
        what = "token_vectors"
    else:
        what = "output" if config.pooling is None else "pooled"
    if what not in cosines:  # of a graph that gives nothing but logits
        return
    if not cosines[what].mean >= LEAST_MEAN_COSINE:
        raise ParityError(
            f"the {kind.name} graph's {what!r} in int8 must have a mean cosine of at least "
            f"{LEAST_MEAN_COSINE} with that of fp32, has {cosines[what].mean:.4f} on {inputs}: export this "
            "encoder in fp32, or, if other text is sent to it, give sentences of that kind"
        )


def _value(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise RuntimeError("an input is missing")
    return value


def _name(value: ir.Value | None) -> str:
    name = _value(value).name
    if name is None:
        raise RuntimeError("a value has no name")
    return name
