"""The options that commands which export have in common. Needs neither torch nor onnx to import."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from polyhead_model.head_choices import HeadChoice, parse_head_choices
from polyhead_model.task_heads import Pooling
from polyhead_proto.names import family_name

if TYPE_CHECKING:
    from polyhead_export.family import ExportedFamily
    from polyhead_export.pruning import Pruning
    from polyhead_export.sources import Built, Source

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


def _numbers(kind: object, tokens: tuple[Token, ...]) -> tuple[int, ...]:
    """Parse `1,2,4,8`."""
    try:
        return tuple(int(number) for number in _items(kind, tokens))
    except ValueError:
        given = " ".join(token.value for token in tokens)
        raise ValueError(f"must be numbers such as 1,2,4,8, was {given!r}") from None


def _items(_: object, tokens: tuple[Token, ...]) -> tuple[str, ...]:
    """Parse `rows,insight`."""
    return tuple(name.strip() for token in tokens for name in token.value.split(","))


def _head_choices(_: object, tokens: tuple[Token, ...]) -> tuple[HeadChoice, ...]:
    """Parse `8,8/2,64+32+32`."""
    return parse_head_choices(",".join(token.value for token in tokens))


Numbers = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, accepts_keys=False)]
Heads = Annotated[
    tuple[HeadChoice, ...],
    Parameter(converter=_head_choices, n_tokens=1, accepts_keys=False, metavar="STR"),
]
Names = Annotated[tuple[str, ...], Parameter(converter=_items, n_tokens=1, accepts_keys=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The encoder, its graphs, and where they go."""

    preset: str | None = None
    """A named configuration; `polyhead describe` lists them."""
    checkpoint: Path | None = None
    """A Hugging Face folder of an encoder (safetensors); or its name on the Hugging Face hub, ORG/NAME or
    ORG/NAME@REVISION, to be downloaded."""
    encoder: Path | None = None
    """A JSON file that describes an encoder, such as {"d_model": 768, "heads": 12, "layers": 1}."""
    name: str | None = None
    """The family's name in the repository. Default: that of the preset or the checkpoint."""
    head_mask: bool = False
    """Accept a factor for each head in requests: 0 silences a head."""
    graphs: Names = ()
    """More kinds of graphs than fast and attention: rows, insight, pooled, contacts, sparse, maxsim, stream,
    or all that the encoder can have. Each takes time to export, and memory where it is served."""
    attention_layers: Numbers | None = None
    """The layers whose attention is returned, such as 5 or 0,5; the others stay fused. Default: all."""
    pooling: Pooling | None = None
    """How to pool a checkpoint that does not say how (one without modules.json)."""
    normalise: Annotated[bool, Parameter(negative=())] = False
    """With --pooling: scale pooled vectors to length 1."""
    matryoshka: Numbers | None = None
    """The numbers of dimensions to which a checkpoint's vectors were trained to be cut, such as 64,128,256,
    if it does not say so itself."""
    prompt: str | None = None
    """The prompt of a sentence-transformers checkpoint to put before each text, by its name. Default: the
    checkpoint's own choice. Requests may name another one."""
    no_prompt: Annotated[bool, Parameter(negative=())] = False
    """Put no prompt before texts of requests that name none."""
    task: str | None = None
    """The task whose adapter is merged into the weights, of a checkpoint that has several, by its name, such
    as retrieval.query. Its prompt is put before each text, unless --prompt or --no-prompt says otherwise."""
    strict: Annotated[bool, Parameter(negative=())] = False
    """Reject a checkpoint if a part of it cannot be served: a task head, or text without a tokenizer.json."""
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    """The precision of the computation; inputs and outputs stay the same. fp16 and bf16 are for CUDA only,
    int8 is for CPUs."""
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))] = 0
    """The seed of random weights, and of random inputs."""
    models: Path = Path("models")
    """The model repository; created if missing."""
    version: AtLeastOne = 1
    """The version's number."""
    sentences: Path | None = None
    """A text file with a sentence on each line, such as the encoder will be used for: what int8 changes, and
    what the removal of heads changes, is measured on them (default: some English sentences), and the ranges
    that vectors in int8 need (default: none)."""
    if_exists: Literal["fail", "skip", "replace", "add"] = "fail"
    """What to do if the version exists already; add keeps its graphs, and exports those that it lacks."""

    @property
    def family(self) -> str | None:
        """The family's name; None if it needs one."""
        from polyhead_model.hub import name_of

        if name := self.name or self.preset:
            return name
        return None if self.checkpoint is None else family_name(name_of(self.checkpoint))

    def sources(
        self, *, heads: Sequence[HeadChoice] = (), layers: int | None = None, mask: bool = False
    ) -> "list[Source]":
        """Return the encoders to export.

        Args:
            heads: The heads, each choice a family of its own; for presets.
            layers: The number of layers; None means the preset's.
            mask: Whether the graphs take an arbitrary mask; for presets.

        Raises:
            ExportError: The options contradict each other, or select nothing.
        """
        from polyhead_export.errors import ExportError
        from polyhead_export.kinds import names_of_kinds
        from polyhead_export.sources import from_checkpoint, from_description, from_preset
        from polyhead_model.hub import local_checkpoint

        names_of_kinds(self.graphs)
        if sum(given is not None for given in (self.preset, self.checkpoint, self.encoder)) != 1:
            raise ExportError("give either --preset, --checkpoint or --encoder")
        of_checkpoint = (self.pooling, self.normalise, self.matryoshka, self.no_prompt)
        if self.checkpoint is None and (any(of_checkpoint) or (self.prompt, self.task) != (None, None)):
            raise ExportError(
                "--pooling, --normalise, --matryoshka, --prompt, --no-prompt and --task are for a checkpoint"
            )
        if self.prompt is not None and self.no_prompt:
            raise ExportError("give --prompt or --no-prompt, not both")
        if self.preset is not None:
            return from_preset(
                self.preset,
                name=self.name,
                heads=heads,
                layers=layers,
                mask=mask,
                head_mask=self.head_mask,
                seed=self.seed,
            )
        if heads or layers is not None or mask:
            raise ExportError(
                "--heads, --layers and --mask change a preset; a checkpoint or a description is exported as "
                "it is"
            )
        if self.family is None:
            raise ExportError("--encoder needs a --name for the family")
        if self.checkpoint is not None:
            return [
                from_checkpoint(
                    local_checkpoint(self.checkpoint),
                    self.family,
                    prompt_name="" if self.no_prompt else self.prompt,
                    task=self.task,
                    pooling=self.pooling,
                    normalise=self.normalise,
                    matryoshka=self.matryoshka,
                    strict=self.strict,
                    head_mask=self.head_mask,
                )
            ]
        if self.encoder is not None:
            return [from_description(self.encoder, self.family, head_mask=self.head_mask, seed=self.seed)]
        return []

    def skips(self, names: Sequence[str]) -> bool:
        """Return whether the version of all these families, one at least, is complete and to be kept."""
        return self.if_exists == "skip" and bool(names) and all(self._failed(name) == [] for name in names)

    def check_versions(self, names: Sequence[str]) -> None:
        """Check what is there already of the version of these families.

        Raises:
            ExportError: Anything, which would have to be replaced; or what would be skipped is not complete.
        """
        from polyhead_export.errors import ExportError

        if self.if_exists not in {"fail", "skip"}:
            return
        there = [name for name in names if (self.models / name / str(self.version)).exists()]
        if self.if_exists == "fail" and there:
            raise ExportError(
                f"version {self.version} of {', '.join(there)} exists already in {self.models}: "
                "give another --version, or --if-exists skip, replace or add"
            )
        where = f"in {self.models}"
        if partial := [name for name in there if self._failed(name) is None]:
            raise ExportError(
                f"version {self.version} of {', '.join(partial)} {where} has no manifest.json that can be "
                "read, so it is not complete: give --if-exists replace"
            )
        for name in there:
            if failed := self._failed(name):
                raise ExportError(
                    f"version {self.version} of {name} {where} is without {', '.join(failed)}, which could "
                    "not be verified (its manifest.json says why): the others can be served; give "
                    "--if-exists add to try again"
                )

    def lines(self) -> tuple[str, ...]:
        """Return the sentences; none without a file.

        Raises:
            ExportError: The file cannot be read, or has none.
        """
        from polyhead_export.errors import ExportError

        file = self.sentences
        if file is None:
            return ()
        try:
            lines = tuple(line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"--sentences {file} must be a text file in UTF-8: {error}") from error
        if not lines:
            raise ExportError(f"--sentences {file} must hold at least one sentence, one on each line")
        return lines

    def _failed(self, name: str) -> list[str] | None:
        """Return the graphs that could not be verified; None without a manifest, which is written last."""
        try:
            manifest = json.loads((self.models / name / str(self.version) / "manifest.json").read_bytes())
            return list(manifest["parity"].get("failed", ()))  # which older releases did not write
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def export(
        self,
        built: "Built",
        name: str,
        *,
        sentences: Sequence[str],
        on_step: Callable[[str], None],
        pruning: "Pruning | None" = None,
    ) -> "ExportedFamily":
        """Export one encoder; see `export_family`, which also lists the errors."""
        from polyhead_export.family import export_family

        with _terminable():
            return export_family(
                built.encoder,
                name,
                self.models,
                version=self.version,
                precision=self.precision,
                graphs=self.graphs,
                attention_layers=self.attention_layers,
                tokenizer=built.tokenizer,
                sentences=sentences,
                left_out=built.left_out,
                pruning=pruning,
                if_exists="fail" if self.if_exists == "skip" else self.if_exists,
                on_step=on_step,
            )


DEFAULT_OPTIONS = ExportOptions()


@contextmanager
def _terminable() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that an unfinished version is removed.

    By default it kills a process, and does nothing at all to the first one of a container.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
