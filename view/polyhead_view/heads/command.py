"""`polyhead heads`: find out what each head of a model does."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions

app = App(name="heads")


@app.default
def heads(
    textfile: Path,
    /,
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    truncate: Annotated[bool, Parameter(negative="")] = False,
    ablate: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    csv: Path | None = None,
    html: Path | None = None,
) -> None:
    """Find out over a corpus what each head of a model does, and which are alike.

    Scores every head on every text, prints the roles of each, and the heads whose attention is most alike.
    The family must have an insight graph (`polyhead export --graphs insight`).

    ```sh
    polyhead heads texts.txt
    polyhead heads texts.txt --html heads.html --csv heads.csv
    polyhead heads texts.txt --ablate --json > scores.json
    ```

    Parameters
    ----------
    textfile
        The corpus: a text on each line, in UTF-8.
    connection
        The server, and one of its models. The timeout is that of a batch of texts.
    truncate
        Truncate texts that are too long, instead of rejecting the corpus.
    ablate
        Also silence each head in turn, and measure how far the vectors move without it. The family must take
        a head mask (polyhead export --head-mask). polyhead prune --scores reads what --json then writes.
    as_json
        Write JSON instead of a table: means, spreads and roles of each head, correlations of all pairs.
    csv
        Also write the means, spreads and roles of each head to this file.
    html
        Also write a page with pictures to this file; it needs no other file and no network.
    """
    from rich.console import Console

    from polyhead_view.heads.ablation import ablate_heads
    from polyhead_view.heads.corpus import read_corpus
    from polyhead_view.heads.formats import as_csv
    from polyhead_view.heads.formats import as_json as survey_as_json
    from polyhead_view.heads.page import as_page
    from polyhead_view.heads.survey import survey_heads
    from polyhead_view.heads.table import print_table
    from polyhead_view.progress import progress_bar

    corpus = read_corpus(textfile)
    for path in (csv, html):
        if path is not None:
            path.touch()  # rather fail now than after the work
    with connection.open() as client, progress_bar() as bar:
        task = bar.add_task("", total=len(corpus.texts) * (1 + ablate))
        try:
            survey = survey_heads(
                client,
                corpus.texts,
                model=connection.model,
                truncate=truncate,
                progress=lambda done, _: bar.update(task, completed=done),
            )
            if ablate:
                drift = ablate_heads(
                    client,
                    corpus.texts,
                    model=connection.model,
                    truncate=truncate,
                    progress=lambda done, of: bar.update(task, completed=of + done),
                )
                survey = replace(survey, drift=drift)
        except InvalidRequest as error:
            raise InvalidRequest(corpus.located(str(error))) from error
    if csv is not None:
        csv.write_text(as_csv(survey), encoding="utf-8")
    if html is not None:
        html.write_text(as_page(survey, textfile.name), encoding="utf-8")
    if as_json:
        sys.stdout.write(survey_as_json(survey) + "\n")
    else:
        print_table(survey, Console())
