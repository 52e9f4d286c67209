"""Export an encoder as one version of a family in the model repository."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from polyhead_export.calibration import calibrate
from polyhead_export.errors import ExportError, ParityError
from polyhead_export.extension import check_graphs, read_graphs
from polyhead_export.kinds import kinds_of
from polyhead_export.manifest import Identity
from polyhead_export.parity import Parity
from polyhead_export.precision import DTYPES, Precision
from polyhead_export.pruning import Pruning
from polyhead_export.staging import check_absent, check_place, publish, staged
from polyhead_export.tokenizers import TokenizerFile, check_tokenizer, describe_tokenizer
from polyhead_export.triton import triton_config
from polyhead_export.version import write_version
from polyhead_export.weights import hash_of
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.insight.token_classes import token_classes
from polyhead_proto.drift import SENTENCES

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""At most as long as the name of a folder; servers read the same."""

LARGEST_VERSION = 10**18 - 1
"""Servers pass by folders whose names have more digits."""


@dataclass(frozen=True, kw_only=True)
class ExportedFamily:
    """The result of an export."""

    name: str
    version: int
    folder: Path
    parity: Parity


class IncompleteExportError(ExportError):
    """Some graphs could not be verified; the others were exported, and can be served."""

    def __init__(self, exported: ExportedFamily, failures: Mapping[str, ExportError]) -> None:
        works, rest = ", ".join(exported.parity.outputs), ", ".join(failures)
        super().__init__(
            "\n".join(str(error) for error in failures.values())
            + f"\n{exported.folder} was written without {rest}: {works} agree with PyTorch, and can be served"
            f'. The same export with --if-exists add, or if_exists="add", tries only {rest}, and keeps the '
            "others: with another release of polyhead or onnxruntime, or on another machine"
        )
        self.exported = exported
        self.failures = failures


def count_steps(config: EncoderConfig, graphs: Collection[str]) -> int:
    """Return how often an export of these graphs calls `on_step`.

    Raises:
        ExportError: There is no such kind, or not for this encoder.
    """
    return 2 * len(kinds_of(config, graphs)) + 2


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
        sentences: Those on which the ranges of pooled vectors are measured, by default none, and the drift of
            int8, by default some English ones. An encoder without a tokenizer drifts on random inputs.
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
    if sentences and (tokenizer is None or (precision != "int8" and encoder.config.pooling is None)):
        raise ExportError(
            "sentences are for the ranges of pooled vectors, and for the drift of int8, of an encoder with a "
            "tokenizer"
        )
    classes = () if tokenizer is None else token_classes(tokenizer.parts())
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
        tokenizer=None if tokenizer is None else describe_tokenizer(tokenizer, encoder.config),
        left_out=left_out,
        pruning=pruning,
        calibration=None,
    )
    calibrated_on = 0 if encoder.config.pooling is None else len(sentences)
    kept: Mapping[str, Path] = {}
    if if_exists == "add" and target.exists():
        there = read_graphs(target, identity, calibrated_on=calibrated_on)
        kinds = kinds_of(encoder.config, {*graphs, *there}, attention_layers, classes)
        kept = check_graphs(there, kinds, target, identity)
    if calibrated_on and tokenizer is not None:
        identity = replace(identity, calibration=calibrate(encoder, tokenizer, sentences))
    with staged(repository) as folder:
        parity, failures = write_version(
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
        if target.exists():
            _check_better(failures, kept, parity, target, if_exists)
        config = folder.with_name("config.pbtxt")
        config.write_text(triton_config(name, encoder.config))
        publish(folder, target, replace=if_exists != "fail")
        config.replace(target.with_name(config.name))
    exported = ExportedFamily(name=name, version=version, folder=target, parity=parity)
    if failures:
        raise IncompleteExportError(exported, failures)
    return exported


def _check_better(
    failures: Mapping[str, ExportError],
    kept: Collection[str],
    parity: Parity,
    target: Path,
    if_exists: Literal["fail", "replace", "add"],
) -> None:
    """Check that a version has every graph of the one that is there, which may be complete and is served.

    Raises:
        ParityError: It lacks one that is there, or, if it is to replace that version, any.
    """
    lost = [graph for graph in failures if if_exists == "replace" or graph in kept]
    if not lost:
        return
    if if_exists == "add":
        advice = (
            'All graphs are compared again when others join. --if-exists replace, or if_exists="replace", '
            "exports all of them anew"
        )
    else:
        advice = (
            f"{', '.join(parity.outputs)} agree with PyTorch: under another --version, they are written, and "
            'can be served. --if-exists add, or if_exists="add", exports only what the version there lacks'
        )
    raise ParityError(
        "\n".join(str(error) for error in failures.values())
        + f"\n{target} stays as it was, as it would lose {', '.join(lost)}. {advice}"
    )
