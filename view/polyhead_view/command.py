"""`polyhead view`: draw the attention of a sentence."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions, parse_indices

app = App(name="view", help="Draw the attention heads of a layer as heat maps.")


@app.default
def view(
    text: str,
    /,
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    layer: int,
    out: Path,
    heads: str | None = None,
    columns: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    truncate: bool = False,
) -> None:
    """Draw the attention heads of a layer as heat maps, one for each head.

    Parameters
    ----------
    connection
        The server, and one of its models.
    text
        The sentence.
    layer
        The layer to draw; -1 is the last.
    out
        The image file; its suffix selects the format (.png, .svg, .pdf, ...).
    heads
        Heads to draw: 3, or 0,3, or 0:4. Default: all.
    columns
        Heat maps per row. Default: all, up to 12.
    truncate
        Truncate a sentence that is too long, instead of rejecting it.
    """
    from polyhead_view.figures import kinds, save
    from polyhead_view.plots import draw_heads

    if out.suffix.removeprefix(".").lower() not in kinds():
        raise InvalidRequest(f"--out must end with one of {', '.join(sorted(kinds()))}, was {out}")
    with connection.open() as client:
        encoding = client.encode(
            text,
            model=connection.model,
            output=False,
            pooled=False,
            attention=[layer],
            heads=None if heads is None else parse_indices("--heads", heads),
            truncate=truncate,
        )
    drawn = next(iter(encoding.attention or ()))  # --layer may be negative
    save(draw_heads(encoding, layer=drawn, columns=columns), out)
