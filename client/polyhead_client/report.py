"""Print an encoding for people: shapes, the strongest edges and scores of each head, and timings.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from polyhead_client.command import printable
from polyhead_client.edges import boundaries
from polyhead_client.encoding import Encoding
from polyhead_client.formats import edges_of

_SHOWN = 4
"""The number of elements of a pooled vector that are shown."""


def print_report(
    encoding: Encoding,
    texts: Sequence[str | None],
    scores: Mapping[str, NDArray[Any]],
    *,
    top: int,
    special: bool,
) -> None:
    """Print the encoding of a list of sequences, and some scores [B, L, H], to the standard output."""
    console = Console()
    console.print(Text.assemble((printable(encoding.model), "bold"), f", version {encoding.version}"))
    for index, text in enumerate(texts):
        console.print()
        console.print(Text(f"sequence {index}" if text is None else printable(text), style="bold"))
        console.print(Padding(_facts(encoding, index), (0, 0, 0, 2), expand=False))
        for cross, layers in ((False, encoding.attention), (True, encoding.cross_attention)):
            for layer in layers or ():
                edges = _edges(encoding, index, layer, top=top, special=special, cross=cross)
                console.print(Padding(edges, (1, 0, 0, 2), expand=False))
        if encoding.attention and not special and (hidden := _boundaries(encoding, index)):
            left_out = f"without edges from and to {' and '.join(hidden)}; --special shows them"
            console.print(Padding(Text(left_out, style="dim"), (0, 0, 0, 2), expand=False))
        for name, values in scores.items():
            console.print(Padding(_score(encoding, name, values[index]), (1, 0, 0, 2), expand=False))
    console.print()
    console.print(_timings(encoding))


def _facts(encoding: Encoding, index: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for fixed in (True, True, False):  # only the last column may wrap
        table.add_column(no_wrap=fixed)
    output = encoding.output[index]
    if encoding.tokens is not None:
        table.add_row("tokens", str(len(output)), Text(printable(" ".join(encoding.tokens[index]))))
    table.add_row("output", str(list(output.shape)), "")
    if encoding.pooled is not None:
        vector = encoding.pooled[index]
        numbers = "  ".join(f"{value:.4f}" for value in vector[:_SHOWN]) + (
            "  ..." if len(vector) > _SHOWN else ""
        )
        table.add_row("pooled", str(list(vector.shape)), numbers)
    if encoding.logits is not None and encoding.labels is not None:
        logits, labels = encoding.logits[index], encoding.labels
        if logits.ndim == 2:  # of tokens
            shown = " ".join(labels[best] for best in logits.argmax(-1))
        else:
            shown = "  ".join(f"{label} {value:.4f}" for label, value in zip(labels, logits, strict=True))
        table.add_row("logits", str(list(logits.shape)), Text(printable(shown)))
    for layer, weights in encoding.attention.items():
        table.add_row(f"attention.{layer}", str(list(weights[index].shape)), "")
    for layer, weights in encoding.cross_attention.items():
        table.add_row(f"cross_attention.{layer}", str(list(weights[index].shape)), "")
    return table


def _edges(encoding: Encoding, index: int, layer: int, *, top: int, special: bool, cross: bool) -> Table:
    labels = _labels(encoding, index)
    title = f"layer {layer}: strongest edges" + (" to the memory" if cross else "")
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD)
    table.add_column("head", justify="right")
    table.add_column("token → token it attends to, weight")
    found = edges_of(encoding, index, layer, top=top, special=special, cross=cross)
    for head in encoding.heads or ():
        line = "   ".join(
            f"{labels.get(edge.query, edge.query)} → {labels.get(edge.key, edge.key)} {edge.weight:.2f}"
            for edge in found.get(head, ())
        )
        table.add_row(str(head), Text("pruned" if encoding.is_pruned(layer, head) else printable(line)))
    return table


def _boundaries(encoding: Encoding, index: int) -> Collection[str]:
    tokens = [] if encoding.tokens is None else encoding.tokens[index]
    return dict.fromkeys(tokens[at] for at in sorted(boundaries(tokens)))


def _score(encoding: Encoding, name: str, values: NDArray[Any]) -> Table:
    """Return a table of one score, [L, H]; heads that do not fit into a line continue in the next."""
    heads = [str(head) for head in encoding.heads or ()]
    rows = [["–" if np.isnan(value) else f"{value:.2f}" for value in row] for row in values]
    width = max(map(len, [*heads, *(cell for row in rows for cell in row)]))

    def line(cells: Sequence[str]) -> Text:
        return Text(" ".join(cell.ljust(width) for cell in cells))

    table = Table(title=f"{name} of each head", title_justify="left", title_style="", box=SIMPLE_HEAD)
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column(line(heads))
    for layer, row in zip(encoding.scores.layers if encoding.scores else (), rows, strict=True):
        table.add_row(str(layer), line(row))
    return table


def _labels(encoding: Encoding, index: int) -> dict[int, str]:
    """Return position → token, with the position where it repeats; nothing where there are no tokens."""
    tokens = [] if encoding.tokens is None else encoding.tokens[index]
    counts = Counter(tokens)
    return {at: f"{token}@{at}" if counts[token] > 1 else token for at, token in enumerate(tokens)}


def _timings(encoding: Encoding) -> str:
    timings = {name.removesuffix("_ns"): value for name, value in asdict(encoding.timings).items()}
    total = timings.pop("total")
    parts = [f"{name} {value / 1e6:.2f}" for name, value in timings.items() if value is not None]
    return f"{total / 1e6:.2f} ms in all" + (f"; in the server: {', '.join(parts)}" if parts else "")
