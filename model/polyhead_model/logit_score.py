"""Rerankers that are language models: a pair's score is the logits of words at its last token."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, integer, read_object


@dataclass(frozen=True, kw_only=True)
class LogitScore:
    """logit[true_id] − logit[false_id], whose sigmoid is the softmax of the two; or logit[true_id] alone."""

    true_id: int
    """The token id of what says yes."""
    false_id: int | None
    """That of no."""
    tied: bool = False
    """Whether the matrix of these logits is that of the token embeddings."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Those that there are."""
        return (self.true_id,) if self.false_id is None else (self.true_id, self.false_id)


def read_logit_score(folder: Path) -> LogitScore:
    """Read the module `LogitScore` of sentence-transformers.

    Raises:
        CheckpointError: It names no token, or reads something else than logits of words.
    """
    path = folder / "config.json"
    config: Mapping[str, object] = read_object(path)
    if (given := config.get("module_input_name", "causal_logits")) != "causal_logits":
        raise CheckpointError(f"{path}: module_input_name must be 'causal_logits', was {given!r}")
    score = LogitScore(
        true_id=integer(path, config, "true_token_id"),
        false_id=None if config.get("false_token_id") is None else integer(path, config, "false_token_id"),
    )
    if min(score.ids) < 0:
        raise CheckpointError(f"{path}: true_token_id and false_token_id must be 0 or more, were {score.ids}")
    return score
