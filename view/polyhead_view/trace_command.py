"""`polyhead trace`: find the places that carry what makes two texts differ."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions
from polyhead_view.options import DEFAULT_PICTURE, PictureOptions

app = App(name="trace")


@app.default
def trace(
    text: str,
    /,
    *,
    against: str,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    picture: PictureOptions = DEFAULT_PICTURE,
    text_pair: str | None = None,
    by: Literal["token", "head"] = "token",
    label: str | None = None,
    top: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    out: Path | None = None,
    truncate: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Find the places that carry what makes two texts differ, by causal tracing.

    For every layer and token, or layer and head, the value that the place has for the first text is put into
    the run of the second one. Shows what share of the difference that recovers: of the cosine with the first
    text's vector, of a reranker's score, or of a label's logit. The texts must have as many tokens, and the
    family a stream graph (`polyhead export --graphs stream`).

    ```sh
    polyhead trace "A man eats bread." --against "A man eats stone."
    ```

    Parameters
    ----------
    text
        The first text, the clean one.
    against
        The second, the corrupted one.
    connection
        The server, and one of its models. The timeout is that of a batch of runs.
    picture
        What the picture looks like.
    text_pair
        The second text of a pair with either, such as a reranker's passage.
    by
        Trace the stream at each token, or heads at all tokens.
    label
        The label of a classifier whose logit counts.
    top
        The number of places to show, from the largest share on.
    as_json
        Write JSON instead of a table: the shares of all places.
    out
        Also draw all places, to this image file; its suffix selects the format (.png, .svg, .pdf, ...).
    truncate
        Truncate texts that are too long, instead of rejecting them.
    """
    from itertools import islice

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from polyhead_view.progress import progress_bar
    from polyhead_view.traces import draw_trace

    if out is not None:
        picture.check(out)
    with connection.open() as client, progress_bar("places") as bar:
        task = bar.add_task("tracing", total=None)
        found = client.trace(
            text if text_pair is None else (text, text_pair),
            against if text_pair is None else (against, text_pair),
            metric=label,
            by=by,
            model=connection.model,
            truncate=truncate,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )
    if out is not None:
        picture.save(draw_trace(found, **picture.style), out)
    if as_json:
        shares = [[share if np.isfinite(share) else None for share in row] for row in found.shares.tolist()]
        described = {
            "model": found.model,
            "version": found.version,
            "by": by,
            "clean": found.clean,
            "corrupted": found.corrupted,
            "tokens": found.tokens,
            "shares": shares,
        }
        sys.stdout.write(json.dumps(described, ensure_ascii=False) + "\n")
        return
    console = Console()
    console.print(f"{found.clean:.4f} clean, {found.corrupted:.4f} corrupted; what one place recovers of it:")
    table = Table("stream before layer" if by == "token" else "layer", by, box=SIMPLE_HEAD)
    table.add_column("share", justify="right")
    last = len(found.shares) - 1
    for layer, place, share in islice(found.strongest(), top):
        named = str(place)
        if by == "token":
            mine, other = (tokens[place] for tokens in found.tokens)
            named = f"{mine}@{place}" if mine == other else f"{mine}@{place} ← {other}"
        after = by == "token" and layer == last
        table.add_row(f"{last}, after the last" if after else str(layer), Text(named), f"{share:.3f}")
    console.print(table)
