"""What a stand-in for a server says of its models' tensors."""

import json
import re
from collections.abc import Iterable
from typing import Any

SCORES = ("previous", "entropy", "confidence")
AXES: dict[str, tuple[str, ...]] = {
    "output": ("B", "T", "D"),
    "pooled": ("B", "D"),
    "tokens": ("B", "T"),
    "lengths": ("B",),
    "logits": ("B", "C"),
    "attention": ("B", "H", "T", "T"),
    "attention_rows": ("B", "L", "H", "R", "T"),
    "value_norms": ("B", "L", "H", "T"),
    "head_scores": ("B", "L", "H", "Scores"),
    "weighted_scores": ("B", "L", "H", "Scores"),
    "rollout": ("B", "T", "T"),
    "mixed": ("B", "T", "T"),
    "top_keys": ("B", "L", "H", "T", "Top"),
    "top_weights": ("B", "L", "H", "T", "Top"),
    "thumbnails": ("B", "L", "H", "Side", "Side"),
    "rows": ("B", "R"),
    "head_mix": ("B", "L", "H"),
    "head_mask": ("B", "L", "H"),
}


def described(tensors: Iterable[str]) -> str:
    """The property `tensors` of a model with these inputs and outputs, as polyhead's server writes it."""
    known: dict[str, Any] = {}
    for name in tensors:
        role, _, layer = name.partition(".")
        if role in AXES:
            known[name] = {"axes": AXES[role], "role": role}
        if re.fullmatch(r"attention\.\d+", name):
            known[name]["layer"] = int(layer)
        if role in {"head_scores", "weighted_scores"}:
            known[name]["labels"] = SCORES
        if role == "head_mask":
            known[name]["range"] = [0, 1]
        if role == "head_mix":
            known[name]["range"] = [None, None]
    return json.dumps(known)
