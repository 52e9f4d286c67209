"""Read the two heads that BGE-M3 has beside its pooled vectors (Chen et al. 2024, arXiv 2402.03216).

FlagEmbedding stores each as a pickle beside the encoder: `sparse_linear.pt` weighs the tokens of a text,
`colbert_linear.pt` gives the vectors of tokens for late interaction. This module reads all but the weights.
"""

from pathlib import Path

from polyhead_model.checkpoint_files import read_object
from polyhead_model.task_heads import Dense, LexicalWeights, TokenVectors
from polyhead_model.tokenizer_files import TOKENIZER, token_id

LEXICAL, VECTORS = "sparse_linear.pt", "colbert_linear.pt"
"""The only pickles that are read, at export."""

_SPECIAL = {"cls_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
"""The tokens without weight, by default those of XLM-RoBERTa, whose ids are the first ones."""


def read_lexical_weights(folder: Path) -> LexicalWeights | None:
    """Return the head that weighs tokens, of a folder with config.json; None if there is none.

    Raises:
        CheckpointError: A file beside it is damaged.
    """
    if not (folder / LEXICAL).is_file():
        return None
    tokenizer, settings = folder / TOKENIZER, folder / "tokenizer_config.json"
    if not tokenizer.is_file():
        return LexicalWeights(skipped_ids=tuple(range(len(_SPECIAL))))
    named = read_object(settings) if settings.is_file() else {}
    contents = read_object(tokenizer)
    ids = (token_id(contents, _content(named.get(name) or token)) for name, token in _SPECIAL.items())
    return LexicalWeights(skipped_ids=tuple(number for number in ids if number is not None))


def read_token_vectors(folder: Path, width: int) -> TokenVectors | None:
    """Return the vectors of tokens, D = `width` wide, of a folder with config.json; None if there are none.

    The first token has none: it is `<s>`, whose vector is pooled.
    """
    if not (folder / VECTORS).is_file():
        return None
    return TokenVectors(dense=(Dense(width=width),), skips_first=True)


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else token
