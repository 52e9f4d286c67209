"""Read `manifest.json`, in which the export describes one version of a family."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from polyhead_proto.datatypes import DTYPES
from polyhead_proto.outputs.logits import ScoreActivation
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import RepositoryError, listed, quoted
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.files import read_regular

FORMAT = 2
"""The format of manifests that this server reads."""

FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""A family's name, at most as long as a folder's. No dots: a dot separates the graph's name."""

_MAX_BYTES = 4 * 2**20


FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=255)]
"""A file directly inside the version's folder."""

GraphName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
LETTER = re.compile("[A-Z][A-Za-z0-9]{0,15}")
Letter = Annotated[str, StringConstraints(pattern=f"^{LETTER.pattern}$")]
"""An axis: B joins requests; letters with a size in `Manifest.sizes` are fixed; all others are padded."""

PADDED, PACKED = ("B", "T", "D"), ("N", "D")
"""What layers compute: all of a batch, padding included, or the N tokens that exist. N is no input's axis."""

IndexNumber = Annotated[int, Field(ge=0)]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
Size = Annotated[int, Field(ge=1)]
Dimensions = Annotated[str, StringConstraints(pattern="^[1-9][0-9]{0,8}$")]
Numbers32 = tuple[Annotated[float, Field(ge=-1e38, le=1e38, allow_inf_nan=False)], ...]
"""Finite in FP32, and so are their differences."""


class _Model(BaseModel):
    # A later export may add fields within one format.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


def _describable(tensor: TensorSpec) -> TensorSpec:
    """Check what types do not say of a tensor."""
    indices = [*(tensor.layers or ()), *(tensor.heads or ()), tensor.layer or 0]
    if not 1 <= len(tensor.name) <= 200 or len(tensor.role) > 64:
        raise ValueError("its name must have 1 to 200 characters, and its role at most 64")
    if tensor.datatype not in DTYPES:
        raise ValueError(f"datatype must be one of {', '.join(DTYPES)}, was {quoted(tensor.datatype)}")
    if not 1 <= len(tensor.axes) <= 8 or not all(map(LETTER.fullmatch, _letters(tensor))):
        raise ValueError(f"axes, and letters of fill and below, must match {LETTER.pattern}; 1 to 8 axes")
    if min(indices, default=0) < 0 or (isinstance(tensor.below, int) and tensor.below < 1):
        raise ValueError("layers and heads must be numbers from 0 on, and below at least 1")
    known = get_args(ScoreActivation)
    if not {tensor.scores, tensor.activation} <= {None, *known}:
        raise ValueError(f"scores and activation must be one of {', '.join(known)}")
    return tensor


Tensor = Annotated[TensorSpec, AfterValidator(_describable)]


def _letters(tensor: TensorSpec) -> set[str]:
    """Return all letters that a tensor names."""
    return {*tensor.axes, *(letter for letter in (tensor.fill, tensor.below) if isinstance(letter, str))}


def _names_problems(tensor: TensorSpec, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield what is wrong with the names of indices of a tensor."""
    along: Iterable[tuple[str, Sequence[object] | None, int | None]] = (
        ("layers", tensor.layers, tensor.layer_axis),
        ("heads", tensor.heads, tensor.head_axis),
        ("labels", tensor.labels, -1),
    )
    for what, names, axis in along:
        size = None if axis is None else sizes.get(tensor.axes[axis])
        if names is not None and (len(names) != size or len(set(names)) < len(names)):
            yield f"{tensor.name}: {what} must be one for each index of their axis, and different"


class Graph(_Model):
    """One ONNX graph of the version."""

    file: FileName
    inputs: Annotated[list[Tensor], Field(min_length=1)]
    outputs: Annotated[list[Tensor], Field(min_length=1)]
    activations: tuple[Letter, ...] | None = None
    """The axes of what layers compute: `PADDED`, as if there is none, or `PACKED`."""
    maps: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """How many [T, T] values a run holds at once for each sequence, besides its outputs; None: 2 a head."""
    map_axes: Annotated[tuple[tuple[Letter, Letter], ...], Field(min_length=1)] | None = None
    """Instead of [T, T], the axes of those values: the largest of these, as they are not held together."""

    def problems(self, sizes: Mapping[str, int]) -> Iterator[str]:
        """Yield what keeps a server from batching, padding and trimming it."""
        for what, tensors in (("input", self.inputs), ("output", self.outputs)):
            names = [tensor.name for tensor in tensors]
            if len(set(names)) < len(names):
                yield f"each {what} must have a name of its own, were {listed(names)}"
            for tensor in tensors:
                if tensor.axes[0] != "B" or "B" in tensor.axes[1:]:
                    yield f"{tensor.name} must have B first and nowhere else, was {', '.join(tensor.axes)}"
        if not any(tensor.fill is None and len(tensor.axes) > 1 for tensor in self.inputs):
            yield "an input with an axis beside B must be needed"
        given = {letter for tensor in self.inputs for letter in tensor.axes} | set(sizes)
        yield from self._activations_problems(given)
        every = (*self.inputs, *self.outputs)
        used = [(each.name, _letters(each)) for each in every]
        used.append(("map_axes", {letter for axes in self.map_axes or () for letter in axes}))
        used.append(("activations", {*(self.activations or ())} - {"N"}))
        for name, letters in used:
            if missing := letters - given:
                yield f"{name}: axis {listed(sorted(missing))} must be that of an input, or have a size"
        for tensor in every:
            yield from _names_problems(tensor, sizes)

    def _activations_problems(self, given: Collection[str]) -> Iterator[str]:
        if self.activations not in (None, PADDED, PACKED):
            must = " or ".join(", ".join(axes) for axes in (PADDED, PACKED))
            yield f"activations must be {must}, were {listed(self.activations)}"
        if self.activations == PACKED:
            if "N" in given:
                yield "N must be no axis of an input, and have no size: it is the sum of all lengths"
            if not any(isinstance(tensor.fill, str) and tensor.axes == ("B",) for tensor in self.inputs):
                yield "activations N, D need an input with the lengths of sequences"


class ManifestEncoder(_Model):
    """The encoder's configuration, as far as metadata shows it."""

    d_model: Size
    heads: Size
    layers: Size
    head_width: Size | None = None
    kv_heads: Size | None = None
    """The heads of keys and values; None: as many as heads."""
    kept_heads: tuple[tuple[IndexNumber, ...], ...] | None = None
    """The heads of each layer that pruning left; None: all."""
    causal: bool = False
    local_window: Size | None = None
    """In local layers, a token sees only those at most half of it away; None: no layer is local."""
    global_every: Size | None = None
    """n: every n-th layer is not local; None: all are, where there is a window."""
    first_global: IndexNumber = 0
    """The first of those layers."""
    vocabulary: Size | None = None
    pooling: str | None = None
    normalise: bool = False
    """Whether pooled vectors have length 1, before they are cut."""
    truncate_dim: Size | None = None
    """How many of their first dimensions are left; None: all."""
    matryoshka: tuple[Size, ...] | None = None
    """The numbers of dimensions to which pooled vectors were trained to be cut; empty: any; None: none."""
    dense: tuple[dict[str, Any], ...] = ()

    @property
    def head_size(self) -> int:
        """K, the width of one head."""
        return self.head_width or self.d_model // self.heads


class ManifestForm(_Model):
    """What the name of a prompt does to the token ids of a text."""

    prefix_id: IndexNumber | None = None
    """The token id that is put after the first token."""
    max_tokens: Size | None = None
    """The length at which its texts are rejected or cut, if it is lower than that of others."""
    fill_id: IndexNumber | None = None
    """The token id that shorter ones are filled up with."""
    fill_to: IndexNumber = 0
    """The number of tokens up to which they are."""


class ManifestPairTemplate(_Model):
    """What makes one text of the two of a pair; what follows them is the tokenizer's."""

    before: str
    """What precedes the first, unless a prompt does."""
    between: str


class ManifestTokenizer(_Model):
    """The tokeniser, the length at which text is rejected or cut, and what may precede each text."""

    file: FileName
    max_tokens: Size | None = None
    prompt: str = ""
    """What precedes texts of requests that name no prompt."""
    prompts: dict[str, str] = {}
    """What requests may name."""
    forms: dict[str, ManifestForm] = {}
    """What else some of these names do."""
    form: ManifestForm | None = None
    """What else is done to texts of requests that name none."""
    types: bool = True
    """Whether its token types count; otherwise they are all 0."""
    pairs: bool = False
    """Whether it takes pairs of texts."""
    pair_template: ManifestPairTemplate | None = None
    """What makes one text of a pair; None if the tokenizer joins them, where it takes pairs."""

    @property
    def takes_pairs(self) -> bool:
        """Whether pairs of texts are served."""
        return self.pairs or self.pair_template is not None


class FileRecord(_Model):
    """The size and hash that a file must have."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ManifestDrift(_Model):
    """How far the family's precision is from fp32, as the export measured it."""

    inputs: str
    cosines: dict[GraphName, dict[str, dict[str, float]]] = {}
    """By graph and output: `least` and `mean`."""
    graphs: dict[GraphName, dict[str, float]] = {}
    """By graph and output: the largest deviation."""

    def of(self, graph: GraphName) -> dict[str, Any]:
        """Return that of one graph."""
        cosines, deviations = self.cosines.get(graph, {}), self.graphs.get(graph, {})
        return {"inputs": self.inputs, "cosines": cosines, "deviations": deviations}


class Manifest(_Model):
    """One version of a family."""

    format: Literal[2]
    name: str
    version: Annotated[int, Field(ge=1)]
    encoder: ManifestEncoder
    precision: Precision
    sizes: dict[Letter, Size] = {}
    """The sizes of fixed axes."""
    graphs: Annotated[dict[GraphName, Graph], Field(min_length=1)]
    tokenizer: ManifestTokenizer | None = None
    limits: dict[str, Any] | None = None
    """Read only to reject what is not an object, in which `max_tokens` would seem to be missing."""
    max_tokens: Size | None = Field(None, validation_alias=AliasPath("limits", "max_tokens"))
    """The largest T that the graphs themselves can take."""
    files: dict[FileName, FileRecord]
    parameters: int | None = Field(None, validation_alias=AliasPath("numbers", "parameters"))
    drift: ManifestDrift | None = Field(None, validation_alias=AliasPath("parity", "drift"))
    ranges: dict[Dimensions, tuple[Numbers32, Numbers32]] = Field(
        {}, validation_alias=AliasPath("calibration", "ranges")
    )
    """Of pooled vectors, by number of dimensions: the least and the largest value of each, as measured."""
    digest: str = ""
    """SHA-256 of the manifest's own bytes and so, by the hashes in it, of the whole version."""
    skipped: dict[str, str] = {}
    """The graphs that are not served because this server cannot describe them, and why."""

    @model_validator(mode="after")
    def _check_references(self) -> "Manifest":
        needed = [graph.file for graph in self.graphs.values()]
        needed += [self.tokenizer.file] if self.tokenizer else []
        for name in needed:
            if name not in self.files:
                raise ValueError(f"files must list {name}")
        if "B" in self.sizes:
            raise ValueError("B must have no size: requests are joined on it")
        for dimensions, both in self.ranges.items():
            if any(len(numbers) != int(dimensions) for numbers in both):
                raise ValueError(f"ranges of {dimensions} must be as many numbers, twice")
        return self

    @cached_property
    def ranges_of_vectors(self) -> Mapping[int, NDArray[np.float32]]:
        """By number of dimensions, [2, d]: the least and the largest value of each."""
        return {int(count): np.array(both, np.float32) for count, both in self.ranges.items()}

    @property
    def text_max_tokens(self) -> int | None:
        """The most tokens of a text: the tokeniser's limit or the graph's, whichever is lower."""
        if self.tokenizer is None:
            return None
        bounds = [bound for bound in (self.tokenizer.max_tokens, self.max_tokens) if bound is not None]
        return min(bounds, default=None)

    def served_name(self, graph: GraphName) -> str:
        """Return a model's name on the wire: the family's for the fast graph, `NAME.GRAPH` for others."""
        return self.name if graph == "fast" else f"{self.name}.{graph}"


def read_manifest(folder: Path | RemoteFolder, *, family: str, version: int) -> Manifest:
    """Read and check a version's manifest.

    Args:
        folder: The version's folder.
        family: The name of the folder above it, which the manifest must repeat.
        version: The folder's own name, likewise.

    Raises:
        RepositoryError: Missing, not valid, of a newer format, or about something else.
    """
    try:
        if isinstance(folder, RemoteFolder):
            content = folder.read("manifest.json", limit=_MAX_BYTES)
        else:
            content = read_regular(folder / "manifest.json", limit=_MAX_BYTES)
    except OSError as error:
        raise RepositoryError(f"manifest.json cannot be read: {error.strerror}") from error
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RepositoryError("manifest.json is not valid JSON") from error
    if not isinstance(fields, dict):
        raise RepositoryError("manifest.json is not valid: it must be an object")
    written = fields.get("format")
    if type(written) is int and written != FORMAT:
        what = "update polyhead" if written > FORMAT else "export it again"
        raise RepositoryError(
            f"manifest.json has format {written}; this server reads format {FORMAT}: {what}"
        )
    try:
        fields["skipped"] = _remove_unserved(fields)
        fields["digest"] = hashlib.sha256(content).hexdigest()
        manifest = Manifest.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise RepositoryError(f"manifest.json is not valid: {_first(error)}") from error
    for field, was, must in (("name", manifest.name, family), ("version", manifest.version, version)):
        if was != must:
            raise RepositoryError(f"manifest.json's {field} must be its folder's ({must}), was {was}")
    return manifest


def _remove_unserved(fields: dict[str, Any]) -> dict[str, str]:
    """Remove the graphs that this server cannot describe, unless it can describe none; return why."""
    graphs, sizes = fields.get("graphs"), fields.get("sizes", {})
    if not isinstance(graphs, dict) or not isinstance(sizes, dict):
        return {}  # the validation of the whole reports it
    problems: dict[str, str] = {}
    for name, graph in graphs.items():
        try:
            problem = next(Graph.model_validate_json(json.dumps(graph)).problems(sizes), None)
        except ValidationError as error:
            problem = _first(error)
        if problem is not None:
            problems[name] = problem
    if problems and len(problems) == len(graphs):
        name, problem = next(iter(problems.items()))
        raise RepositoryError(f"manifest.json is not valid: graphs.{name}: {problem}")
    for name in problems:
        del graphs[name]
    return problems


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    return f"{where}: {first['msg']}"
