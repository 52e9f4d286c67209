"""transformers' pipeline for token classification, which labels of tokens are compared with."""

import warnings
from pathlib import Path
from typing import Any

TEXTS = [
    "Ab cé\u0303 x[SEP]y 日本 ZZ",  # a decomposed letter, a special token as text
    "",
    "Mü\u0301ller's  ÉCOLE, Zoë. (e.g.) abc",
    "  spaces   twice ",
    "☃ snow \U0001f600x ﬁ İx",
    "a<mask> b",
    "one\ttab\nU.S.A. x-y",
]
"""Unknown words, words in many pieces, and characters that a tokenizer strips, lowers or cuts into bytes."""

Labelled = list[tuple[str, int, int, float]]


def pipeline(checkpoint: Path) -> Any:
    """The pipeline of a folder. It is imported here, as that takes seconds."""
    import transformers

    return transformers.pipeline("token-classification", model=str(checkpoint), device="cpu")


def labelled(pipe: Any, text: str, **options: Any) -> Labelled:
    """The labels that it gives, with their places and scores, rounded to what fp32 has in common."""
    if not text:  # which it refuses
        return []
    with warnings.catch_warnings(action="ignore"):  # that some tokenizers know no words
        found = pipe(text, **options)
    return [
        (each.get("entity") or each["entity_group"], each["start"], each["end"], float(each["score"]))
        for each in found
    ]


def same(ours: Labelled, theirs: Labelled) -> bool:
    """Whether both are the same labels in the same places, with the same scores in fp32."""
    return [each[:3] for each in ours] == [each[:3] for each in theirs] and all(
        abs(mine[3] - its[3]) < 1e-5 for mine, its in zip(ours, theirs, strict=True)
    )
