"""Check the answer to a lesson's exercise."""

from collections.abc import Callable
from typing import Any


def check(answer: Any, is_right: Callable[[Any], Any], hint: str) -> None:
    """Say whether an answer is right; what cannot be judged is not right.

    Args:
        answer: None means that there is none yet.
        is_right: Judges it.
        hint: What to think about if it is not right.
    """
    if answer is None:
        print("Not answered yet.")
        return
    try:
        right = bool(is_right(answer))
    except Exception as error:  # whatever a learner may have written
        print(f"Not yet: {error}\n{hint}")
        return
    print("Right." if right else f"Not yet. {hint}")
