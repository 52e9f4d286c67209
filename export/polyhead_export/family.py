"""Export an encoder as one version of a family in the model repository."""

import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch

from polyhead_export.comparison import Change
from polyhead_export.errors import ExportError, IncompleteExportError, ParityError
from polyhead_export.extension import check_graphs, read_graphs
from polyhead_export.fusion import fuse
from polyhead_export.graphs import build_graph
from polyhead_export.half_precision import JudgeInHalfPrecision
from polyhead_export.kinds import kinds_of, names_of_kinds
from polyhead_export.manifest import Identity, write_manifest
from polyhead_export.neighbours import measure_neighbours
from polyhead_export.operators import check_operators, count_operators, required_operators
from polyhead_export.parity import Judge, Judged, JudgeInFp32, Parity, compared_sizes
from polyhead_export.precision import DTYPES, IN_16_BITS, Precision, in_precision
from polyhead_export.pruning import Pruning
from polyhead_export.quantisation import check_products, quantise
from polyhead_export.quantised_parity import JudgeInInt8
from polyhead_export.sentences import SENTENCES, token_ids
from polyhead_export.signature import GraphKind, packs
from polyhead_export.staging import check_absent, check_place, publish, staged
from polyhead_export.triton import triton_config
from polyhead_export.weights import hash_of, names_of, share_weights
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.checkpoint_files import read_object
from polyhead_model.insight.token_classes import token_classes
from polyhead_model.tokenizer_files import TOKENIZER, largest_token_id, largest_token_type

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""At most as long as the name of a folder; servers read the same."""

LARGEST_VERSION = 10**18 - 1
"""Servers pass by folders whose names have more digits."""


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """The tokenizer of an encoder that takes token ids."""

    path: Path
    """A `tokenizer.json` of the `tokenizers` library."""
    max_tokens: int
    """The longest text; a longer one is rejected, or truncated where the request asks for it."""
    prompt: str = ""
    """Put before each text by the server, unless a request names one of `prompts`."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What requests may have put before their texts instead, by name."""
    gives_token_types: bool | None = True
    """Whether the encoder gets the token types of the file's template; None if that is not known, so that
    pairs of texts, which alone have several, are not served."""


@dataclass(frozen=True, kw_only=True)
class ExportedFamily:
    """The result of an export."""

    name: str
    version: int
    folder: Path
    parity: Parity


def count_steps(graphs: Collection[str]) -> int:
    """Return how often an export of these graphs calls `on_step`."""
    return 2 * len(names_of_kinds(graphs)) + 2


def check_name(name: str) -> None:
    """Check the name of a family.

    Raises:
        ExportError: The name is not valid.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ExportError(
            "the name must start with a letter or digit and hold at most 255 letters, digits, "
            f"'_' and '-', was {name!r}"
        )


def check_tokenizer(tokenizer: TokenizerFile, config: EncoderConfig) -> None:
    """Check that the encoder has an embedding for every token id and every token type of the tokenizer.

    Raises:
        ExportError: It does not, or it takes no token ids.
        CheckpointError: The file is not JSON.
    """
    if config.vocabulary is None:
        raise ExportError(f"{tokenizer.path}: an encoder of vectors takes no tokenizer")
    contents = read_object(tokenizer.path)
    largest = largest_token_id(contents)
    if largest >= config.vocabulary:
        raise ExportError(
            f"{tokenizer.path}: token ids must be at most {config.vocabulary - 1}, as the encoder has "
            f"{config.vocabulary} token embeddings, but the largest is {largest}"
        )
    largest_type = largest_token_type(contents, pair=False) or 0
    if config.types and largest_type >= config.types:
        raise ExportError(
            f"{tokenizer.path}: token types must be at most {config.types - 1}, as the encoder has "
            f"{config.types}, but the template gives a text the type {largest_type}"
        )


def takes_pairs(tokenizer: TokenizerFile, config: EncoderConfig) -> bool:
    """Return whether the tokenizer joins two texts in a way that the encoder can have been trained with.

    Raises:
        CheckpointError: The file is not JSON.
    """
    largest_type = largest_token_type(read_object(tokenizer.path), pair=True)
    if not largest_type or not config.types or tokenizer.gives_token_types is False:
        return largest_type is not None
    return tokenizer.gives_token_types is True and largest_type < config.types


def check_weights(encoder: Encoder) -> None:
    """Check that an encoder's weights can be exported.

    Raises:
        ExportError: A parameter is not finite, or not in fp32 on the CPU.
    """
    for name, parameter in encoder.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ExportError(
                f"{name} must be float32 on the CPU, was {parameter.dtype} on {parameter.device}: "
                "call encoder.float().cpu()"
            )
        if not parameter.sum(dtype=torch.float64).isfinite():
            raise ExportError(f"{name} must be finite, holds NaN or infinity: these weights compute nothing")


def export_family(
    encoder: Encoder,
    name: str,
    repository: Path,
    *,
    version: int = 1,
    precision: Precision = "fp32",
    graphs: Collection[str] = (),
    attention_layers: Sequence[int] | None = None,
    tokenizer: TokenizerFile | None = None,
    sentences: Sequence[str] = (),
    left_out: Sequence[str] = (),
    pruning: Pruning | None = None,
    if_exists: Literal["fail", "replace", "add"] = "fail",
    on_step: Callable[[str], None] = lambda _: None,
) -> ExportedFamily:
    """Export an encoder to `repository / name / version`.

    If some graphs cannot be verified, those that can are exported, and the error says which; if none can, or
    a version would be replaced, nothing is written.

    Args:
        encoder: The encoder, in fp32 on the CPU; it is put into evaluation mode.
        name: The family's name. It has no dot, which separates the name of a graph.
        repository: The folder of all families; created if missing.
        version: The version's number, 1 or more, of at most 18 digits.
        precision: What the graphs compute in; their inputs and outputs are the same in each. 16-bit
            precisions are for CUDA: a CPU cannot compute in bf16, and gains nothing from fp16. int8 is for
            CPUs.
        graphs: The kinds of graphs beside `fast` and `attention`, or `all`; see `polyhead_export.kinds`.
        attention_layers: The layers whose attention the graphs return; None = all.
        tokenizer: For an encoder of token ids, to serve text too.
        sentences: Those on which the drift of int8 is measured; by default some English ones. An encoder
            without a tokenizer is measured on random inputs.
        left_out: The parts of the checkpoint that are not served, in words; recorded in the manifest.
        pruning: What was pruned from the encoder; recorded in the manifest.
        if_exists: What to do if the version exists already; "add" keeps its graphs, and adds those that it
            lacks.
        on_step: Called before each step (see `count_steps`), with a description.

    Raises:
        ExportError: The name, the version, the precision, a graph, a layer, the tokenizer or a weight is not
            valid, or each graph lost a fusion; or graphs are to be added to another encoder's.
        FamilyExistsError: The version exists already, and `if_exists` is "fail".
        ParityError: No graph computes what PyTorch does, or 16 or 8 bits are not enough.
        IncompleteExportError: This is so for some graphs; the others are in the repository.
    """
    check_name(name)
    if not 1 <= version <= LARGEST_VERSION:
        raise ExportError(f"the version must be from 1 to {LARGEST_VERSION:,}, was {version:,}")
    if precision not in DTYPES:
        raise ExportError(f"the precision must be one of {', '.join(DTYPES)}, was {precision!r}")
    if sentences and (precision != "int8" or tokenizer is None):
        raise ExportError("sentences are for the drift of int8, of an encoder with a tokenizer")
    classes = () if tokenizer is None else token_classes(read_object(tokenizer.path))
    kinds = kinds_of(encoder.config, graphs, attention_layers, classes)
    target = repository / name / str(version)
    check_place(target)
    if if_exists == "fail":
        check_absent(target)
    if tokenizer is not None:
        check_tokenizer(tokenizer, encoder.config)
    check_weights(encoder)
    encoder.eval()
    identity = Identity(
        name=name,
        version=version,
        config=encoder.config,
        weights=hash_of(encoder),
        precision=precision,
        tokenizer=None if tokenizer is None else _describe_tokenizer(tokenizer, encoder.config),
        left_out=left_out,
        pruning=pruning,
    )
    kept: Mapping[str, Path] = {}
    if if_exists == "add" and target.exists():
        there = read_graphs(target, identity)
        kinds = kinds_of(encoder.config, {*graphs, *there}, attention_layers, classes)
        kept = check_graphs(there, kinds, target, identity)
    with staged(repository) as folder:
        parity, failures = _write_version(
            encoder,
            folder,
            identity,
            kinds=kinds,
            # Graphs in other precisions were made of one in fp32, which they are judged by.
            kept=kept if precision == "fp32" else {},
            tokenizer=tokenizer,
            sentences=sentences or SENTENCES,
            on_step=on_step,
        )
        if failures and target.exists():
            raise next(iter(failures.values()))  # what is there may be complete, and is served
        config = folder.with_name("config.pbtxt")
        config.write_text(triton_config(name, encoder.config))
        publish(folder, target, replace=if_exists != "fail")
        config.replace(target.with_name(config.name))
    exported = ExportedFamily(name=name, version=version, folder=target, parity=parity)
    if failures:
        raise IncompleteExportError(exported, failures)
    return exported


def _describe_tokenizer(tokenizer: TokenizerFile, config: EncoderConfig) -> dict[str, Any]:
    return {
        "file": TOKENIZER,
        "sha256": hashlib.sha256(tokenizer.path.read_bytes()).hexdigest(),
        "max_tokens": tokenizer.max_tokens,
        "prompt": tokenizer.prompt,
        "prompts": dict(tokenizer.prompts),
        "types": tokenizer.gives_token_types is not False,
        "pairs": takes_pairs(tokenizer, config),
    }


def _write_version(
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
    """Write all files of a version; return what was measured, and why graphs are not among them."""
    name, precision = identity.name, identity.precision
    served = in_precision(encoder, precision)
    names = names_of(served)
    traced: dict[GraphKind, ir.Model] = {}
    models: dict[GraphKind, ir.Model] = {}
    operators: dict[str, dict[str, int]] = {}
    for kind in kinds:
        if kind.name in kept:
            on_step(f"{name}: keeping the {kind.name} graph")
            traced[kind] = ir.load(kept[kind.name])
        else:
            on_step(f"{name}: tracing the {kind.name} graph")
            traced[kind] = build_graph(served, kind, pack=packs(encoder.config, precision))
        models[kind] = _in_its_precision(traced[kind], encoder, kind, precision, names)
        operators[kind.name] = count_operators(models[kind])
        check_operators(operators[kind.name], required_operators(encoder.config, kind, precision), kind.file)
    on_step(f"{name}: writing weights")
    share_weights(models.values(), folder, names)
    for kind, model in models.items():
        ir.save(model, folder / kind.file)
    if tokenizer is not None:
        shutil.copyfile(tokenizer.path, folder / TOKENIZER)

    judge: Judge
    if precision in IN_16_BITS:
        judge = JudgeInHalfPrecision(encoder, served, folder, traced, precision)
    elif precision == "int8":
        texts = None
        if tokenizer is not None:
            texts = token_ids(tokenizer.path, sentences, tokenizer.max_tokens, prompt=tokenizer.prompt)
        judge = JudgeInInt8(encoder, folder, traced, texts)
    else:
        judge = JudgeInFp32(encoder, folder)
    parity, failures = _verify(
        judge,
        kinds=kinds,
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
    )
    return parity, failures


def _in_its_precision(
    traced: ir.Model, encoder: Encoder, kind: GraphKind, precision: Precision, names: Mapping[str, str]
) -> ir.Model:
    """Return the graph to serve; a copy unless it is the one that was traced.

    Raises:
        ExportError: Quantisation left a product out.
    """
    if precision in IN_16_BITS:
        model = traced.clone()
        fuse(model)
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
