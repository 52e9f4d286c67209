"""How the steps of an export are shown."""

import re
from contextlib import suppress
from io import StringIO

import pytest
from rich.console import Console

from polyhead_export.progress import Steps


def shown(*, terminal: bool, fails: bool = False) -> str:
    """What is printed of two steps, on 80 columns, where four were expected."""
    out = StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None, _environ={})
    with suppress(RuntimeError), Steps(console) as steps:
        steps("tiny: building the encoder")
        steps.expect(3)
        steps("tiny: [comparing] the attention graph with PyTorch")
        if fails:
            raise RuntimeError
    return out.getvalue()


@pytest.mark.parametrize(("fails", "counted"), [(False, "2/2 steps"), (True, "1/4 steps")])
def test_a_terminal_has_a_bar_that_counts_the_steps_that_are_done(fails: bool, counted: str) -> None:
    (line,) = re.findall(r"tiny: .+", shown(terminal=True, fails=fails))

    assert line.startswith("tiny: [comparing] the attention graph with PyTorch ")
    assert counted in line


def test_a_log_has_a_line_for_each() -> None:
    lines = ["tiny: building the encoder", "tiny: [comparing] the attention graph with PyTorch"]

    assert shown(terminal=False).splitlines() == lines
