"""The pieces of a page in markdown."""

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in markdown; nothing where it has no rows."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""] if lines else []


def number(value: object, digits: int = 2) -> str:
    """A number for a table; what was not measured is a dash."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–" if value is None else str(value)


def small(value: object) -> str:
    """A deviation for a table."""
    return f"{value:.1e}" if isinstance(value, float) else "–" if value is None else str(value)
