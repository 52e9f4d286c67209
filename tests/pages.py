"""The code blocks of the README and of the pages in docs, for tests that run what stands there."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
)

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: str
    line: int
    language: str
    code: str
    reason: str
    """Why nothing runs it, as the page says in a comment before it; empty: something does."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"],
            code=found["code"],
            reason=found["reason"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def block(page: str, part: str) -> str:
    """The code of the one block of a page in which something stands. A test that calls this runs it.

    `tests/test_pages.py` looks for such calls, with both arguments as literals: it finds what nothing runs.
    """
    (found,) = (each.code for each in blocks(page) if part in each.code)
    return found
