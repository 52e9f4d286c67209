"""The names and meanings of the scores of heads; docs/attention.md has the whole definitions."""

from typing import NamedTuple


class Score(NamedTuple):
    """What a score is called, and what it says of a head."""

    title: str
    meaning: str
    formula: str
    """Of each query q with the weights A; the score is the mean over the queries."""


SCORES = {
    "previous": Score("previous token", "How much goes to the token before.", "A[q, q−1]"),
    "next": Score("next token", "How much goes to the token after.", "A[q, q+1]"),
    "current": Score("current token", "How much stays at the token itself.", "A[q, q]"),
    "first": Score("first token", "How much goes to the first token, such as [CLS].", "A[q, 0]"),
    "entropy": Score(
        "entropy", "How widely attention is spread, in nats; 0 is all on one token.", "−Σ A ln A"
    ),
    "normalised_entropy": Score(
        "normalised entropy",
        "How widely attention is spread: 1 is evenly over all tokens, at any length.",
        "−Σ A ln A ÷ ln(keys that q sees)",
    ),
    "confidence": Score(
        "confidence", "The largest weight: how sure the head is where to look.", "max A[q, k]"
    ),
    "distance": Score("distance", "How far away the head looks, in tokens.", "Σ A·|q − k|"),
    "separator": Score(
        "separator", "How much goes to the tokens that end a text, such as [SEP].", "Σ A on separators"
    ),
    "punctuation": Score("punctuation", "How much goes to punctuation.", "Σ A on punctuation"),
    "duplicate": Score(
        "duplicate token",
        "Where a token occurred before, how much goes there.",
        "Σ A on earlier occurrences of the token of q",
    ),
    "induction": Score(
        "induction",
        "Where a token occurred before, how much goes to what followed it.",
        "Σ A on the tokens after those",
    ),
}
"""By the name that the server gives each."""


def score_of(name: str) -> Score:
    """Return what is known of a score; of an unknown one, its name."""
    return SCORES.get(name) or Score(name.replace("_", " "), "", "")
