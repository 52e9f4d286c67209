"""`manifest.json`: what one version of a family is, as the export wrote it."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from polyhead_server.errors import RepositoryError, listed
from polyhead_server.repository.files import read_regular

FORMAT = 2
"""The format of a manifest that this server reads."""

FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""A family's name, at most as long as a folder's. No dots: a dot separates the graph's name."""

_LARGEST_MANIFEST = 4 * 2**20

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=255)]
"""A file directly inside the version's folder."""

Datatype = Literal["BOOL", "INT32", "INT64", "FP16", "FP32"]
GraphName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
Letter = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{0,15}$")]
"""An axis: B joins requests; letters with a size in `Manifest.sizes` are fixed; all others are padded."""
Precision = Literal["fp32", "fp16", "bf16"]
Size = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    # A later server may add fields within one format, so those unknown here are passed over.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Tensor(_Model):
    """One input or output of a graph."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    datatype: Datatype
    axes: Annotated[list[Letter], Field(min_length=1, max_length=8)]
    role: Annotated[str, StringConstraints(max_length=64)] | None = None
    """What it is for: `tokens`, `types`, `lengths`, `mask`; `attention`, `pooled`."""
    fill: Letter | bool | int | float | None = None
    """What an input holds where a request leaves it out: a value, or an axis' size. None: it is needed."""
    below: Size | None = None
    """An input's integers must be from 0 to one less than this."""
    layer: Annotated[int, Field(ge=0)] | None = None
    """The encoder's layer whose weights an output of role `attention` holds."""


class Graph(_Model):
    """One ONNX graph of the version."""

    file: FileName
    inputs: Annotated[list[Tensor], Field(min_length=1)]
    outputs: Annotated[list[Tensor], Field(min_length=1)]

    def problem(self, sizes: Mapping[str, int]) -> str | None:
        """What keeps a server from batching it, padding it and cutting its outputs; None where it can.

        Args:
            sizes: The fixed axes.
        """
        for what, tensors in (("input", self.inputs), ("output", self.outputs)):
            names = [tensor.name for tensor in tensors]
            if len(set(names)) < len(names):
                return f"each {what} must have a name of its own, were {listed(names)}"
            for tensor in tensors:
                if tensor.axes[0] != "B" or "B" in tensor.axes[1:]:
                    return f"{tensor.name} must have B first and nowhere else, was {', '.join(tensor.axes)}"
        if not any(tensor.fill is None and len(tensor.axes) > 1 for tensor in self.inputs):
            return "an input with an axis beside B must be needed"
        given = {letter for tensor in self.inputs for letter in tensor.axes} | set(sizes)
        for tensor in (*self.inputs, *self.outputs):
            letters = {*tensor.axes, *([tensor.fill] if isinstance(tensor.fill, str) else [])}
            if missing := letters - given:
                return (
                    f"{tensor.name}: axis {listed(sorted(missing))} must be that of an input, or have a size"
                )
        return None


class Encoder(_Model):
    """The encoder's configuration, as far as serving needs it."""

    d_model: Size
    heads: Size
    layers: Size
    head_width: Size | None = None
    causal: bool = False
    mask_input: bool = False
    vocabulary: Size | None = None
    positions: Size | None = None
    types: Annotated[int, Field(ge=0)] = 0
    pooling: str | None = None

    @property
    def head_size(self) -> int:
        """K, the width of one head."""
        return self.head_width or self.d_model // self.heads


class TokenizerFile(_Model):
    """The tokeniser, the length at which text is refused or cut, and what is put before each text."""

    file: FileName
    max_tokens: Size | None = None
    prompt: str = ""


class Limits(_Model):
    """Limits of the graphs themselves."""

    max_tokens: Size | None = None


class FileRecord(_Model):
    """What a file must be."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Numbers(_Model):
    """Counts about the encoder."""

    parameters: int | None = None


class Manifest(_Model):
    """One version of a family."""

    format: Literal[2]
    name: str
    version: Annotated[int, Field(ge=1)]
    encoder: Encoder
    precision: Precision
    sizes: dict[Letter, Size] = {}
    """Of the axes that are fixed."""
    graphs: Annotated[dict[GraphName, Graph], Field(min_length=1)]
    tokenizer: TokenizerFile | None = None
    limits: Limits = Limits()
    files: dict[FileName, FileRecord]
    numbers: Numbers = Numbers()
    _digest: str = PrivateAttr("")
    _skipped: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_references(self) -> "Manifest":
        needed = [graph.file for graph in self.graphs.values()]
        needed += [self.tokenizer.file] if self.tokenizer else []
        for name in needed:
            if name not in self.files:
                raise ValueError(f"files must list {name}")
        if "B" in self.sizes:
            raise ValueError("B must have no size: requests are joined on it")
        return self

    @property
    def skipped(self) -> Mapping[str, str]:
        """The graphs that are not served because this server cannot describe them, and why."""
        return self._skipped

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's own bytes, and so, by the hashes in it, of the whole version."""
        return self._digest

    @property
    def text_max_tokens(self) -> int | None:
        """The most tokens of a text: the tokeniser's limit or the graph's, whichever is lower."""
        if self.tokenizer is None:
            return None
        bounds = [bound for bound in (self.tokenizer.max_tokens, self.limits.max_tokens) if bound is not None]
        return min(bounds, default=None)

    def served_name(self, graph: GraphName) -> str:
        """The model's name on the wire: the family's for the fast graph, `NAME.attention` for the other."""
        return self.name if graph == "fast" else f"{self.name}.{graph}"


def read_manifest(folder: Path, *, family: str, version: int) -> Manifest:
    """Reads and checks a version's manifest.

    Args:
        folder: The version's folder.
        family: The name of the folder above it, which the manifest must repeat.
        version: The folder's own name, likewise.

    Raises:
        RepositoryError: Missing, not valid, of a newer format, or about something else.
    """
    try:
        content = read_regular(folder / "manifest.json", limit=_LARGEST_MANIFEST)
    except OSError as error:
        raise RepositoryError(f"manifest.json cannot be read: {error.strerror}") from error
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RepositoryError("manifest.json is not valid JSON") from error
    written = fields.get("format") if isinstance(fields, dict) else None
    if type(written) is int and written != FORMAT:
        what = "update polyhead" if written > FORMAT else "export it again"
        raise RepositoryError(
            f"manifest.json has format {written}; this server reads format {FORMAT}: {what}"
        )
    try:
        skipped = _take_out_unknown(fields)
        manifest = Manifest.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise RepositoryError(f"manifest.json is not valid: {_first(error)}") from error
    for field, was, must in (("name", manifest.name, family), ("version", manifest.version, version)):
        if was != must:
            raise RepositoryError(f"manifest.json's {field} must be its folder's ({must}), was {was}")
    manifest._digest = hashlib.sha256(content).hexdigest()
    manifest._skipped = skipped
    return manifest


def _take_out_unknown(fields: object) -> dict[str, str]:
    """Take out the graphs that this server cannot describe, unless it can describe none; return why."""
    graphs = fields.get("graphs") if isinstance(fields, dict) else None
    sizes = fields.get("sizes", {}) if isinstance(fields, dict) else {}
    if not isinstance(graphs, dict) or not isinstance(sizes, dict):
        return {}  # said by the model
    problems: dict[str, str] = {}
    for name, graph in graphs.items():
        try:
            problem = Graph.model_validate_json(json.dumps(graph)).problem(sizes)
        except ValidationError as error:
            problem = _first(error)
        if problem is not None:
            problems[name] = problem
    if len(problems) == len(graphs) and problems:
        name, problem = next(iter(problems.items()))
        raise RepositoryError(f"manifest.json is not valid: graphs.{name}: {problem}")
    for name in problems:
        del graphs[name]
    return problems


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    return f"{where}: {first['msg']}"
