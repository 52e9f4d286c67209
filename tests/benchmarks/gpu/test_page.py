"""What parts have found is on the page: targets first, then each part."""

from benchmarks.gpu.page import Rows, page


def test_targets_come_first_and_each_part_has_its_table() -> None:
    found: dict[str, Rows] = {
        "machine": [{"kind": "device", "name": "GPU 9"}, {"kind": "line", "text": "No libraries."}],
        "parity": [
            {"kind": "row", "cells": {"family": "base-fp16", "pooled": "0.0001"}},
            {"kind": "target", "name": "close", "met": True, "seen": "0.0001"},
            {"kind": "problem", "what": "parity of large", "reason": "out of memory"},
        ],
        "speed": [{"kind": "target", "name": "fast", "met": False, "seen": "0.9"}],
    }

    shown = page(found, tiny=True)

    assert shown.startswith("# GPU 9: polyhead's graphs\n")
    assert "the numbers mean nothing" in shown
    assert "| close | yes | 0.0001 |\n| fast | **no** | 0.9 |" in shown
    assert "## The machine\n\nNo libraries.\n" in shown
    assert "| family | pooled |\n|---|---|\n| base-fp16 | 0.0001 |\n" in shown
    assert "- **parity of large**: out of memory" in shown
    assert shown.index("## Targets") < shown.index("## The machine") < shown.index("## Against PyTorch")
