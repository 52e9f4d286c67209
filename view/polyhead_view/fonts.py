"""Fonts for tokens of any script: matplotlib's own font, and beside it installed ones that have the rest."""

import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib import font_manager

_SHARED = {"CJK": "CJK", "HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK"}
"""Scripts, by the first words of the names of their characters, that one font has."""


def families(texts: Iterable[str]) -> list[str]:
    """Return the families of fonts that have the characters of texts, as far as installed fonts do."""
    own = list(mpl.rcParams["font.family"])
    missing = _missing(frozenset("".join(texts)), tuple(own))
    while missing:
        best = max(_installed(), key=lambda family: _fitness(family, missing), default="")
        if not best or not missing & _installed()[best]:
            break
        own.append(best)
        missing -= _installed()[best]
    return own


def fonts_to_install(texts: Iterable[str]) -> list[str]:
    """Return the families of fonts to install for characters of texts that no installed font has."""
    missing = _missing(frozenset("".join(texts)), tuple(mpl.rcParams["font.family"]))
    missing = missing.difference(*_installed().values()) if missing else missing
    return sorted({_family(character) for character in missing})


def _missing(characters: frozenset[str], own: tuple[str, ...]) -> frozenset[str]:
    """Return the characters that matplotlib's own fonts lack."""
    printed = (each for each in characters if each.isprintable() and not each.isascii())
    return frozenset(printed) - _characters(
        font_manager.findfont(font_manager.FontProperties(family=list(own)))
    )


def _fitness(family: str, missing: frozenset[str]) -> tuple[int, bool]:
    """Return how well a family goes with matplotlib's own, which has no serifs."""
    return len(missing & _installed()[family]), "Serif" not in family


@cache
def _installed() -> dict[str, frozenset[str]]:
    """Return family → its characters, of upright fonts: first those that a PDF can embed as TrueType."""
    _add_new_fonts()
    found: dict[str, frozenset[str]] = {}
    for entry in sorted(font_manager.fontManager.ttflist, key=_rank):
        if entry.style == "normal" and entry.name not in found and "Last Resort" not in entry.name:
            found[entry.name] = _characters(entry.fname)
    return found


def _add_new_fonts() -> None:
    """Tell matplotlib of fonts that were installed after it has stored its list of them."""
    known = {str(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        with suppress(Exception):  # a font that cannot be read: matplotlib's own list leaves it out, too
            font_manager.fontManager.addfont(path)


def _rank(entry: font_manager.FontEntry) -> tuple[bool, int]:
    """Return whether a font has other outlines than TrueType, and how far its weight is from plain text's."""
    boldness = abs(int(font_manager.weight_dict.get(str(entry.weight), entry.weight)) - 400)
    return not _is_truetype(str(entry.fname)), boldness


def _is_truetype(path: str) -> bool:
    """Return whether a font's outlines are TrueType; those of OpenType may be PostScript's (CFF)."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(16)
            if start[:4] == b"ttcf":  # a collection, with the places of its fonts
                file.seek(int.from_bytes(start[12:], "big"))
                start = file.read(4)
    except OSError:
        return False
    return start[:4] != b"OTTO"


@cache
def _characters(path: str) -> frozenset[str]:
    try:
        font = font_manager.get_font(path)
        return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()
    except (OSError, RuntimeError):  # a font that FreeType cannot read
        return frozenset()


def _family(character: str) -> str:
    """Return the family of Noto, which is free and has nearly every script, that has a character."""
    script = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    if unicodedata.category(character) == "So" or not script:
        return "Noto Emoji"
    return f"Noto Sans {_SHARED.get(script, script.title())}"
