"""`manifest.json`: what one version of a family is, as the export wrote it."""

import hashlib
import json
import re
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

from polyhead_server.errors import RepositoryError
from polyhead_server.files import read_regular

FORMAT = 1
"""The newest format of a manifest that this server reads."""

FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""A family's name, at most as long as a folder's. No dots: a dot separates the graph's name."""

_LARGEST_MANIFEST = 4 * 2**20

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=255)]
"""A file directly inside the version's folder."""

Datatype = Literal["BOOL", "INT32", "INT64", "FP16", "FP32"]
GraphName = Literal["fast", "attention"]
Precision = Literal["fp32", "fp16", "bf16"]
Size = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    # A later server may add fields within one format, so those unknown here are passed over.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Tensor(_Model):
    """One input or output of a graph. -1 in a shape is any size."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    datatype: Datatype
    shape: list[Annotated[int, Field(ge=-1)]]


class Graph(_Model):
    """One ONNX graph of the version."""

    file: FileName
    outputs: Annotated[list[Tensor], Field(min_length=1)]


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

    format: Literal[1]
    name: str
    version: Annotated[int, Field(ge=1)]
    encoder: Encoder
    precision: Precision
    inputs: Annotated[list[Tensor], Field(min_length=1)]
    graphs: Annotated[dict[GraphName, Graph], Field(min_length=1)]
    tokenizer: TokenizerFile | None = None
    limits: Limits = Limits()
    files: dict[FileName, FileRecord]
    numbers: Numbers = Numbers()
    _digest: str = PrivateAttr("")

    @model_validator(mode="after")
    def _check_references(self) -> "Manifest":
        needed = [graph.file for graph in self.graphs.values()]
        needed += [self.tokenizer.file] if self.tokenizer else []
        for name in needed:
            if name not in self.files:
                raise ValueError(f"files must list {name}")
        primary = "x" if self.encoder.vocabulary is None else "input_ids"
        names = [tensor.name for tensor in self.inputs]
        for name in (primary, "lengths"):
            if name not in names:
                raise ValueError(f"inputs must hold {name}, were {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _check_outputs(self) -> "Manifest":
        """The outputs must be those of the encoder that the manifest describes."""
        encoder = self.encoder
        for name, graph in self.graphs.items():
            # One layer too many is enough to disagree: a manifest may claim any number of them.
            layers = range(min(encoder.layers, len(graph.outputs) + 1) if name == "attention" else 0)
            expected = {
                "output": [-1, -1, encoder.d_model],
                **({} if encoder.pooling is None else {"pooled": [-1, encoder.d_model]}),
                **{f"attention.{layer}": [-1, encoder.heads, -1, -1] for layer in layers},
            }
            outputs = {tensor.name: list(tensor.shape) for tensor in graph.outputs}
            if outputs != expected:
                raise ValueError(f"the outputs of graph {name} must be {expected}, were {outputs}")
        return self

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
    if isinstance(written, int) and written > FORMAT:
        raise RepositoryError(
            f"manifest.json has format {written}; this server reads up to format {FORMAT}: update polyhead"
        )
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RepositoryError(f"manifest.json is not valid: {where}: {first['msg']}") from error
    for field, was, must in (("name", manifest.name, family), ("version", manifest.version, version)):
        if was != must:
            raise RepositoryError(f"manifest.json's {field} must be its folder's ({must}), was {was}")
    manifest._digest = hashlib.sha256(content).hexdigest()
    return manifest
