"""`polyhead prune`: export an encoder without the heads that matter least."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_export.command import (
    AtLeastOne,
    Names,
    Numbers,
    is_there,
    lines_of,
    print_exported,
    remarks,
    sources_of,
)
from polyhead_model.config import Pooling

if TYPE_CHECKING:
    from polyhead_export.pruning import Pruning
    from polyhead_model.pruning import Head

app = App(name="prune", help="Export an encoder without some of its attention heads.")


@app.default
def prune(
    *,
    preset: str | None = None,
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    name: str | None = None,
    fraction: float | None = None,
    heads: str | None = None,
    scores: Path | None = None,
    sentences: Path | None = None,
    head_mask: bool = False,
    graphs: Names = (),
    attention_layers: Numbers | None = None,
    pooling: Pooling | None = None,
    normalise: Annotated[bool, Parameter(negative=())] = False,
    prompt: str | None = None,
    no_prompt: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32",
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))] = 0,
    models: Path = Path("models"),
    version: AtLeastOne = 1,
    if_exists: Literal["fail", "replace"] = "fail",
) -> None:
    """Export an encoder without some of its attention heads: its projections become smaller.

    Heads go by name, or the least important fraction of them: by gradient over sentences, or by scores from a
    server (polyhead heads --ablate). One head of each layer always stays. The manifest records what was
    removed, and how far the vectors of the sentences drift.

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
    fraction
        The fraction of heads to remove, such as 0.25: the least important ones.
    heads
        The heads to remove instead, as layer:head, such as 0:3,0:7,2:1.
    scores
        How important each head is: a file that `polyhead heads --ablate --json` wrote. Default: by gradient.
    sentences
        A text file with a sentence on each line, such as the encoder will be used for: importance by gradient
        and drift are measured on them. Default: some English sentences; random inputs without a tokenizer.
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
    seed
        The seed of random weights, of random inputs and of the loss whose gradient is taken.
    models
        The model repository; created if missing.
    version
        The version's number.
    if_exists
        What to do if the version exists already.
    """
    from rich.console import Console

    from polyhead_export.batches import batches_of_sentences, random_batches
    from polyhead_export.errors import ExportError
    from polyhead_export.family import export_family
    from polyhead_export.parity import RANDOM_INPUTS
    from polyhead_export.pruning import parse_heads, prune_encoder
    from polyhead_export.sentences import SENTENCES

    if (fraction is None) == (heads is None):
        raise ExportError("give either --fraction or --heads")
    if scores is not None and fraction is None:
        raise ExportError("--scores choose which --fraction of the heads is removed, so give one")
    named = () if heads is None else parse_heads(heads)
    given = () if sentences is None else lines_of(sentences)
    (source,) = sources_of(
        preset,
        checkpoint,
        encoder,
        name,
        heads=(),
        layers=None,
        mask=False,
        head_mask=head_mask,
        seed=seed,
        pooling=pooling,
        normalise=normalise,
        prompt=prompt,
        no_prompt=no_prompt,
        strict=strict,
    )
    if if_exists == "fail" and is_there(models, source.name, version):
        raise ExportError(
            f"version {version} of {source.name} exists already in {models}: give another --version, or "
            "--if-exists replace"
        )
    console = Console(stderr=True)

    def say(sentence: str) -> None:
        console.print(f"{source.name}: {sentence}", markup=False, highlight=False, soft_wrap=True)

    built = source.build()
    for sentence in remarks(built):
        say(sentence)
    config = built.encoder.config
    if built.tokenizer is not None:
        lines = given or SENTENCES
        batches, inputs = batches_of_sentences(built.tokenizer, config, lines), f"{len(lines)} sentences"
    elif given:
        raise ExportError("--sentences need a tokenizer.json, this encoder has none")
    else:
        batches, inputs = random_batches(config, seed=seed), RANDOM_INPUTS
    say(f"measuring heads on {inputs}" if fraction is not None and scores is None else "removing heads")
    pruned, pruning, spared = prune_encoder(
        built.encoder, batches, inputs, fraction=fraction, heads=named, scores=scores, seed=seed
    )
    for sentence in _sentences(pruning, spared, sum(len(config.heads_of(at)) for at in range(config.layers))):
        say(sentence)
    built = dataclasses.replace(built, encoder=pruned)  # frees the weights before pruning
    exported = export_family(
        pruned,
        source.name,
        models,
        version=version,
        precision=precision,
        graphs=graphs,
        attention_layers=attention_layers,
        tokenizer=built.tokenizer,
        sentences=given if precision == "int8" else (),
        left_out=built.left_out,
        pruning=pruning,
        if_exists=if_exists,
        on_step=console.print,
    )
    print_exported([exported], [])


def _sentences(pruning: "Pruning", spared: "tuple[Head, ...]", heads: int) -> list[str]:
    """Say what was pruned, what was not, and what it changed."""
    removed, drift = pruning.removed, pruning.drift
    sentences = [f"removes {len(removed)} of {heads} heads: {_spelled(sorted(removed))}"]
    if spared:
        sentences.append(f"keeps {_spelled(spared)}, though to be removed: each layer keeps one head")
    vectors = {"logits": "logits", "pooled": "pooled vectors", "output": "token vectors"}[drift.output]
    sentences.append(
        f"on {pruning.inputs}, the {vectors} have a cosine with those before of at least "
        f"{drift.cosine.least:.4f}, {drift.cosine.mean:.4f} in the mean; single numbers differ by up to "
        f"{drift.largest_difference:.1e}"
    )
    return sentences


def _spelled(heads: "list[Head] | tuple[Head, ...]") -> str:
    return ",".join(f"{layer}:{head}" for layer, head in heads)
