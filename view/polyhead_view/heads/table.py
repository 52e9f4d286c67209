"""Print a survey for people."""

import math
from itertools import islice

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyhead_view.heads.redundancy import most_alike
from polyhead_view.heads.roles import PRUNED, Role, nearest_role, role_counts, roles_of
from polyhead_view.heads.statistics import Redundancy, ScoreSummary
from polyhead_view.heads.survey import HeadSurvey, head_name

_PAIRS = 5


def print_table(survey: HeadSurvey, console: Console) -> None:
    """Print the roles of every head, and the pairs of heads that are most alike."""
    console.print(Text.assemble((survey.model, "bold"), f", version {survey.version}"))
    console.print(f"{survey.texts:,} texts, {survey.tokens:,} tokens; means ± standard deviations over texts")
    table = Table(box=SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    table.add_column("head", justify="right")
    table.add_column("attention")
    table.add_column("norm-weighted")
    if survey.drift is not None:
        table.add_column("drift", justify="right")
    for at, layer in enumerate(survey.layers):
        for head in range(survey.heads):
            cells = (
                _roles(survey, summary, at, head) for summary in (survey.raw.scores, survey.weighted.scores)
            )
            table.add_row(
                str(layer),
                str(head),
                *cells,
                *([] if survey.drift is None else [_drift(survey.drift[layer, head])]),
                end_section=head == survey.heads - 1 and at + 1 < len(survey.layers),
            )
    console.print(table)
    if survey.drift is not None:
        console.print("drift: how far the vectors of the texts move, on average, if the head is silenced")
        if survey.drift_texts < survey.texts:
            console.print(f"The drift was interrupted: it is over {survey.drift_texts:,} texts")
    _print_rules(survey, console)
    _print_pairs(survey, "attention", survey.raw.redundancy, console)
    _print_pairs(survey, "norm-weighted", survey.weighted.redundancy, console)


def _drift(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _roles(survey: HeadSurvey, summary: ScoreSummary, at: int, head: int) -> Text:
    if (survey.layers[at], head) in survey.pruned:
        return Text(PRUNED, style="dim")
    means = summary.mean[at, head]
    roles = roles_of(survey.scores, means)
    if roles:
        return Text("\n".join(_spelled(survey, summary, at, head, role) for role in roles))
    nearest = nearest_role(survey.scores, means)
    spelled = "" if nearest is None else _spelled(survey, summary, at, head, nearest)
    return Text(f"({spelled})" if spelled else "–", style="dim")


def _spelled(survey: HeadSurvey, summary: ScoreSummary, at: int, head: int, role: Role) -> str:
    column = survey.scores.index(role.score)
    return f"{role.name} {summary.mean[at, head, column]:.2f} ± {summary.sd[at, head, column]:.2f}"


def _print_rules(survey: HeadSurvey, console: Console) -> None:
    console.print(
        "A head has a role if the mean of a score reaches a threshold; in brackets: what comes closest."
    )
    table = Table("role", "rule", box=SIMPLE_HEAD)
    for title in ("attention", "norm-weighted"):
        table.add_column(title, justify="right")
    raw, weighted = (role_counts(survey.scores, kind.scores.mean) for kind in (survey.raw, survey.weighted))
    for role, count in raw.items():
        table.add_row(role.name, f"{role.score} ≥ {role.least:g}", str(count), str(weighted[role]))
    console.print(table)


def _print_pairs(survey: HeadSurvey, kind: str, redundancy: Redundancy | None, console: Console) -> None:
    if redundancy is None:
        console.print(f"Heads that are most alike, {kind}: not known, no text was short enough")
        return
    pairs = (
        f"{head_name(survey, pair.a)} and {head_name(survey, pair.b)} ({pair.correlation:.2f})"
        for pair in islice(most_alike(redundancy), _PAIRS)
    )
    console.print(
        f"Heads that are most alike, {kind}, by the correlation of their maps over {redundancy.texts:,} "
        f"texts: {', '.join(pairs)}"
    )
