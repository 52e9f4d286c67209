"""A comparison as people read it."""

import io

from rich.console import Console
from tests.view.heads.surveys import HEADS, MadeClient

from polyhead_view import compare_heads
from polyhead_view.heads.comparison_table import print_comparison


def printed(
    heads: dict[str, int], model: str, against: str, texts: tuple[str, ...] = ("a b", "a b c")
) -> str:
    found = compare_heads(MadeClient(heads).as_client(), texts, model=model, against=against)
    console = Console(file=io.StringIO(), width=80)
    print_comparison(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_changes_and_differences_are_shown() -> None:
    said = printed({"made": HEADS, "other": HEADS, "third": HEADS}, "made", "third")

    assert "made, version 1, against third, version 1" in said
    assert ["0.0", "previous", "token"] in [line.split() for line in said.splitlines()]
    assert "-0.600 ± 0.000" in said
    assert "For 0 of 6 heads" in " ".join(said.split())


def test_other_numbers_of_heads_are_said_in_words() -> None:
    said = printed({"made": HEADS, "small": 2}, "made", "small")

    assert "made has 2 layers of 3 heads, and small has 2 layers of 2 heads" in " ".join(said.split())
    assert "Largest differences" not in said
    assert "Most alike, attention" in said


def test_without_maps_it_says_why() -> None:
    for heads in (HEADS, 2):
        said = printed({"made": HEADS, "other": heads}, "made", "other", ("a b c d e f g h i",))
        assert "no text was short enough" in " ".join(said.split())
