"""`polyhead heads`: find out what each head of a model does."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from polyhead_client.errors import InvalidRequest, PolyheadError
from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions
from polyhead_view.options import DEFAULT_PICTURE, PictureOptions

if TYPE_CHECKING:
    from polyhead_client import Client
    from polyhead_view.heads.comparison import HeadComparison
    from polyhead_view.heads.corpus import Corpus
    from polyhead_view.heads.survey import HeadSurvey

app = App(name="heads")


@app.default
def heads(
    textfile: Path,
    /,
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    picture: PictureOptions = DEFAULT_PICTURE,
    against: str | None = None,
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
    picture
        What the page of --html looks like; --colours is of scores, not of correlations and differences.
    against
        Another family, or NAME:VERSION: say what differs between its heads and those of --model.
    truncate
        Truncate texts that are too long, instead of rejecting the corpus.
    ablate
        Also silence each head in turn, and measure how far the vectors move without it. The family must take
        a head mask (polyhead export --head-mask). polyhead prune --scores reads what --json then writes.
        Ctrl-C keeps what was measured until then.
    as_json
        Write JSON instead of a table: means, spreads and roles of each head, correlations of all pairs.
    csv
        Also write the means, spreads and roles of each head to this file.
    html
        Also write a page with pictures to this file; it needs no other file and no network.
    """
    from polyhead_view.heads.corpus import read_corpus

    if ablate and against is not None:
        raise InvalidRequest("--ablate measures one family: leave out --against")
    if picture != DEFAULT_PICTURE and html is None:
        raise InvalidRequest("--dpi, --title and --colours are of the page: give --html, too")
    picture.check_colours()
    corpus = read_corpus(textfile)
    for path in (csv, html):
        if path is not None:
            path.touch()  # rather fail now than after the work
    found: HeadSurvey | HeadComparison
    stopped: BaseException | None = None
    with connection.open() as client:
        try:
            if against is not None:
                found = _compared(client, corpus, connection.model, against, truncate=truncate)
            else:
                found, stopped = _surveyed(client, corpus, connection.model, truncate=truncate, ablate=ablate)
        except InvalidRequest as error:
            raise InvalidRequest(corpus.located(str(error))) from error
    _write(found, textfile.name, picture=picture, as_json=as_json, csv=csv, html=html)
    if stopped is not None:
        raise stopped


def _surveyed(
    client: "Client", corpus: "Corpus", model: str | None, *, truncate: bool, ablate: bool
) -> "tuple[HeadSurvey, BaseException | None]":
    """Survey a family; also return what stopped the ablation, of which the survey has what was measured."""
    from polyhead_proto.names import TEXT
    from polyhead_view.heads.ablation import ablate_heads, check_head_mask
    from polyhead_view.heads.survey import survey_heads
    from polyhead_view.progress import progress_bar

    texts = corpus.texts
    if ablate:
        check_head_mask(client.model(model, takes=TEXT))
    with progress_bar("texts") as bar:
        task = bar.add_task("scored", total=len(texts))
        survey = survey_heads(
            client,
            texts,
            model=model,
            truncate=truncate,
            progress=lambda done, _: bar.update(task, completed=done),
        )
        if not ablate:
            return survey, None
        silenced = bar.add_task("silenced", total=len(texts))
        drifts = enumerate(ablate_heads(client, texts, model=model, truncate=truncate), 1)
        try:
            for done, drift in drifts:
                survey = replace(survey, drift=drift, drift_texts=done)
                bar.update(silenced, completed=done)
        except (KeyboardInterrupt, PolyheadError) as error:
            if survey.drift is None:
                raise
            return survey, error
    return survey, None


def _compared(
    client: "Client", corpus: "Corpus", model: str | None, against: str, *, truncate: bool
) -> "HeadComparison":
    """Compare a family with another, NAME or NAME:VERSION."""
    from polyhead_view.heads.comparison import compare_heads
    from polyhead_view.progress import progress_bar

    name, _, version = against.partition(":")
    with progress_bar("texts") as bar:
        task = bar.add_task("compared", total=len(corpus.texts))
        return compare_heads(
            client,
            corpus.texts,
            model=model,
            against=name,
            against_version=version or None,
            truncate=truncate,
            progress=lambda done, _: bar.update(task, completed=done),
        )


def _write(
    found: "HeadSurvey | HeadComparison",
    source: str,
    *,
    picture: PictureOptions,
    as_json: bool,
    csv: Path | None,
    html: Path | None,
) -> None:
    from rich.console import Console

    from polyhead_view.heads import comparison_formats, formats
    from polyhead_view.heads.comparison_page import comparison_page
    from polyhead_view.heads.comparison_table import print_comparison
    from polyhead_view.heads.page import as_page
    from polyhead_view.heads.survey import HeadSurvey
    from polyhead_view.heads.table import print_table

    to_csv, to_json, to_page, print_found = (
        (formats.as_csv, formats.as_json, as_page, print_table)
        if isinstance(found, HeadSurvey)
        else (
            comparison_formats.comparison_csv,
            comparison_formats.comparison_json,
            comparison_page,
            print_comparison,
        )
    )
    shown: Any = found
    if csv is not None:
        csv.write_text(to_csv(shown), encoding="utf-8")
    if html is not None:
        html.write_text(to_page(shown, source, dpi=picture.dpi, **picture.style), encoding="utf-8")
    if as_json:
        sys.stdout.write(to_json(shown) + "\n")
    else:
        print_found(shown, Console())
