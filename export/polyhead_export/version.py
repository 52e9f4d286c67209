"""Write the files of a version: graphs that are verified, weights, tokenizer, manifest.

A graph that cannot be verified is left out, and the others do not depend on it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from polyhead_export.comparison import Change
from polyhead_export.errors import ExportError, ParityError
from polyhead_export.fusion import fuse, fuse_packed, narrow
from polyhead_export.graphs import build_graph
from polyhead_export.half_precision import JudgeInHalfPrecision
from polyhead_export.manifest import Identity, write_manifest
from polyhead_export.neighbours import measure_neighbours
from polyhead_export.operators import check_operators, count_operators, required_operators
from polyhead_export.parity import Judge, Judged, JudgeInFp32, Parity, compared_sizes
from polyhead_export.precision import IN_16_BITS, Precision, in_precision
from polyhead_export.quantisation import check_products, make_parts_constant, quantise
from polyhead_export.quantised_parity import JudgeInInt8
from polyhead_export.sentences import token_ids
from polyhead_export.signature import GraphKind, outputs_of, packs
from polyhead_export.tokenizers import TokenizerFile
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.tokenizer_files import TOKENIZER


def write_version(
    encoder: Encoder,
    folder: Path,
    identity: Identity,
    *,
    kinds: Collection[GraphKind],
    kept: Mapping[str, Path],
    tokenizer: TokenizerFile | None,
    sentences: Sequence[str],
    on_step: Callable[[str], None],
) -> tuple[Parity, dict[str, ExportError]]:
    """Write all files of a version.

    Args:
        encoder: The encoder.
        folder: Where to; it is empty.
        identity: The version.
        kinds: Its graphs.
        kept: The files of those that need not be traced again, by name.
        tokenizer: For text.
        sentences: On which the drift of int8 is measured.
        on_step: Called before each step, with a description.

    Returns:
        What was measured, and the errors of graphs that are not among the files, by name.

    Raises:
        ExportError: There is no graph without an error.
    """
    name, precision = identity.name, identity.precision
    served = in_precision(encoder, precision)
    names = names_of(served)
    limits = (encoder.config.positions, None if tokenizer is None else tokenizer.max_tokens)
    longest = min((each for each in limits if each is not None), default=None)
    traced: dict[GraphKind, ir.Model] = {}
    models: dict[GraphKind, ir.Model] = {}
    operators: dict[str, dict[str, int]] = {}
    failures: dict[str, ExportError] = {}
    for kind in kinds:
        if kind.name in kept:
            on_step(f"{name}: keeping the {kind.name} graph")
            graph = ir.load(kept[kind.name])
        else:
            on_step(f"{name}: tracing the {kind.name} graph")
            graph = _trace(served, kind, precision)
        try:
            model = _in_its_precision(graph, encoder, kind, precision, names, longest=longest)
            operators[kind.name] = count_operators(model)
            required = required_operators(encoder.config, kind, precision, longest)
            check_operators(operators[kind.name], required, kind.file)
        except ExportError as error:
            failures[kind.name] = error
        else:
            traced[kind], models[kind] = graph, model
    if not models:
        raise next(iter(failures.values()))
    on_step(f"{name}: writing weights")
    share_weights(models.values(), folder, names)
    for kind, model in models.items():
        ir.save(model, folder / kind.file)
    if tokenizer is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.text().encode())

    judge: Judge
    if precision in IN_16_BITS:
        judge = JudgeInHalfPrecision(encoder, served, folder, traced, precision)
    elif precision == "int8":
        texts = None
        if tokenizer is not None:
            texts = token_ids(tokenizer, sentences, tokenizer.max_tokens, prompt=tokenizer.prompt)
        judge = JudgeInInt8(encoder, folder, traced, texts)
    else:
        judge = JudgeInFp32(encoder, folder)
    parity, refused = _verify(
        judge,
        kinds=list(models),
        folder=folder,
        config=encoder.config,
        name=name,
        precision=precision,
        on_step=on_step,
    )
    on_step(f"{name}: hashing files")
    write_manifest(
        folder,
        identity,
        kinds=[kind for kind in kinds if kind.name in parity.outputs],
        operators=operators,
        parity=parity,
        failures=failures | refused,
    )
    return parity, failures | refused


def _trace(encoder: Encoder, kind: GraphKind, precision: Precision) -> ir.Model:
    graph = build_graph(encoder, kind, pack=packs(encoder.config, precision))
    if precision == "int8":
        make_parts_constant(graph)
    return graph


def _in_its_precision(
    traced: ir.Model,
    encoder: Encoder,
    kind: GraphKind,
    precision: Precision,
    names: Mapping[str, str],
    *,
    longest: int | None,
) -> ir.Model:
    """Return the graph to serve; a copy unless it is the one that was traced.

    Raises:
        ExportError: Quantisation left a product out.
    """
    if precision in IN_16_BITS:
        model = traced.clone()
        fuse(model)
        if packs(encoder.config, precision):
            fuse_packed(model, longest)
        specs = outputs_of(encoder.config, kind, precision)
        narrow(model, {spec.name for spec in specs if spec.datatype == "FP16"})
        return model
    if precision == "int8":
        model = traced.clone()
        quantise(model, names)
        check_products(model, encoder, kind.file)
        return model
    return traced


def _verify(
    judge: Judge,
    *,
    kinds: Collection[GraphKind],
    folder: Path,
    config: EncoderConfig,
    name: str,
    precision: Precision,
    on_step: Callable[[str], None],
) -> tuple[Parity, dict[str, ExportError]]:
    """Compare all graphs with PyTorch, and remove those that differ.

    Returns:
        What was measured of the others, and the errors of those that were removed, by graph.

    Raises:
        ParityError: No graph is left.
    """
    judged: dict[str, Judged] = {}
    neighbours: dict[str, dict[str, Change]] = {}
    failures: dict[str, ExportError] = {}
    for kind in kinds:
        on_step(f"{name}: comparing the {kind.name} graph with PyTorch")
        try:
            found = judge.judge(kind)
            neighbours[kind.name] = measure_neighbours(folder, kind, config, precision, found.outputs)
        except ParityError as error:
            failures[kind.name] = error
            (folder / kind.file).unlink()
        else:
            judged[kind.name] = found
    if not judged:
        raise next(iter(failures.values()))
    return Parity(
        sizes=compared_sizes(config),
        outputs={graph: found.outputs for graph, found in judged.items()},
        neighbours=neighbours,
        drift=judge.drift(judged),
    ), failures
