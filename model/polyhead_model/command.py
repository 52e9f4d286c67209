"""`polyhead describe`: show an encoder's structure and cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_model.config import EncoderConfig
from polyhead_model.describe import (
    Count,
    attention_bytes,
    attention_bytes_per_layer,
    flop_counts,
    parameter_counts,
    parameters,
    shape_trace,
)
from polyhead_model.description import read_description
from polyhead_model.huggingface import read_checkpoint_info
from polyhead_model.presets import PRESETS

if TYPE_CHECKING:
    from rich.table import Table

app = App(name="describe", help="Show the shapes, parameters, operations and attention bytes of an encoder.")


class DescribeError(Exception):
    """The arguments do not select one encoder, or the sizes do not fit it."""


_AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


@app.default
def describe(
    *,
    preset: str | None = None,
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    tokens: _AtLeastOne = 128,
    batch: _AtLeastOne = 1,
) -> None:
    """Show the structure and cost of an encoder; without arguments, list the presets.

    Parameters
    ----------
    preset
        A named configuration.
    checkpoint
        A Hugging Face folder; docs/encoders.md lists the supported types.
    encoder
        A JSON file that describes an encoder, such as {"d_model": 768, "heads": 12, "layers": 1}.
    tokens
        T, the length of the sequences.
    batch
        B, the number of sequences.
    """
    from rich.console import Console

    console = Console()
    if preset is None and checkpoint is None and encoder is None:
        console.print(_preset_table())
        return
    name, config = _choose(preset, checkpoint, encoder)
    try:
        tables = _tables(name, config, batch, tokens)
    except ValueError as error:
        raise DescribeError(str(error)) from error
    for table in tables:
        console.print(table)


def _choose(preset: str | None, checkpoint: Path | None, encoder: Path | None) -> tuple[str, EncoderConfig]:
    if sum(given is not None for given in (preset, checkpoint, encoder)) > 1:
        raise DescribeError("give one of --preset, --checkpoint and --encoder")
    if checkpoint is not None:
        return checkpoint.name, read_checkpoint_info(checkpoint).encoder
    if encoder is not None:
        return encoder.stem, read_description(encoder)
    if preset is None or preset not in PRESETS:
        raise DescribeError(f"the preset must be one of {', '.join(sorted(PRESETS))}, was {preset!r}")
    return preset, PRESETS[preset]


def _preset_table() -> "Table":
    rows = [
        (
            name,
            f"{config.d_model:,}",
            str(config.heads),
            str(config.head_size),
            str(config.layers),
            "–" if config.feed_forward is None else f"{config.feed_forward:,}",
            f"{parameters(config):,}",
        )
        for name, config in PRESETS.items()
    ]
    return _table("presets", ("name", "D", "H", "K", "L", "F", "parameters"), rows, left=1)


def _tables(name: str, config: EncoderConfig, batch: int, tokens: int) -> "list[Table]":
    steps = [
        (step.stage, step.name, " × ".join(step.symbols), " × ".join(f"{size:,}" for size in step.sizes))
        for step in shape_trace(config, batch, tokens)
    ]
    letters = {
        "B": batch,
        "T": tokens,
        "D": config.d_model,
        "H": config.heads,
        "K": config.head_size,
        "L": config.layers,
        "F": config.feed_forward,
        "E": config.embedding_width,
    }
    sizes = ", ".join(f"{letter} = {size:,}" for letter, size in letters.items() if size is not None)
    weights = [
        (
            precision,
            _bytes(attention_bytes_per_layer(config, batch, tokens, itemsize=itemsize)),
            _bytes(attention_bytes(config, batch, tokens, itemsize=itemsize)),
        )
        for precision, itemsize in (("FP32", 4), ("FP16", 2), ("UINT8", 1))
    ]
    return [
        _table(f"{name}: {sizes}", ("", "tensor", "shape", "sizes"), _without_repeats(steps), left=3),
        _count_table("parameters", parameter_counts(config)),
        _count_table("operations of a forward pass (FLOPs)", flop_counts(config, batch, tokens)),
        _table("attention weights, B·H·T² a layer", ("sent as", "a layer", "in all"), weights, left=1),
    ]


def _count_table(title: str, counts: Sequence[Count]) -> "Table":
    rows = [
        (count.name, count.formula, f"{count.each:,}", f"{count.layers or ''}", f"{count.total:,}")
        for count in counts
    ]
    layer = [count for count in counts if count.layers is not None]
    layers = f"{layer[0].layers}"  # every layer is the same
    rows += [
        ("a layer", "", f"{sum(c.each for c in layer):,}", layers, f"{sum(c.total for c in layer):,}"),
        ("in all", "", "", "", f"{sum(count.total for count in counts):,}"),
    ]
    return _table(title, ("part", "formula", "each", "layers", "in all"), rows, left=2)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> "Table":
    """Build a table whose first `left` columns are text and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _without_repeats(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Blank the first column where it repeats the row above."""
    shown: list[Sequence[str]] = []
    previous = None
    for first, *rest in rows:
        shown.append(("" if first == previous else first, *rest))
        previous = first
    return shown


def _bytes(size: int) -> str:
    if size < 2**20:
        return f"{size / 2**10:,.1f} KiB"
    return f"{size / 2**20:,.1f} MiB"
