"""What lesson 6 shows beside its own runs: each setting with eight seeds.

    python examples/course/heads_matter.py

writes heads_matter.json beside this file. It takes half an hour on one core.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from letters import bits_a_letter, read_manual, train_letters
from relations import accuracy, train

SEEDS = range(8)
HEADS = (1, 2, 4, 8, 16, 32)
STORED = Path(__file__).parent / "heads_matter.json"

EXPERIMENTS: dict[str, list[dict[str, Any]]] = {
    "equal total width": [{"heads": heads, "head_width": 32 // heads} for heads in HEADS],
    "width 8 each": [{"heads": heads, "head_width": 8} for heads in (1, 2, 3, 4, 6, 8, 16)],
    "one wide head": [{"heads": 1, "head_width": width} for width in (64, 128, 256)],
    "one relation": [{"task": "single", "heads": heads} for heads in (1, 4)],
    "two relations": [{"task": "pair", "heads": heads} for heads in (1, 4)],
    "in any order": [{"task": "bag", "heads": heads, "steps": 1000} for heads in (1, 4)],
    "250 steps": [{"heads": heads, "head_width": 32 // heads, "steps": 250} for heads in HEADS],
    "scale": [
        {"heads": 4, "head_width": width, "scale": scale} for width in (8, 32, 128) for scale in (True, False)
    ],
    "2000 steps": [{"heads": heads, "head_width": 32 // heads, "steps": 2000} for heads in HEADS],
}
"""Settings of `relations.train`; the result is the share of right answers."""

OF_LETTERS: dict[str, list[dict[str, Any]]] = {
    "hidden letter": [{"heads": heads, "head_width": 32 // heads} for heads in HEADS],
    "next letter": [{"guess": "next", "heads": heads, "head_width": 32 // heads} for heads in (1, 4, 8)],
}
"""Settings of `letters.train_letters`; the result is bits a letter."""


def measure(settings: dict[str, Any], run: Callable[..., float]) -> dict[str, Any]:
    """Return settings with the result of each seed."""
    return {**settings, "by_seed": [round(run(**settings, seed=seed), 4) for seed in SEEDS]}


def main() -> None:
    """Measure everything, and store it."""
    torch.set_num_threads(1)
    text = read_manual()
    runs: list[tuple[dict[str, list[dict[str, Any]]], Callable[..., float]]] = [
        (EXPERIMENTS, lambda **settings: accuracy(train(**settings))),
        (OF_LETTERS, lambda **settings: bits_a_letter(train_letters(text, **settings), text)),
    ]
    results: dict[str, list[dict[str, Any]]] = {}
    for experiments, run in runs:
        for name, all_settings in experiments.items():
            results[name] = [measure(settings, run) for settings in all_settings]
            for result in results[name]:
                print(name, result, flush=True)
    lines = [
        f"{json.dumps(name)}: [\n    " + ",\n    ".join(map(json.dumps, rows)) + "\n  ]"
        for name, rows in results.items()
    ]
    STORED.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
