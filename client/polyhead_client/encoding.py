"""The result of `encode`.

Shape letters: B batch, T tokens, S tokens of the memory or the query, D d_model, H heads, L layers, C labels,
V width of token vectors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyhead_client.archive import read_format, write_npz
from polyhead_client.batch import Arrays
from polyhead_client.bertviz import neuron_view_arguments, view_arguments
from polyhead_client.edges import second_text_start
from polyhead_client.frozen import Picklable
from polyhead_client.layers import NO_ATTENTION, NO_CROSS_ATTENTION, FetchedLayers
from polyhead_client.notebook import html_of, strip
from polyhead_client.tables import MAPS, dataset_of, frame_of
from polyhead_proto.labelled import numbers, shape_of
from polyhead_proto.outputs.head_scores import HEAD_SCORES, WEIGHTED_SCORES, HeadScores
from polyhead_proto.outputs.sparse import SparseVectors
from polyhead_proto.outputs.top_keys import TopKeys

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_FORMAT = 1
"""Of saved encodings; incremented when a reader of the old format would misread the new one."""

OF_SEVERAL_OUTPUTS: Mapping[str, type[Any]] = MappingProxyType({"top": TopKeys, "sparse": SparseVectors})
"""The fields that have arrays of several outputs, and what they are."""

_OF_ALL = {"model", "version", "heads", "queries", "labels", "kept_heads", "timings", "weighted"}
"""The fields that all sequences of a batch share."""


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
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
    are None, but for `attention` and `cross_attention`, which are empty.
    """

    model: str
    """The served model that answered, such as `minilm` or `minilm.attention`."""
    version: str
    output: Arrays
    pooled: NDArray[Any] | None
    """Of as many numbers as `dimensions` says, and integers with a `precision`."""
    attention: Mapping[int, Arrays] = NO_ATTENTION
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
    logits: Arrays | None = None
    """A classifier's number for each of `labels`, [C]; a reranker has one, a classifier of tokens [T, C]."""
    labels: tuple[str, ...] | None = None
    """The names of the `logits`, in order."""
    spans: Arrays | None = None
    """Where each token is in its text, int32 [T, 3]: its start and end in characters, and the number of its
    word (see `Client.tag`). -1 for tokens that are not of the text: special ones, those of a prompt."""
    cross_attention: Mapping[int, Arrays] = NO_CROSS_ATTENTION
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
    contacts: Arrays | None = None
    """The probability that two residues of a protein touch, [T, T]; zero for its first token and its end."""
    top: TopKeys | None = None
    thumbnails: NDArray[Any] | None = None
    """A small picture of each head, uint8 [L, H, 32, 32], whose largest value is 255. A shorter sequence
    leaves the rest 0; the pixels of a longer one are means over blocks of it."""
    sparse: SparseVectors | None = None
    """The words of the vocabulary that say most of a text."""
    token_vectors: Arrays | None = None
    """The vectors of tokens that late interaction compares, [T, V], of length 1."""
    max_similarities: NDArray[Any] | None = None
    """The largest cosine of each token of the query with one of the document, [S]: their sum is MaxSim."""
    similarities: Arrays | None = None
    """The cosines of the query's tokens with those of the document, [S, T]; -1 for tokens that are
    not compared."""
    stream: Arrays | None = None
    """What was read of the residual stream, [R, D], in the order of `read`, edits included; for a batch whose
    sequences were read at different numbers of places a list."""
    head_outputs: Arrays | None = None
    """What was read of what heads give before the output projection, [R, K], likewise."""
    weighted: bool = False
    """Whether `attention` and `cross_attention` are norm-weighted."""
    visible: Mapping[int, Arrays] | None = None
    """Layer → whether a query may see a key, bool as `attention`: the family's own mask (causal, windows) and
    the `mask` of the request; without `memory_mask`. None means that all is visible, but for padding."""
    query_vectors: Mapping[int, Arrays] | None = None
    """Layer → the queries of each head, [H, T, K], times what scores are multiplied by (1/√K): the product
    with `key_vectors` is the score. Only of what `polyhead_view.attention_of` recorded."""
    key_vectors: Mapping[int, Arrays] | None = None
    """Layer → the keys of each head, [H, T, K], likewise."""

    @property
    def source(self) -> str:
        """Who computed it: the served model and its version, or the module that was recorded."""
        return f"{self.model}, version {self.version}" if self.version else self.model

    def is_pruned(self, layer: int, head: int) -> bool:
        """Return whether the encoder has lost a head to pruning."""
        return self.kept_heads is not None and head not in self.kept_heads[layer]

    @property
    def rows(self) -> Mapping[int, Arrays] | None:
        """Layer → the rows of attention of the chosen `queries`; None if none were chosen."""
        return None if self.queries is None else self.attention

    @property
    def second_text_start(self) -> int | None:
        """The position of the first token of the second text, of a pair of texts.

        With `spans` it is certain; without, special tokens between the texts tell. None for one text, for a
        pair that nothing parts, and for a batch.
        """
        if not isinstance(self.lengths, int):
            return None
        tokens: Any = self.tokens
        return second_text_start(tokens, self.spans)

    def sequence(self, index: int) -> "Encoding":
        """Return the result of one sequence of a batch.

        Raises:
            ValueError: This is of one sequence already.
            IndexError: There is no such sequence.
        """
        if isinstance(self.lengths, int):
            raise ValueError("sequence() takes a batch, and this is one sequence")
        if not -len(self.lengths) <= index < len(self.lengths):
            raise IndexError(f"index must be less than B ({len(self.lengths)}), was {index}")
        parts = {
            each.name: _item(getattr(self, each.name), index)
            for each in fields(self)
            if each.name not in _OF_ALL
        }
        return replace(self, **parts | {"lengths": int(self.lengths[index])})

    def save(self, path: Path | str | BinaryIO) -> None:
        """Write all of it as an .npz file, which `load` reads, and NumPy does.

        Arrays have the names of the fields, with the layer and the number of the sequence in a list:
        `attention.5`, or `attention.5.0`; scores are `scores.NAME` and `weighted_scores.NAME`.

        Raises:
            ValueError: The name of the file does not end with .npz.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, scores in self._scores:
            values[name] = scores and {each: scores[each] for each in scores.names}
        values |= {"timings": asdict(self.timings), "score_layers": self.scores and self.scores.layers}
        for name in OF_SEVERAL_OUTPUTS:
            if (value := values[name]) is not None:
                values[name] = {each.name: getattr(value, each.name) for each in fields(value)}
        write_npz(path, {"format": _FORMAT} | values)

    @classmethod
    def load(cls, path: Path | str) -> "Encoding":
        """Read what `save` wrote.

        Raises:
            ValueError: It is no such file, or of a later polyhead.
            OSError: It cannot be read.
        """
        values = read_format(path, "an encoding", key="format", number=_FORMAT)
        layers, weighted, scores = (
            values.pop(name) for name in ("score_layers", "weighted_scores", "scores")
        )
        for name in ("heads", "queries", "labels", "kept_heads"):
            values[name] = _tuples(values[name])
        for name, kind in OF_SEVERAL_OUTPUTS.items():
            if (parts := values.get(name)) is not None:  # releases before it did not write it
                values[name] = kind(**parts)
        for name in ("attention", "cross_attention"):  # None in files of releases before
            values[name] = FetchedLayers(values.get(name) or {}, name)
        found = _scores_of(scores, layers, values["heads"], _scores_of(weighted, layers, values["heads"]))
        return cls(**values | {"timings": Timings(**values["timings"]), "scores": found})

    def to_frame(self) -> "pd.DataFrame":
        """Return the attention as a pandas DataFrame: a row for each weight.

        It is indexed by layer, head, query and key, and its columns are query_token, key_token and weight.
        For a batch, the position of the sequence is the first level of the index. A row takes about 26 bytes.

        Raises:
            ValueError: This has no attention.
            ImportError: pandas is not installed.
        """
        if not self.attention:
            raise ValueError("to_frame needs attention: encode with attention; scores.to_frame() has scores")
        return frame_of(self)

    def to_xarray(self) -> "xr.Dataset":
        """Return what this has of attention and scores as an xarray Dataset.

        Of one sequence, variables are `attention` (layer, head, query, key), `cross_attention` (layer, head,
        query, memory), `rollout`, `mixed`, `contacts` (query, key), `scores` and `weighted_scores` (layer,
        head, score); query_token and key_token are labels beside the positions of queries and keys.

        A batch is not padded: the edges of all sequences, who attends to whom, stand one after the other.
        `attention` is (layer, head, edge), and edge_sequence, query, key, query_token and key_token say what
        an edge is. To the memory, (layer, head, memory_edge) with memory_edge_sequence, memory_query, ….
        Scores have the dimension sequence before the others, and `lengths` (sequence) counts tokens.

        Raises:
            ImportError: xarray is not installed.
        """
        return dataset_of(self, self._scores)

    def show(self, *, layer: int | None = None, head: int | None = None) -> Any:
        """Return all heads of one sequence for a notebook: the explorer's page, which works without a server.

        Its method `save(path)` writes the page as one HTML file.

        Args:
            layer: The layer of the head to open; None means the first.
            head: The number of the head to open; None means the first.

        Raises:
            ValueError: This is a batch, has neither attention nor rollout, or no such head.
            ImportError: The extra `view` is not installed.
        """
        self._of_one_sequence("show")
        try:
            saved = import_module("polyhead_view.explorer.saved")
        except ImportError as error:
            raise ImportError("show needs the view extra: pip install 'polyhead[view]'") from error
        return saved.show(self, layer=layer, head=head)

    def __repr__(self) -> str:
        return f"<Encoding of {self._summary}>"

    def _repr_html_(self) -> str:
        """Return it for a notebook: the tokens, and the weights of the first head that was asked for."""
        if not isinstance(self.lengths, int):
            first: str = self.sequence(0)._repr_html_() if len(self.lengths) else ""
            return f"{strip([repr(self)])}{first}"
        return html_of(self, self._maps)

    @property
    def _summary(self) -> str:
        """What it holds, in one line."""
        size = f"{self.lengths} tokens"
        if not isinstance(self.lengths, int):
            size = f"{len(self.lengths)} sequences of {numbers(self.lengths.tolist())} tokens"
        names = [field.name for field in fields(self) if field.name not in _OF_ALL | {"tokens", "lengths"}]
        held = {name: _array(getattr(self, name)) for name in names}
        parts = [
            f"{name} {shape_of(value)}"
            for name, value in held.items()
            if value is not None and not (isinstance(value, FetchedLayers) and not value)
        ]
        return f"{self.source}: {size}; {', '.join(parts)}"

    @property
    def _maps(self) -> Iterator[tuple[str, Any]]:
        """The maps [T, T] of one sequence, by the names of their fields."""
        every = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name in MAPS)
        return ((name, values) for name, values in every if values is not None)

    @property
    def _scores(self) -> list[tuple[str, HeadScores | None]]:
        """The scores of weights, and those of norm-weighted ones, by name."""
        weighted = self.scores and self.scores.weighted
        return [(HEAD_SCORES.field, self.scores), (WEIGHTED_SCORES.role, weighted)]

    def _of_one_sequence(self, method: str) -> "Encoding":
        if not isinstance(self.lengths, int):
            raise ValueError(
                f"{method} takes one sequence, this is a batch: choose one, sequence(0).{method}()"
            )
        return self

    def to_bertviz(self, *, neurons: bool = False) -> dict[str, Any]:
        """Return the arguments of `bertviz.head_view` and `bertviz.model_view`.

        BertViz draws all weights that it gets, and long texts stall a browser, so request few layers. It
        numbers heads from 0 on, whichever were selected. Of a pair that special tokens part, it gets the
        second text's first token, and can draw attention from one text to the other alone.

        Args:
            neurons: Whether to return those of `bertviz.neuron_view.show` instead, for what `attention_of`
                recorded. It draws layers 0, 1, 2, …

        Raises:
            ValueError: This is a batch, or lacks tokens, attention, queries of it, or their vectors.
            ImportError: PyTorch is not installed, which BertViz needs.
        """
        return neuron_view_arguments(self) if neurons else view_arguments(self)


def _item(value: Any, index: int) -> Any:
    """Return what a field of a batch has of one sequence."""
    if isinstance(value, FetchedLayers):
        return value.converted(lambda arrays: arrays[index])
    if isinstance(value, Mapping):
        return MappingProxyType({layer: _item(part, index) for layer, part in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        batched = {
            name: _item(getattr(value, name), index)
            for name in ("values", "indices", "keys", "weights", "weighted")
            if hasattr(value, name)
        }
        return replace(value, **batched)
    return None if value is None else value[index]


def _array(value: Any) -> Any:
    """Return the array that tells how much a field holds."""
    return getattr(value, fields(value)[0].name) if is_dataclass(value) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _scores_of(
    by_name: Mapping[str, NDArray[Any]] | None,
    layers: list[int],
    heads: tuple[int, ...],
    weighted: HeadScores | None = None,
) -> HeadScores | None:
    if by_name is None:
        return None
    values = np.stack(list(by_name.values()), axis=-1)
    return HeadScores(
        values=values, names=tuple(by_name), layers=tuple(layers), heads=heads, weighted=weighted
    )
