"""What lesson 6 shows beside its own runs: each setting with eight seeds.

    python examples/course/heads_matter.py

writes heads_matter.json beside this file. It takes half an hour on one core.
"""

import json
from pathlib import Path
from typing import Any

import torch

from letters import Text, bits_a_letter, read_manual, train_letters
from relations import accuracy, train

SEEDS = range(8)
HEADS = (1, 2, 4, 8, 16, 32)
STORED = Path(__file__).parent / "heads_matter.json"

EXPERIMENTS: dict[str, list[dict[str, Any]]] = {
    "equal total width": [{"heads": heads, "head_width": 32 // heads} for heads in HEADS],
    "width 8 each": [{"heads": heads, "head_width": 8} for heads in (1, 2, 4, 8, 16)],
    "one wide head": [{"heads": 1, "head_width": width} for width in (64, 256)],
    "one relation": [{"task": "single", "heads": 1}],
    "two relations": [{"task": "pair", "heads": heads} for heads in (1, 2)],
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


def measure(settings: dict[str, Any], text: Text | None) -> dict[str, Any]:
    """Return settings with the result of each seed; of letters if there is a text."""
    by_seed = [
        accuracy(train(**settings, seed=seed))
        if text is None
        else bits_a_letter(train_letters(text, **settings, seed=seed), text)
        for seed in SEEDS
    ]
    return {**settings, "by_seed": [round(value, 4) for value in by_seed]}


def main() -> None:
    """Measure everything, and store it."""
    torch.set_num_threads(1)
    text = read_manual()
    results: dict[str, list[dict[str, Any]]] = {}
    for experiments, its_text in ((EXPERIMENTS, None), (OF_LETTERS, text)):
        for name, all_settings in experiments.items():
            results[name] = []
            for settings in all_settings:
                results[name].append(measure(settings, its_text))
                print(name, results[name][-1], flush=True)
    rows = [
        f"{json.dumps(name)}: [\n    " + ",\n    ".join(map(json.dumps, each)) + "\n  ]"
        for name, each in results.items()
    ]
    STORED.write_text("{\n  " + ",\n  ".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
