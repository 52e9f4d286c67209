"""The explorer's page as one HTML file, which works without a server.

Shape letters: T tokens, S keys, H heads, L layers.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from polyhead_client import Encoding, HeadScores
from polyhead_view.explorer.answers import Layers, head_map_of, layers_of, map_of, overview
from polyhead_view.explorer.frames import colours
from polyhead_view.explorer.questions import WHOLE

STATIC = Path(__file__).with_name("static")

_MODULES = (
    "colours",
    "answers",
    "state",
    "grid",
    "downloads",
    "panel",
    "change",
    "families",
    "explorer",
)
"""In the order in which they need each other."""

MOST_BYTES = 64 << 20
"""The most bytes of maps that one page holds."""

_HEIGHT = 760
"""Of the page in a notebook, in pixels."""


@dataclass(frozen=True, kw_only=True)
class SavedPage:
    """All heads of one sequence on the explorer's page; a notebook shows it."""

    server: Mapping[str, Any]
    """What the page is told of the server."""
    frames: Mapping[str, bytes]
    """What it is told of the sequence, by question."""
    state: Mapping[str, str]
    """What it shows first."""

    @classmethod
    def of(
        cls,
        encoding: Encoding,
        maps: Layers,
        *,
        layer: int | None = None,
        head: int | None = None,
        scores: HeadScores | None = None,
        left_out: int | None = 0,
        text: str = "",
        pair: str = "",
        silenced: tuple[tuple[int, int], ...] = (),
    ) -> "SavedPage":
        """Make a page.

        Args:
            encoding: The encoding of one sequence; its rollout and contacts are shown, if it has any.
            maps: Those of its layers.
            layer: The layer of the head to open; None means the first.
            head: The head to open, likewise.
            scores: The scores of the heads, if another encoding has them.
            left_out: How many tokens truncation left out; None if nobody knows.
            text: The sentence.
            pair: The second text, if it is a pair with the sentence.
            silenced: Layer and head of those that were silenced.

        Raises:
            ValueError: There is no such head, or there are too many weights.
        """
        size = sum(2 * layer.weights.size for layer in maps.values())
        if size > MOST_BYTES:
            raise ValueError(
                f"a page must have at most {MOST_BYTES >> 20} MiB of weights, was {size >> 20} MiB: shorten "
                "the sentence, or choose layers or heads"
            )
        heads = list(encoding.heads or ())
        frames = {}
        if maps:
            frames["overview"] = overview(encoding, maps, left_out=left_out, scores=scores)
        for number, of_layer in maps.items():
            frames |= {f"{number}.{one}": head_map_of(encoding, of_layer, at) for at, one in enumerate(heads)}
        whole = [name for name in WHOLE if getattr(encoding, name) is not None]
        frames |= {name: map_of(encoding, getattr(encoding, name)) for name in whole}
        layer = next(iter(maps), 0) if layer is None else layer
        head = (heads or [0])[0] if head is None else head
        shown = f"{layer}.{head}" if maps else "".join(whole[:1])
        if shown not in frames:
            raise ValueError(
                f"layer and head must be among layers {list(maps)} and heads {heads}, were {layer} and {head}"
            )
        family = encoding.model.partition(".")[0]
        description = {
            "name": family,
            "text": bool(text),
            "pairs": bool(pair),
            "layers": len(maps),
            "heads": len(heads),
            "whole": whole,
            "weighted": encoding.weighted,
            "missing": [],
        }
        state = {"text": text, "open": shown, "silenced": ",".join(f"{a}.{b}" for a, b in silenced)}
        if pair:
            state |= {"other": pair, "together": "pair"}
        return cls(
            server={"address": "", "model": family, "families": [description]}, frames=frames, state=state
        )

    def html(self) -> str:
        """Return the page."""
        spelled = {name: base64.b64encode(frame).decode() for name, frame in self.frames.items()}
        saved = {
            "server": self.server,
            "state": self.state,
            "colours": base64.b64encode(colours()).decode(),
            "frames": spelled,
        }
        # In a script, only "</" and "<!--" mean something to an HTML parser.
        data = json.dumps(saved, ensure_ascii=False).replace("<", r"\u003c")
        page = _static("index.html")
        style = f"<style>\n{_static('explorer.css')}</style>"
        scripts = (
            f'<script type="application/json" id="saved">{data}</script>\n'
            f'<script type="module">\n{_script()}</script>'
        )
        page = re.sub(r"<link rel=\"icon\".*>\n\s*", "", page)
        page = page.replace('<link rel="stylesheet" href="explorer.css">', style)
        return page.replace('<script type="module" src="explorer.js"></script>', scripts)

    def save(self, path: Path | str) -> None:
        """Write the page as an HTML file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        style = f"border: 0; width: 100%; height: {_HEIGHT}px"
        return f'<iframe srcdoc="{escape(self.html())}" title="attention heads" style="{style}"></iframe>'


def show(encoding: Encoding, *, layer: int | None, head: int | None, **labels: Any) -> SavedPage:
    """Return the page of an encoding of one sequence.

    Args:
        encoding: The encoding.
        layer: The layer of the head to open; None means the first.
        head: The head to open, likewise.
        labels: `key_tokens` and `mask`, see `maps_of`.

    Raises:
        ValueError: It has neither attention, rollout nor contacts; or no such head, or too many weights; or
            labels or mask do not fit.
    """
    maps = layers_of(encoding, **labels)
    if not maps and encoding.rollout is None and encoding.contacts is None:
        raise ValueError(
            "show needs attention, rollout or contacts: encode with attention=True, rollout=True or "
            "contacts=True"
        )
    tokens: Any = encoding.tokens or ()  # of one sequence
    return SavedPage.of(encoding, maps, layer=layer, head=head, text=" ".join(tokens))


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the page's modules as one: their names differ, so that they can share a scope."""
    modules = [_static(f"{name}.js") for name in _MODULES]
    return re.sub(r"^(?:import .* from \"\./\w+\.js\";\n|export )", "", "".join(modules), flags=re.MULTILINE)
