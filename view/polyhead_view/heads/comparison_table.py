"""Print a comparison of two families' heads for people."""

from itertools import islice

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyhead_view.heads.comparison import (
    ComparedKind,
    HeadComparison,
    count_roles,
    largest_differences,
    most_alike_in_other,
    role_changes,
    same_numbers,
)
from polyhead_view.heads.formats import role_names
from polyhead_view.heads.survey import HeadSurvey, head_name

TITLES = {"raw": "attention", "weighted": "norm-weighted"}
_MOST = 10


def print_comparison(comparison: HeadComparison, console: Console) -> None:
    """Print what differs between two families, or what can be compared of them."""
    a, b = comparison.a, comparison.b
    console.print(Text.assemble((title_of(a), "bold"), ", against ", (title_of(b), "bold")))
    console.print(f"{a.texts:,} texts, {a.tokens:,} tokens; of the second {b.tokens:,}")
    _print_roles(comparison, console)
    if not comparison.same_heads:
        console.print(not_by_number(comparison))
    for kind in comparison.kinds:
        if comparison.same_heads:
            _print_changes(comparison, kind, console)
            _print_differences(comparison, kind, console)
            said = alike_by_number(comparison, kind)
            console.print(
                f"Correlation of the maps of heads of the same number, {TITLES[kind.name]}: {said}\n"
            )
        else:
            _print_others(comparison, kind, console)


def title_of(survey: HeadSurvey) -> str:
    """Name a family and its version."""
    return f"{survey.model}, version {survey.version}"


def not_by_number(comparison: HeadComparison) -> str:
    """Say why heads are not compared by number."""
    sizes = [
        f"{survey.model} has {len(survey.layers)} layers of {survey.heads} heads"
        for survey in (comparison.a, comparison.b)
    ]
    return (
        f"{sizes[0]}, and {sizes[1]}: no head is compared with that of its number. What can be compared are "
        "the roles, and which heads are most alike."
    )


def alike_by_number(comparison: HeadComparison, kind: ComparedKind) -> str:
    """Say how alike the maps of heads of the same number are."""
    correlation = kind.differences.correlation
    if correlation is None:
        return "no text was short enough, and of the same tokens in both"
    same = same_numbers(correlation)
    known = np.flatnonzero(~np.isnan(same))
    if not len(known):
        return "no map varied"
    found = most_alike_in_other(correlation)
    own = sum(each is not None and each[0] == row for row, each in enumerate(found))
    least = known[np.argsort(same[known], kind="stable")][:5]
    listed = ", ".join(f"{head_name(comparison.a, int(row))} ({same[row]:.2f})" for row in least)
    return (
        f"{same[known].mean():.2f} on average over {correlation.texts:,} texts; least alike: {listed}. For "
        f"{own} of {len(same)} heads, the most alike of the other family is that of the same number"
    )


def _print_roles(comparison: HeadComparison, console: Console) -> None:
    table = Table("role", box=SIMPLE_HEAD)
    for kind in comparison.kinds:
        for survey in (comparison.a, comparison.b):
            table.add_column(f"{TITLES[kind.name]}\n{comparison.name_of(survey)}", justify="right")
    for role, counts in count_roles(comparison).items():
        table.add_row(role.name, *("–" if each is None else str(each) for each in counts))
    console.print(table)


def _print_changes(comparison: HeadComparison, kind: ComparedKind, console: Console) -> None:
    title = f"Roles that change, {TITLES[kind.name]}"
    changes = role_changes(comparison, kind)
    if not changes:
        console.print(f"{title}: none")
        return
    table = _table(title, console, "layer.head", "lost", "gained")
    for change in changes:
        table.add_row(f"{change.layer}.{change.head}", ", ".join(change.lost), ", ".join(change.gained))
    console.print(table)


def _print_differences(comparison: HeadComparison, kind: ComparedKind, console: Console) -> None:
    title = f"Largest differences ± standard error, {TITLES[kind.name]}"
    largest = list(islice(largest_differences(comparison, kind), _MOST))
    if not largest:
        console.print(f"{title}: none, all scores are the same")
        return
    table = _table(title, console, "layer.head", "score")
    for survey in (comparison.a, comparison.b):
        table.add_column(comparison.name_of(survey), justify="right")
    table.add_column("difference", justify="right")
    for each in largest:
        table.add_row(
            f"{each.layer}.{each.head}",
            each.score.replace("_", " "),
            f"{each.a:.3f}",
            f"{each.b:.3f}",
            f"{each.difference:+.3f} ± {each.standard_error:.3f}".replace("nan", "–"),
        )
    console.print(table)


def _print_others(comparison: HeadComparison, kind: ComparedKind, console: Console) -> None:
    title = f"Most alike, {TITLES[kind.name]}"
    if kind.differences.correlation is None:
        console.print(f"{title}: not known, no text was short enough, and of the same tokens in both")
        return
    first, second = comparison.a, comparison.b
    table = _table(title, console, first.model, "roles", second.model, "roles")
    table.add_column("correlation", justify="right")
    for row, found in enumerate(most_alike_in_other(kind.differences.correlation)):
        own = ", ".join(role_names(first, kind.a.scores, *divmod(row, first.heads)))
        if found is None:
            table.add_row(head_name(first, row), own, "–", "", "")
            continue
        other = ", ".join(role_names(second, kind.b.scores, *divmod(found[0], second.heads)))
        table.add_row(head_name(first, row), own, head_name(second, found[0]), other, f"{found[1]:.2f}")
    console.print(table)


def _table(title: str, console: Console, *columns: str) -> Table:
    """Print a title, which is wider than some tables, and return the table below it."""
    console.print(Text(title, style="bold"))
    return Table(*columns, box=SIMPLE_HEAD)
