"""`polyhead view` and `polyhead similarity`: draw the attention of a sentence, or why two are similar."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions, parse_indices
from polyhead_view.options import DEFAULT_PICTURE, PictureOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

view_app = App(name="view")
similarity_app = App(name="similarity")


@view_app.default
def view(
    text: str | None = None,
    /,
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    picture: PictureOptions = DEFAULT_PICTURE,
    text_pair: str | None = None,
    layer: int | None = None,
    contacts: bool = False,
    out: Path = Path("attention.png"),
    input: Path | None = None,
    memory: Path | None = None,
    cross: bool = False,
    heads: str | None = None,
    weighted: bool = False,
    columns: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    truncate: bool = False,
) -> None:
    """Draw the attention heads of a layer as heat maps, one for each head; or the contacts in a protein.

    ```sh
    polyhead view "The cat sat on the mat." --layer -1 --heads 0,3
    polyhead view "The cat sat on the mat." --layer 5 --out heads.pdf
    ```

    Parameters
    ----------
    connection
        The server, and one of its models.
    picture
        What the picture looks like.
    text
        The sentence, for a family that takes texts.
    text_pair
        The second text of a pair, such as a reranker's passage; a line shows where it begins.
    input
        Instead of a sentence: an .npy file of vectors [T, D] or of token ids [T].
    memory
        An .npy file of the vectors that those of --input attend to, [S, D], for a family with
        cross-attention.
    cross
        Draw the attention to the memory, where layers attend to their own sequence as well.
    layer
        The layer to draw; -1 is the last.
    contacts
        Instead of a layer: draw which residues of a protein touch, for a family with a graph of contacts.
    out
        The image file; its suffix selects the format (.png, .svg, .pdf, ...).
    heads
        Heads to draw: 3, or 0,3, or 0:4. Default: all.
    weighted
        Draw norm-weighted attention: what each token adds, not only how much attention it gets.
    columns
        Heat maps per row. Default: as many as fit on a page.
    truncate
        Truncate a sentence that is too long, instead of rejecting it.
    """
    from polyhead_client.files import load_sequence
    from polyhead_view.maps import draw_heads
    from polyhead_view.plots import draw_contacts

    picture.check(out)
    if (layer is None) is not contacts:
        raise InvalidRequest("give either --layer, or --contacts")
    if contacts and (cross or weighted or heads is not None or columns is not None):
        raise InvalidRequest("--contacts is one map: leave out --cross, --weighted, --heads and --columns")
    if (text is None) is (input is None):
        raise InvalidRequest("give either a sentence, or --input FILE.npy")
    if text_pair is not None and text is None:
        raise InvalidRequest("--text-pair goes with a sentence, which is the first text of the pair")
    inputs = text or "" if input is None else load_sequence("--input", input)
    with connection.open() as client:
        encoding = client.encode(
            inputs,
            text_pair=text_pair,
            memory=None if memory is None else load_sequence("--memory", memory),
            model=connection.model,
            output=False,
            pooled=False,
            attention=None if cross or layer is None else [layer],
            cross_attention=[layer] if cross and layer is not None else None,
            contacts=contacts,
            weighted=weighted,
            heads=None if heads is None else parse_indices("--heads", heads),
            spans=text_pair is not None,
            truncate=truncate,
        )
    if contacts:
        figure = draw_contacts(encoding, **picture.style)
    else:
        drawn = next(iter(encoding.attention or encoding.cross_attention))  # --layer may be negative
        figure = draw_heads(encoding, layer=drawn, columns=columns, cross=cross, **picture.style)
    if encoding.second_text_start is not None:
        _draw_border(figure, encoding.second_text_start - 0.5)
    picture.save(figure, out)
    sys.stdout.write(f"{out}\n")


def _draw_border(figure: "Figure", at: float) -> None:
    """Draw a line through all maps of a pair before the first token of the second text."""
    for axes in figure.axes:
        if axes.get_label() != "<colorbar>":  # matplotlib's name for scales
            axes.axhline(at, color="white", linewidth=0.8)
            axes.axvline(at, color="white", linewidth=0.8)


@similarity_app.default
def similarity(
    a: str,
    b: str,
    /,
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    picture: PictureOptions = DEFAULT_PICTURE,
    top: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
    out: Path | None = None,
    truncate: bool = False,
) -> None:
    """Show which tokens make two texts similar.

    Splits the cosine of their mean-pooled vectors exactly over pairs of tokens; or, for late interaction,
    MaxSim of the first text as query and the second as document.

    ```sh
    polyhead similarity "A man eats bread." "Someone has a meal."
    ```

    Parameters
    ----------
    a
        The first text.
    b
        The second text.
    connection
        The server, and one of its models.
    picture
        What the picture looks like.
    top
        The number of pairs to show, from the largest contribution on.
    out
        Also draw all pairs, to this image file; its suffix selects the format (.png, .svg, .pdf, ...).
    truncate
        Truncate texts that are too long, instead of rejecting them.
    """
    from itertools import islice

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from polyhead_view.plots import draw_similarity
    from polyhead_view.similarity import explain_similarity

    if out is not None:
        picture.check(out)
    with connection.open() as client:
        explained = explain_similarity(client, a, b, model=connection.model, truncate=truncate)
    table = Table("first text", "second text", box=SIMPLE_HEAD)
    table.add_column("contribution", justify="right")
    firsts, seconds = map(_numbered, explained.tokens)
    for pair in islice(explained.pairs(), top):
        table.add_row(Text(firsts[pair.a]), Text(seconds[pair.b]), f"{pair.contribution:.4f}")
    console = Console()
    console.print(
        f"{explained.measure} {explained.value:.4f}, the sum over {explained.contributions.size:,} "
        "pairs of tokens"
    )
    console.print(table)
    if out is not None:
        picture.save(draw_similarity(explained, **picture.style), out)


def _numbered(tokens: Sequence[str]) -> list[str]:
    """Add their positions to tokens that repeat."""
    counts = Counter(tokens)
    return [f"{token}@{at}" if counts[token] > 1 else token for at, token in enumerate(tokens)]
