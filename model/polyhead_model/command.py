"""`polyhead describe`: show an encoder's structure and cost."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_model.config import EncoderConfig
from polyhead_model.describe import REPLY_LIMIT, summary
from polyhead_model.description import near, read_description
from polyhead_model.head_choices import parse_head_choices
from polyhead_model.hub import local_checkpoint
from polyhead_model.huggingface import read_checkpoint_info
from polyhead_model.presets import PRESETS

if TYPE_CHECKING:
    from rich.table import Table

app = App(name="describe")


class DescribeError(Exception):
    """The arguments do not select one encoder, or the sizes do not fit it."""


_AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1, lt=2**63))]

_WITHOUT_EMBEDDINGS = "Embeddings are not counted: the encoder takes vectors. "
_BERT_TABLE = 30_522
"""Token ids of BERT's vocabulary."""


@app.default
def describe(
    *,
    preset: str | None = None,
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    heads: str | None = None,
    tokens: _AtLeastOne = 128,
    batch: _AtLeastOne = 1,
    memory: _AtLeastOne | None = None,
    reply_limit: _AtLeastOne = REPLY_LIMIT,
    draw: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Show the structure and cost of an encoder; without arguments, list the presets.

    ```sh
    polyhead describe --preset bert-base --tokens 128
    polyhead describe --checkpoint BAAI/bge-small-en-v1.5
    polyhead describe --preset teaching --heads 1,2,4,8
    ```

    What is exported of it must compute the same as PyTorch where both use float64, and be about as close to
    that in fp32 as PyTorch is.

    Parameters
    ----------
    preset
        A named configuration.
    checkpoint
        A Hugging Face folder, or its name on the Hugging Face hub, ORG/NAME or ORG/NAME@REVISION, of which
        the weights are not downloaded; docs/encoders.md lists the supported types.
    encoder
        A JSON file that describes an encoder, such as {"d_model": 768, "heads": 12, "layers": 1}.
    heads
        Other heads of that encoder, to be shown side by side: 1,2,4,8. K follows as D / H, unless the encoder
        says what it is. 8/2 are 8 heads with 2 heads of keys and values, 64+32+32 three heads of those
        widths.
    tokens
        T, the length of the sequences.
    batch
        B, the number of sequences.
    memory
        S, the length of the memory of an encoder with cross-attention. Default: T.
    reply_limit
        The largest reply in bytes, as the server's --max-reply-bytes.
    draw
        Also draw how the data flow through the encoder, to this image file; its suffix selects the format
        (.png, .svg, .pdf, ...). A picture is easiest to read with few tokens: --tokens 8.
    as_json
        Print every number as one JSON object.
    """
    from rich.console import Console

    console = Console()
    chosen = list(PRESETS.items())
    if is_one := not (preset is None and checkpoint is None and encoder is None):
        chosen = [_choose(preset, checkpoint, encoder)]
    if heads is not None:
        if not is_one:
            raise DescribeError("--heads must come with --preset, --checkpoint or --encoder: it changes one")
        (name, config), is_one = chosen[0], False
        chosen = [(name, changed) for changed in _with_heads(config, heads)]
    save_drawing = None if draw is None else _drawing(draw, is_one=is_one)
    try:
        numbers = [
            summary(name, config, batch, tokens, memory, reply_limit=reply_limit) for name, config in chosen
        ]
    except ValueError as error:
        raise DescribeError(str(error)) from error
    if save_drawing is not None:
        save_drawing(numbers[0])
    if as_json:
        console.out(json.dumps(numbers[0] if is_one else numbers, indent=1, ensure_ascii=False))
        return
    several = _preset_table if heads is None else _heads_table
    for table in _tables(numbers[0]) if is_one else [several(numbers)]:
        console.print(table)


def _drawing(path: Path, *, is_one: bool) -> Callable[[Mapping[str, Any]], None]:
    """Return what draws an encoder, from its `summary`."""
    if not is_one:
        raise DescribeError("--draw draws one encoder: give --preset, --checkpoint or --encoder, no --heads")
    try:
        from polyhead_view.diagram import draw_flow
        from polyhead_view.figures import kinds, save
    except ImportError as error:
        raise DescribeError("--draw needs the view extra: pip install 'polyhead[view]'") from error
    if path.suffix.removeprefix(".").lower() not in kinds():
        raise DescribeError(f"--draw must end with one of {', '.join(sorted(kinds()))}, was {path}")
    return lambda numbers: save(draw_flow(numbers), path)


def _with_heads(config: EncoderConfig, heads: str) -> list[EncoderConfig]:
    """Return the encoder with each choice of heads."""
    try:
        choices = parse_head_choices(heads)
    except ValueError as error:
        raise DescribeError(f"--heads {error}") from error
    try:
        return [choice.of(config) for choice in choices]
    except ValueError as error:
        raise DescribeError(str(error)) from error


def _choose(preset: str | None, checkpoint: Path | None, encoder: Path | None) -> tuple[str, EncoderConfig]:
    if sum(given is not None for given in (preset, checkpoint, encoder)) > 1:
        raise DescribeError("give one of --preset, --checkpoint and --encoder")
    if checkpoint is not None:
        return checkpoint.name, read_checkpoint_info(local_checkpoint(checkpoint, weights=False)).encoder
    if encoder is not None:
        return encoder.stem, read_description(encoder)
    if preset is None or preset not in PRESETS:
        known = sorted(PRESETS)
        hint = "" if preset is None else near(preset, known)
        raise DescribeError(f"the preset must be one of {', '.join(known)}, was {preset!r}{hint}")
    return preset, PRESETS[preset]


def _preset_table(presets: Sequence[Mapping[str, Any]]) -> "Table":
    rows = [
        (
            one["name"],
            *(f"{one['sizes'][letter]:,}" if letter in one["sizes"] else "–" for letter in "DHGKLF"),
            f"{one['parameters']['total']:,}",
        )
        for one in presets
    ]
    note = _WITHOUT_EMBEDDINGS + "BERT-base has 110 million parameters with them and its pooler."
    return _table("presets", ("name", *"DHGKLF", "parameters"), rows, left=1, note=note)


def _heads_table(numbers: Sequence[Mapping[str, Any]]) -> "Table":
    """Compare encoders that differ in H or G, from their summaries."""
    same, limit = numbers[0]["sizes"], numbers[0]["attention"]["reply_limit"]
    sizes = ", ".join(f"{letter} = {size:,}" for letter, size in same.items() if letter not in "HGK")
    letters = "HGK" if any("G" in one["sizes"] for one in numbers) else "HK"
    rows = [
        (
            *(_heads_cell(one, letter) for letter in letters),
            f"{one['parameters']['total']:,}",
            _scaled(one["flops"]["total"]),
            f"{one['flops']['flops_per_byte']:.1f}",
            _bytes((reply := one["attention"]["sent_as"]["FP32"]["all"])["bytes"]),
            f"{reply['longest_sequence']:,}",
        )
        for one in numbers
    ]
    columns = (
        *letters,
        "parameters",
        "FLOPs",
        "FLOPs a byte",
        "attention, FP32",
        f"largest T in {_bytes(limit)}",
    )
    note = _embeddings_note(numbers[0]["parameters"], same["D"])
    return _table(f"{numbers[0]['name']} by heads: {sizes}", columns, rows, left=0, note=note)


def _heads_cell(one: Mapping[str, Any], letter: str) -> str:
    """Return H, G or K; of heads of different widths the smallest and the largest K."""
    widths = [width for of_layer in one["encoder"]["head_widths"] or () for width in of_layer]
    if letter == "K" and widths and min(widths) < max(widths):
        return f"{min(widths):,}–{max(widths):,}"
    return f"{one['sizes'].get(letter, one['sizes']['H']):,}"


def _embeddings_note(parameters: Mapping[str, Any], width: int) -> str:
    """Say whether the parameters include embeddings, which most published counts do."""
    if (embeddings := parameters["embeddings"]) is None:
        return _WITHOUT_EMBEDDINGS + (
            f"A table of {_BERT_TABLE:,} token ids, as BERT's, would have {_BERT_TABLE * width:,} more."
        )
    return f"Embeddings are counted: {embeddings:,}, {embeddings / parameters['total']:.0%} of all."


def _tables(numbers: Mapping[str, Any]) -> "list[Table]":
    """Return the tables of an encoder, from its `summary`."""
    last = numbers["sizes"]["L"] - 1
    words = {None: None, "0": "layer 0", f"0-{last}" if last else "0": "each layer"}
    sizes = ", ".join(f"{letter} = {size:,}" for letter, size in numbers["sizes"].items())
    steps = [
        (
            words.get(section["layers"], f"layers {section['layers']}") or section["stage"],
            step["tensor"],
            " × ".join(step["axes"]),
            " × ".join(f"{size:,}" for size in step["shape"]),
        )
        for section in numbers["sections"]
        for step in section["steps"]
    ]
    return [
        _table(
            f"{numbers['name']}: {sizes}", ("", "tensor", "shape", "sizes"), _without_repeats(steps), left=3
        ),
        _parameter_table(numbers["parameters"], numbers["sizes"]["D"]),
        _flop_table(numbers["flops"]),
        _attention_table(numbers["attention"]),
    ]


def _parameter_table(parameters: Mapping[str, Any], width: int) -> "Table":
    rows: list[Sequence[str]] = []
    for part in parameters["parts"]:
        times = "" if part["layers"] is None else f"{part['times']}"
        rows.append((part["part"], part["formula"], f"{part['each']:,}", times, f"{part['total']:,}"))
        if len(part["tensors"]) > 1:
            rows += [
                (f"  {each['name']}", " × ".join(each["axes"]), f"{each['each']:,}", "", "")
                for each in part["tensors"]
            ]
    layer = [part for part in parameters["parts"] if part["layers"] is not None]
    if all(part["layers"] == layer[0]["layers"] for part in layer):  # otherwise there is no such layer
        each, total = sum(part["each"] for part in layer), sum(part["total"] for part in layer)
        rows.append(("a layer", "", f"{each:,}", f"{layer[0]['times']}", f"{total:,}"))
    rows.append(("in all", "", "", "", f"{parameters['total']:,}"))
    columns = ("part", "formula", "each", "layers", "in all")
    return _table("parameters", columns, rows, left=2, note=_embeddings_note(parameters, width))


def _flop_table(flops: Mapping[str, Any]) -> "Table":
    rows = [
        (
            part["part"],
            part["formula"],
            "" if part["layers"] is None else f"{part['times']}",
            _scaled(part["total"]),
            f"{part['share']:.1%}",
            f"{part['flops_per_byte']:.1f}",
        )
        for part in flops["parts"]
    ]
    rows.append(("in all", "", "", _scaled(flops["total"]), "", f"{flops['flops_per_byte']:.1f}"))
    columns = ("part", "formula", "layers", "in all", "share", "FLOPs a byte")
    return _table("FLOPs of a forward pass", columns, rows, left=2)


def _attention_table(attention: Mapping[str, Any]) -> "Table":
    limit = attention["reply_limit"]
    rows = [
        (
            f"{which} as {datatype}".replace("_", " "),
            _bytes(reply["bytes"]),
            f"{reply['bytes'] / limit:.1%}",
            f"{reply['longest_sequence']:,}",
        )
        for datatype, replies in attention["sent_as"].items()
        for which, reply in replies.items()
    ]
    columns = ("attention of", "bytes", f"of {_bytes(limit)}", "largest T in one reply")
    return _table("attention weights against the largest reply", columns, rows, left=1)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int, note: str | None = None
) -> "Table":
    """Build a table whose first `left` columns are text and the others numbers, with a note below."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, caption=note, caption_justify="left"
    )
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


def _scaled(number: int) -> str:
    """Return a number with three digits or more, and a decimal prefix."""
    scale, prefix = next(
        (scale, prefix)
        for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1, ""))
        if number >= scale or scale == 1
    )
    return f"{number / scale:,.{2 if scale > 1 else 0}f} {prefix}".rstrip()


def _bytes(size: int) -> str:
    if size < 2**20:
        return f"{size / 2**10:,.1f} KiB"
    return f"{size / 2**20:,.1f} MiB"
