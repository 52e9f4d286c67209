"""`polyhead prune`: export an encoder without the heads that matter least."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from polyhead_export.command import print_exported, print_kept, remarks
from polyhead_export.options import DEFAULT_OPTIONS, ExportOptions

if TYPE_CHECKING:
    from polyhead_export.pruning import Pruning
    from polyhead_model.pruning import Head

app = App(name="prune")


@app.default
def prune(
    options: ExportOptions = DEFAULT_OPTIONS,
    *,
    fraction: float | None = None,
    heads: str | None = None,
    scores: Path | None = None,
) -> None:
    """Export an encoder without some of its attention heads: its projections become smaller.

    Heads go by name, or the least important fraction of them: by gradient over sentences, or by scores from a
    server (polyhead heads --ablate). One head of each layer always stays. The manifest records what was
    removed, and how far the vectors of the sentences drift, or without a tokenizer those of random inputs.

    Parameters
    ----------
    options
        What to export, and where to.
    fraction
        The fraction of heads to remove, such as 0.25: the least important ones.
    heads
        The heads to remove instead, as layer:head, such as 0:3,0:7,2:1.
    scores
        How important each head is: a file that `polyhead heads --ablate --json` wrote. Default: by gradient.
    """
    from rich.console import Console

    name = options.name or options.preset
    if name is not None and options.skips([name]):
        print_kept([name], options.version)
        return

    from polyhead_export.batches import batches_of_sentences, random_batches
    from polyhead_export.errors import ExportError
    from polyhead_export.family import IncompleteExportError
    from polyhead_export.parity import RANDOM_INPUTS
    from polyhead_export.pruning import parse_heads, prune_encoder
    from polyhead_proto.drift import SENTENCES

    if (fraction is None) == (heads is None):
        raise ExportError("give either --fraction or --heads")
    if scores is not None and fraction is None:
        raise ExportError("--scores choose which --fraction of the heads is removed, so give one")
    named = () if heads is None else parse_heads(heads)
    given = options.lines()
    (source,) = options.sources()
    options.check_versions([source.name])
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
        batches, inputs = random_batches(config, seed=options.seed), RANDOM_INPUTS
    say(f"measuring heads on {inputs}" if fraction is not None and scores is None else "removing heads")
    pruned, pruning, spared = prune_encoder(
        built.encoder, batches, inputs, fraction=fraction, heads=named, scores=scores, seed=options.seed
    )
    for sentence in _sentences(pruning, spared, sum(len(config.heads_of(at)) for at in range(config.layers))):
        say(sentence)
    built = dataclasses.replace(built, encoder=pruned)  # frees the weights before pruning
    try:
        exported = options.export(
            built,
            source.name,
            sentences=given if options.precision == "int8" or config.pooling is not None else (),
            on_step=console.print,
            pruning=pruning,
        )
    except IncompleteExportError as error:
        print_exported([error.exported], [])
        raise
    print_exported([exported], [])


def _sentences(pruning: "Pruning", spared: "tuple[Head, ...]", heads: int) -> list[str]:
    """Say what was pruned, what was not, and what it changed."""
    removed, drift = pruning.removed, pruning.drift
    sentences = [f"removes {len(removed)} of {heads} heads: {_spelled(sorted(removed))}"]
    if spared:
        sentences.append(f"keeps {_spelled(spared)}, though to be removed: each layer keeps one head")
    vectors = {"logits": "logits", "pooled": "pooled vectors", "output": "vectors of tokens"}[drift.output]
    sentences.append(
        f"on {pruning.inputs}, the {vectors} have a cosine with those before of at least "
        f"{drift.cosine.least:.4f}, {drift.cosine.mean:.4f} in the mean; single numbers differ by up to "
        f"{drift.largest_difference:.1e}"
    )
    return sentences


def _spelled(heads: "list[Head] | tuple[Head, ...]") -> str:
    return ",".join(f"{layer}:{head}" for layer, head in heads)
