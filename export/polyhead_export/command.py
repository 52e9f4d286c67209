"""`polyhead export`: export encoders into a model repository."""

import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from polyhead_export.options import DEFAULT_OPTIONS, AtLeastOne, ExportOptions, Heads

if TYPE_CHECKING:
    from rich.console import Console

    from polyhead_export.family import ExportedFamily
    from polyhead_export.parity import Drift
    from polyhead_export.progress import Steps
    from polyhead_export.sources import Built, Source
    from polyhead_model.head_choices import HeadChoice

app = App(name="export")


@app.default
def export(
    options: ExportOptions = DEFAULT_OPTIONS,
    *,
    heads: Heads = (),
    layers: AtLeastOne | None = None,
    mask: bool = False,
    list_types: Annotated[bool, Parameter(name="--list", negative=())] = False,
) -> None:
    """Export a preset or a description with random weights, or a trained checkpoint.

    Every graph is compared with PyTorch first; one that is further from float64 than rounding explains is not
    put into the repository, and the exit code is 1; the same command with --if-exists add tries it again.

    ```sh
    polyhead export --checkpoint BAAI/bge-small-en-v1.5 --name bge
    polyhead export --checkpoint ./bge --precision int8 --name bge-int8
    polyhead export --checkpoint ./bge --name bge --graphs insight --if-exists add
    polyhead export --preset teaching --heads 1,2,4,8,8/2
    polyhead export --list
    ```

    Parameters
    ----------
    options
        What to export, and where to.
    heads
        The heads of each layer, such as 1,2,4,8: one family each, called NAME-h1, NAME-h2, ... (presets
        only). 8/2 are 8 heads with 2 heads of keys and values, 64+32+32 three heads of those widths.
    layers
        The number of layers. Default: the preset's.
    mask
        Accept an attention mask in requests (presets only).
    list_types
        List the model types of checkpoints that can be exported, and end.
    """
    from rich.console import Console

    from polyhead_export.errors import ExportError
    from polyhead_export.found import type_table

    if list_types:
        Console().print(type_table())
        return
    names = _names(options.family, heads)
    if options.skips(names):  # before heavy imports: a container that restarts has nothing to do
        print_kept(names, options.version)
        return

    from polyhead_export.family import IncompleteExportError, count_steps
    from polyhead_export.progress import Steps

    options.check_versions(names)
    sources = options.sources(heads=heads, layers=layers, mask=mask)
    wanted = [source for source in sources if not options.skips([source.name])]
    texts = options.lines()
    exported: list[ExportedFamily] = []
    incomplete: list[IncompleteExportError] = []
    console = Console(stderr=True)
    for source in wanted:
        with Steps(console) as steps:
            built = build(source, steps, console)
            steps.expect(count_steps(built.encoder.config, options.graphs))
            say_duration(source.name, built, options.graphs, console)
            try:
                family = options.export(built, source.name, sentences=texts, on_step=steps)
            except IncompleteExportError as error:  # the other families do not depend on it
                incomplete.append(error)
                family = error.exported
            exported.append(family)
    print_exported(exported, [source.name for source in sources if source not in wanted])
    if incomplete:
        raise ExportError("\n".join(map(str, incomplete)))
    print_next(options.models)


def build(source: "Source", steps: "Steps", console: "Console") -> "Built":
    """Build an encoder, and print what its user may not expect."""
    from polyhead_export.found import describe_found
    from polyhead_export.progress import print_line

    steps(f"{source.name}: building the encoder")
    built = source.build()
    for sentence in [*([describe_found(built)] if built.model_type else []), *remarks(built)]:
        print_line(console, f"{source.name}: {sentence}")
    return built


def say_duration(name: str, built: "Built", graphs: Collection[str], console: "Console") -> None:
    """Print about how long the export of these graphs takes.

    Raises:
        ExportError: There is no such kind, or not for this encoder.
    """
    from polyhead_export.duration import in_words, seconds_of
    from polyhead_export.kinds import kinds_of
    from polyhead_export.progress import print_line

    kinds = kinds_of(built.encoder.config, graphs)
    listed = ", ".join(kind.name for kind in kinds)
    duration = in_words(seconds_of(built.encoder.config, kinds))
    print_line(console, f"{name}: exporting {listed} takes {duration}")


def _names(base: str | None, heads: "tuple[HeadChoice, ...]") -> list[str]:
    """Return the names of the families; none if nothing names them."""
    if base is None:
        return []
    return [f"{base}-{choice.suffix}" for choice in heads] or [base]


def print_kept(names: list[str], version: int) -> None:
    """Print that nothing is to be done."""
    from rich.console import Console

    for name in names:
        Console(stderr=True).print(f"{name}: version {version} is there already")


def remarks(built: "Built") -> list[str]:
    """Return what the user of a checkpoint may not expect, in words."""
    from polyhead_export.tokenizers import takes_pairs

    sentences = list(built.left_out)
    if built.tokenizer is not None and built.tokenizer.prompt:
        sentences.append(
            f"each text gets the checkpoint's prompt before it: {built.tokenizer.prompt!r}, unless a request "
            "says otherwise (prompt_name)"
        )
    config, head = built.encoder.config, built.encoder.config.classifier
    is_of_texts = head is not None and head.pooling is not None
    if head is not None and len(head.labels) == 1 and head.activation not in (None, "sigmoid"):
        sentences.append(
            f"ranks are scored by the sigmoid, as TEI does; the checkpoint's own is {head.activation} "
            '(activation_fn): client.rerank(..., activation="checkpoint"), or raw_scores for logits'
        )
    if built.tokenizer is not None and is_of_texts and not takes_pairs(built.tokenizer, config):
        why = "its template puts nothing between them"
        if built.tokenizer.gives_token_types is None:
            why = (
                "tokenizer_config.json must say in model_input_names whether there are token_type_ids, as "
                "releases of transformers differ"
            )
        sentences.append(f"single texts are served, not pairs: {why}")
    return sentences


def _describe(drift: "Drift") -> str:
    """Return the mean cosine with fp32, where it was measured, otherwise the largest deviation."""
    if drift.cosines is None:
        return f"{drift.worst:.1e}"
    # Of the fast graph, unless that could not be verified.
    every = (
        outputs[name]
        for outputs in drift.cosines.values()
        for name in ("token_vectors", "pooled", "output")
        if name in outputs
    )
    judged = next(every, None)
    return f"{drift.worst:.1e}" if judged is None else f"cosine {judged.mean:.4f}"


def print_exported(exported: "list[ExportedFamily]", skipped: list[str]) -> None:
    """Print what was exported, with the measured parity, to standard output."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    from polyhead_export.manifest import FILE

    console = Console()
    if exported:
        headings = ["parameters", "MB", "error", "PyTorch's\nerror"]
        if narrow := any(family.parity.drift for family in exported):
            headings.append("off fp32\nby")
        # Only the name wraps on a narrow terminal, and nothing is cut off.
        columns = [
            Column("family", overflow="fold"),
            *(Column(each, justify="right", no_wrap=True) for each in headings),
        ]
        table = Table(
            *columns,
            box=SIMPLE_HEAD,
            caption="error: the largest deviation from float64, of the output nearest to its limit",
            caption_justify="left",
        )
        for family in exported:
            megabytes = sum(path.stat().st_size for path in family.folder.iterdir()) / 1e6
            manifest = json.loads((family.folder / FILE).read_bytes())
            drift, worst = family.parity.drift, family.parity.worst
            table.add_row(
                f"{family.name} v{family.version}",
                f"{manifest['numbers']['parameters']:,}",
                f"{megabytes:.1f}",
                f"{worst.graph.largest:.1e}",
                f"{worst.pytorch.largest:.1e}",
                *([_describe(drift) if drift else ""] if narrow else []),
            )
        console.print(table)
    for name in skipped:
        console.print(f"{name}: was there already")


def print_next(models: Path) -> None:
    """Print how what was exported is served."""
    from rich.console import Console

    from polyhead_export.progress import print_line

    command = shlex.join(["polyhead", "serve", "--models", str(models)])
    print_line(Console(stderr=True), f"next: {command}")
