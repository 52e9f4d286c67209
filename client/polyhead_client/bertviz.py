"""What BertViz takes, of the weights of one sequence.

Shape letters: T tokens, H heads, K head width.
"""

from importlib import import_module
from typing import Any

import numpy as np


def view_arguments(encoding: Any) -> dict[str, Any]:
    """Return the arguments of `bertviz.head_view` and `model_view`; see `Encoding.to_bertviz`.

    Raises:
        ValueError: It cannot draw this.
        ImportError: PyTorch is not installed.
    """
    tokens = _tokens(encoding)
    # The client itself does without PyTorch. Whoever has BertViz has it.
    torch = import_module("torch")
    weights = {layer: torch.tensor(array)[None] for layer, array in encoding.attention.items()}
    # BertViz picks layers by their positions, and draws no others.
    some = next(iter(weights.values()))
    return {
        "attention": [weights.get(layer, some) for layer in range(max(weights) + 1)],
        "tokens": tokens,
        "sentence_b_start": encoding.second_text_start,
        "include_layers": list(weights),
    }


def neuron_view_arguments(encoding: Any) -> dict[str, Any]:
    """Return the arguments of `bertviz.neuron_view.show`, likewise.

    It takes no arrays: it calls a model and a tokenizer, of kinds that it knows. So it gets a model and a
    tokenizer that say what was recorded.

    Raises:
        ValueError: It cannot draw this.
        ImportError: PyTorch is not installed.
    """
    tokens = _tokens(encoding)
    if encoding.query_vectors is None or encoding.key_vectors is None:
        raise ValueError(
            "BertViz's neuron view needs the vectors of queries and keys, which a server does not send: "
            "record them with polyhead_view.attention_of"
        )
    if len(tokens) < 2:
        raise ValueError(f"BertViz's neuron view needs two tokens or more, was {len(tokens)}")
    torch = import_module("torch")
    layers = [
        # It divides the product by √K, as ours are divided already.
        {
            "attn": torch.tensor(weights)[None],
            "queries": torch.tensor(queries * np.sqrt(queries.shape[-1]))[None],
            "keys": torch.tensor(keys)[None],
        }
        for weights, queries, keys in zip(
            encoding.attention.values(),
            encoding.query_vectors.values(),
            encoding.key_vectors.values(),
            strict=True,
        )
    ]
    # "gpt2" stands for causal attention, and "bert" for any other.
    visible = encoding.visible or {}
    causal = all(not np.triu(each, 1).any() for each in visible.values()) and bool(visible)
    return {
        "model": _Recorded(layers),
        "model_type": "gpt2" if causal else "bert",
        "tokenizer": _Tokens(list(map(_Token, tokens)), parted=not causal),
        "sentence_a": " ".join(tokens),
    }


class _Recorded:
    """A model that returns what was recorded."""

    def __init__(self, layers: list[dict[str, Any]]) -> None:
        self._layers = layers

    def eval(self) -> None:
        """Do nothing."""

    def __call__(self, _ids: Any) -> tuple[list[dict[str, Any]]]:
        return (self._layers,)


class _Token(str):
    """A token that is drawn as it is, whatever it contains."""

    __slots__ = ()

    def replace(self, *_: Any) -> "_Token":
        """Return the token itself: of a first and a last one, BertViz makes [CLS] and [SEP] everywhere."""
        return self


class _Tokens:
    """A tokenizer that returns the tokens that were recorded."""

    def __init__(self, tokens: list[_Token], *, parted: bool) -> None:
        self.cls_token, self.sep_token = tokens[0], tokens[-1]
        self._tokens = tokens[1:-1] if parted else tokens

    def tokenize(self, _text: str) -> list[_Token]:
        """Return the tokens; without the first and the last one where BertViz adds these."""
        return self._tokens

    def convert_tokens_to_ids(self, tokens: list[_Token]) -> list[int]:
        """Return any ids."""
        return [0] * len(tokens)


def _tokens(encoding: Any) -> list[str]:
    """Return the tokens, of what can be drawn."""
    if not encoding.attention or encoding.queries is not None:
        raise ValueError("BertViz draws attention of all queries: encode with attention, without queries")
    if not isinstance(encoding.lengths, int):
        raise ValueError(
            "BertViz draws one sequence, this is a batch: encode one text, or choose one with sequence(0)"
        )
    if encoding.tokens is None:
        raise ValueError("BertViz needs tokens: encode a text, or with tokens=True")
    return list(map(str, encoding.tokens))
