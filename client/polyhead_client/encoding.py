"""The result of `encode`.

Shape letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, L layers, C labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from polyhead_client.frozen import Picklable
from polyhead_client.insight import HeadScores, TopKeys
from polyhead_client.padding import Arrays


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings of one call, in nanoseconds; None if the server does not report them.

    For a batch that was sent as several requests, the server's timings are sums. Requests run concurrently,
    so a sum may exceed `total_ns`.
    """

    total_ns: int
    """From sending the request to reading the reply, measured by the client."""
    parse_ns: int | None = None
    tokenise_ns: int | None = None
    """Texts only."""
    queue_ns: int | None = None
    compute_ns: int | None = None
    serialise_ns: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding(Picklable):
    """The result of an encoder, in the form of its inputs.

    | given                           | output       | attention[layer]  | pooled | tokens        | lengths |
    |---------------------------------|--------------|-------------------|--------|---------------|---------|
    | one sequence: str, [T, D], [T]  | [T, D]       | [H, T, T]         | [D]    | T strings     | int     |
    | a list: texts, [T_i, D], [T_i]  | B × [T_i, D] | B × [H, T_i, T_i] | [B, D] | B × T_i       | [B]     |
    | an array: [B, T, D], [B, T]     | [B, T, D]    | [B, H, T, T]      | [B, D] | B × T         | [B]     |

    The shapes of other outputs, below, are those for one sequence, and vary likewise: for a list, what has an
    axis T is a list, and all else an array [B, ...].

    Arrays are read-only views of the reply, and each of them keeps the whole reply in memory; `array.copy()`
    and `torch.tensor(array)` give writable copies. Only outputs that come in several messages, and weights
    that come as FP16 or UINT8 or are norm-weighted, have arrays of their own. Outputs that were not requested
    are None.
    """

    model: str
    """The served model that answered, such as `minilm` or `minilm.attention`."""
    version: str
    output: Arrays
    pooled: NDArray[Any] | None
    attention: Mapping[int, Arrays] | None
    """Layer → weights, always float32 (FP16 and UINT8 are converted back). The axes are [head, query, key];
    only the selected heads and queries are there, in the order of selection. Where layers attend to a memory
    alone, keys are its tokens: [H, T, S]."""
    heads: tuple[int, ...] | None
    """The numbers of the heads in all outputs that have an axis of heads, in order."""
    queries: tuple[int, ...] | None
    """The positions of the queries in `attention`; None means all T."""
    tokens: list[str] | list[list[str]] | None
    """"" is padding."""
    lengths: int | NDArray[Any]
    timings: Timings
    logits: NDArray[Any] | None = None
    """A classifier's number for each of `labels`, [C]; a reranker has one."""
    labels: tuple[str, ...] | None = None
    """The names of the `logits`, in order."""
    cross_attention: Mapping[int, Arrays] | None = None
    """Layer → the weights to the memory, [head, query, key of the memory], of decoder blocks, whose
    `attention` is to their own sequence."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """The numbers of each layer's heads that pruning left; None if no head was pruned. In outputs, heads that
    are gone have zeros, scores NaN and strongest keys -1."""
    value_norms: Mapping[int, Arrays] | None = None
    """Layer → the norm of each head's value at each token behind the output projection, [H, T]; see
    `norm_weighted`."""
    scores: HeadScores | None = None
    rollout: Arrays | None = None
    """Attention rollout through all layers (Abnar & Zuidema 2020, arXiv 2005.00928), [T, T]."""
    mixed: Arrays | None = None
    """The sum of all attention weights, each times the weight of its head in `head_mix`, [T, T]."""
    top: TopKeys | None = None
    thumbnails: NDArray[Any] | None = None
    """A small picture of each head, uint8 [L, H, 32, 32], whose largest value is 255. A shorter sequence
    leaves the rest 0; the pixels of a longer one are means over blocks of it."""

    def is_pruned(self, layer: int, head: int) -> bool:
        """Return whether the encoder has lost a head to pruning."""
        return self.kept_heads is not None and head not in self.kept_heads[layer]

    @property
    def rows(self) -> Mapping[int, Arrays] | None:
        """Layer → the rows of attention of the chosen `queries`; None if none were chosen."""
        return None if self.queries is None else self.attention

    def to_bertviz(self) -> dict[str, Any]:
        """Return the arguments of `bertviz.head_view` and `bertviz.model_view`.

        ```
        encoding = client.encode("The cat sat on the mat.", attention=[0, 5])
        bertviz.head_view(**encoding.to_bertviz())
        ```

        BertViz draws all weights that it gets, and long texts stall a browser, so request few layers. It
        numbers heads from 0 on, whichever were selected.

        Raises:
            ValueError: This is a batch, or lacks tokens, attention, or queries of it.
            ImportError: PyTorch is not installed, which BertViz needs.
        """
        tokens, attention = self.tokens, self.attention
        if not attention or self.queries is not None:
            raise ValueError("BertViz draws attention of all queries: encode with attention, without queries")
        if not isinstance(self.lengths, int):
            raise ValueError("BertViz draws one sequence, this is a batch: encode one text")
        if tokens is None:
            raise ValueError("BertViz needs tokens: encode a text, or with tokens=True")
        # The client itself does without PyTorch. Whoever has BertViz has it.
        torch = import_module("torch")
        weights = {layer: torch.tensor(array)[None] for layer, array in attention.items()}
        # BertViz picks layers by their positions, and draws no others.
        some = next(iter(weights.values()))
        return {
            "attention": [weights.get(layer, some) for layer in range(max(weights) + 1)],
            "tokens": tokens,
            "include_layers": list(weights),
        }
