"""`polyhead export`: export encoders into a model repository."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, Token
from cyclopts.validators import Number

from polyhead_model.config import Pooling

if TYPE_CHECKING:
    from polyhead_export.family import ExportedFamily
    from polyhead_export.parity import Drift
    from polyhead_export.sources import Built, Source

app = App(name="export", help="Export encoders to ONNX, checked against PyTorch, into a model repository.")

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


Numbers = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, accepts_keys=False)]
Names = Annotated[tuple[str, ...], Parameter(converter=_items, n_tokens=1, accepts_keys=False)]


@app.default
def export(
    *,
    preset: str | None = None,
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    name: str | None = None,
    heads: Numbers = (),
    layers: AtLeastOne | None = None,
    mask: bool = False,
    head_mask: bool = False,
    graphs: Names = (),
    attention_layers: Numbers | None = None,
    pooling: Pooling | None = None,
    normalise: Annotated[bool, Parameter(negative=())] = False,
    prompt: str | None = None,
    no_prompt: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32",
    sentences: Path | None = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))] = 0,
    models: Path = Path("models"),
    version: AtLeastOne = 1,
    if_exists: Literal["fail", "skip", "replace"] = "fail",
) -> None:
    """Export a preset or a description with random weights, or a trained checkpoint.

    Every graph is compared with PyTorch first; one that deviates is not put into the repository.

    Parameters
    ----------
    preset
        A named configuration; `polyhead describe` lists them.
    checkpoint
        A Hugging Face folder of an encoder (safetensors); or its name on the Hugging Face hub, ORG/NAME or
        ORG/NAME@REVISION, to be downloaded.
    encoder
        A JSON file that describes an encoder, such as {"d_model": 768, "heads": 12, "layers": 1}.
    name
        The family's name in the repository. Default: the preset's name.
    heads
        Head counts, such as 1,2,4,8: one family each, called NAME-h1, NAME-h2, ... (presets only).
    layers
        The number of layers. Default: the preset's.
    mask
        Accept an attention mask in requests (presets only).
    head_mask
        Accept a factor for each head in requests: 0 silences a head.
    graphs
        More kinds of graphs than fast and attention, such as rows, or all. A served graph costs memory.
    attention_layers
        The layers whose attention is returned, such as 5 or 0,5; the others stay fused. Default: all.
    pooling
        How to pool a checkpoint that does not say how (one without modules.json).
    normalise
        With --pooling: scale pooled vectors to length 1.
    prompt
        The prompt of a sentence-transformers checkpoint to put before each text, by its name. Default: the
        checkpoint's own choice. Requests may name another one.
    no_prompt
        Put no prompt before texts of requests that name none.
    strict
        Reject a checkpoint if a part of it cannot be served: a task head, or text without a tokenizer.json.
    precision
        The precision of the computation; inputs and outputs stay the same. fp16 and bf16 are for CUDA only,
        int8 is for CPUs.
    sentences
        A text file with a sentence on each line, to measure on how far int8 is from fp32. Default: some
        English sentences.
    seed
        The seed of the random weights.
    models
        The model repository; created if missing.
    version
        The version's number.
    if_exists
        What to do if the version exists already.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from polyhead_export.errors import ExportError

    names = _names(preset, name, heads)
    if if_exists == "skip" and names and all(_is_complete(models, one, version) for one in names):
        # Checked before heavy imports: a container that restarts has nothing to do.
        for one in names:
            Console(stderr=True).print(f"{one}: version {version} is there already")
        return

    from polyhead_export.family import count_steps, export_family

    if if_exists == "fail" and (there := [one for one in names if is_there(models, one, version)]):
        raise ExportError(
            f"version {version} of {', '.join(there)} exists already in {models}: "
            "give another --version, or --if-exists skip or replace"
        )
    sources = sources_of(
        preset,
        checkpoint,
        encoder,
        name,
        heads=heads,
        layers=layers,
        mask=mask,
        head_mask=head_mask,
        seed=seed,
        pooling=pooling,
        normalise=normalise,
        prompt=prompt,
        no_prompt=no_prompt,
        strict=strict,
    )
    wanted = [
        source for source in sources if if_exists != "skip" or not _is_complete(models, source.name, version)
    ]
    if if_exists == "skip" and (
        partial := [source.name for source in wanted if is_there(models, source.name, version)]
    ):
        raise ExportError(
            f"version {version} of {', '.join(partial)} in {models} has no manifest.json, so it is not "
            "complete: give --if-exists replace"
        )
    texts = () if sentences is None else lines_of(sentences)
    exported: list[ExportedFamily] = []
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task = progress.add_task(
            "", total=(count_steps(graphs) + 1) * len(wanted), visible=console.is_terminal
        )

        def step(description: str) -> None:
            progress.update(task, description=description, advance=1)
            if not console.is_terminal:  # a log has no progress bar
                console.print(description)

        for source in wanted:
            step(f"{source.name}: building the encoder")
            built = source.build()
            for sentence in remarks(built):
                console.print(f"{source.name}: {sentence}", markup=False, highlight=False, soft_wrap=True)
            exported.append(
                export_family(
                    built.encoder,
                    source.name,
                    models,
                    version=version,
                    precision=precision,
                    graphs=graphs,
                    attention_layers=attention_layers,
                    tokenizer=built.tokenizer,
                    sentences=texts,
                    left_out=built.left_out,
                    if_exists="replace" if if_exists == "replace" else "fail",
                    on_step=step,
                )
            )
    print_exported(exported, [source.name for source in sources if source not in wanted])


def lines_of(file: Path) -> tuple[str, ...]:
    """Return the lines of a text file that are not empty."""
    from polyhead_export.errors import ExportError

    try:
        lines = tuple(line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"--sentences {file} must be a text file in UTF-8: {error}") from error
    if not lines:
        raise ExportError(f"--sentences {file} must hold at least one sentence, one on each line")
    return lines


def _names(preset: str | None, name: str | None, heads: tuple[int, ...]) -> list[str]:
    """Return the names of the families; none if there is neither a name nor a preset."""
    base = name or preset
    if base is None:
        return []
    return [f"{base}-h{count}" for count in heads] or [base]


def is_there(models: Path, name: str, version: int) -> bool:
    """Return whether a version has been begun."""
    return (models / name / str(version)).exists()


def _is_complete(models: Path, name: str, version: int) -> bool:
    """Return whether a version has been written completely; its manifest is written last."""
    return (models / name / str(version) / "manifest.json").is_file()


def sources_of(
    preset: str | None,
    checkpoint: Path | None,
    encoder: Path | None,
    name: str | None,
    *,
    heads: tuple[int, ...],
    layers: int | None,
    mask: bool,
    head_mask: bool,
    seed: int,
    pooling: Pooling | None,
    normalise: bool,
    prompt: str | None,
    no_prompt: bool,
    strict: bool,
) -> "list[Source]":
    """Return what the options of `export` select.

    Raises:
        ExportError: The options do not go together, or select nothing.
    """
    from polyhead_export.errors import ExportError
    from polyhead_export.sources import from_checkpoint, from_description, from_preset
    from polyhead_model.hub import local_checkpoint

    if sum(given is not None for given in (preset, checkpoint, encoder)) != 1:
        raise ExportError("give either --preset, --checkpoint or --encoder")
    if checkpoint is None and (pooling or normalise or prompt is not None or no_prompt):
        raise ExportError("--pooling, --normalise, --prompt and --no-prompt are for a checkpoint")
    if prompt is not None and no_prompt:
        raise ExportError("give --prompt or --no-prompt, not both")
    if preset is not None:
        return from_preset(
            preset, name=name, heads=heads, layers=layers, mask=mask, head_mask=head_mask, seed=seed
        )
    if heads or layers is not None or mask:
        raise ExportError(
            "--heads, --layers and --mask change a preset; a checkpoint or a description is exported as it is"
        )
    if name is None:
        flag = "--checkpoint" if encoder is None else "--encoder"
        raise ExportError(f"{flag} needs a --name for the family")
    if checkpoint is not None:
        return [
            from_checkpoint(
                local_checkpoint(checkpoint),
                name,
                prompt_name="" if no_prompt else prompt,
                pooling=pooling,
                normalise=normalise,
                strict=strict,
                head_mask=head_mask,
            )
        ]
    return [] if encoder is None else [from_description(encoder, name, head_mask=head_mask, seed=seed)]


def remarks(built: "Built") -> list[str]:
    """Return what the user of a checkpoint may not expect, in words."""
    from polyhead_export.family import takes_pairs

    sentences = list(built.left_out)
    if built.tokenizer is not None and built.tokenizer.prompt:
        sentences.append(
            f"each text gets the checkpoint's prompt before it: {built.tokenizer.prompt!r}, unless a request "
            "says otherwise (prompt_name)"
        )
    config = built.encoder.config
    if built.tokenizer is not None and config.classifier and not takes_pairs(built.tokenizer, config):
        why = "its template puts nothing between them"
        if built.tokenizer.gives_token_types is None:
            why = (
                "tokenizer_config.json must say in model_input_names whether there are token_type_ids, as "
                "releases of transformers differ"
            )
        sentences.append(f"single texts are served, not pairs: {why}")
    return sentences


def _describe(drift: "Drift") -> str:
    """Return the mean cosine with fp32, where it was measured, otherwise the largest deviation."""
    if drift.cosines is None:
        return f"{drift.worst:.1e}"
    outputs = drift.cosines["fast"]
    return f"cosine {outputs.get('pooled', outputs['output']).mean:.4f}"


def print_exported(exported: "list[ExportedFamily]", skipped: list[str]) -> None:
    """Print what was exported, with the measured parity, to standard output."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    if exported:
        columns = ["family", "version", "folder", "MB", "off PyTorch by", "at most"]
        if narrow := any(family.parity.drift for family in exported):
            columns.append("off fp32 by")
        # Wrap cells on a narrow terminal; by default names would be truncated.
        table = Table(*(Column(header, overflow="fold") for header in columns))
        for family in exported:
            megabytes = sum(path.stat().st_size for path in family.folder.iterdir()) / 1e6
            drift = family.parity.drift
            table.add_row(
                family.name,
                str(family.version),
                str(family.folder),
                f"{megabytes:.1f}",
                f"{family.parity.worst:.1e}",
                f"{family.parity.tolerance:.0e}",
                *([_describe(drift) if drift else ""] if narrow else []),
            )
        console.print(table)
    for name in skipped:
        console.print(f"{name}: was there already")
