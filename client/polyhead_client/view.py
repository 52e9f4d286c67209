"""`polyhead view`: a sentence in, a picture of its attention out."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import DEFAULT_CONNECTION, Connection, parse_indices

app = App(name="view", help="Draw the attention heads of a layer as heat maps.")


@app.default
def view(
    text: str,
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
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
        Which server, and which of its models.
    text
        The sentence.
    layer
        Which layer to draw; -1 is the last.
    out
        The picture's file; its ending says which kind (.png, .svg, .pdf, ...).
    heads
        Heads to draw: 3, or 0,3, or 0:4. Default: all.
    columns
        Heat maps in a row. Default: all, up to 12.
    truncate
        Cut a sentence that is too long, instead of refusing it.
    """
    from polyhead_client.heatmap import draw_heads, kinds, save

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
    drawn = next(iter(encoding.attention or ()))  # --layer counted from the front
    save(draw_heads(encoding, layer=drawn, columns=columns), out)
