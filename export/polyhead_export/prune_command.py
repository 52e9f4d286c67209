"""`polyhead prune`: export an encoder without the heads that matter least."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from polyhead_export.command import build, print_exported, print_kept, print_next
from polyhead_export.options import DEFAULT_OPTIONS, AtLeastOne, ExportOptions

if TYPE_CHECKING:
    from polyhead_export.pruning import Pruning
    from polyhead_model import EncoderConfig
    from polyhead_model.pruning import Head

app = App(name="prune")


@app.default
def prune(
    options: ExportOptions = DEFAULT_OPTIONS,
    *,
    fraction: float | None = None,
    heads: str | None = None,
    scores: Path | None = None,
    groups: Annotated[bool, Parameter(negative=())] = False,
    width: AtLeastOne | None = None,
) -> None:
    """Export an encoder without some of its attention heads, or with some of them narrower.

    Its projections become smaller. Heads go by name, or the least important fraction of them: by gradient
    over sentences, or by scores from a server (polyhead heads --ablate). One head of each layer always stays.
    The manifest records which heads they were, and how far the vectors of the sentences drift, or without a
    tokenizer those of random inputs.

    ```sh
    polyhead prune --checkpoint ./minilm --name minilm-54 --fraction 0.25
    polyhead prune --checkpoint ./minilm --name fewer --heads 0:3,0:7,2:1
    polyhead heads texts.txt --ablate --json > scores.json
    polyhead prune --checkpoint ./minilm --fraction 0.25 --scores scores.json
    polyhead prune --checkpoint ./minilm --name narrower --fraction 0.25 --width 8
    ```

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
    groups
        Choose heads of keys and values, each with all heads of queries that share it. --fraction is of them,
        and --heads are their layers and numbers.
    width
        Narrow the chosen heads to this width, in columns, instead of removing them.
    """
    from rich.console import Console

    name = options.family
    if name is not None and options.skips([name]):
        print_kept([name], options.version)
        return

    from polyhead_export.errors import ExportError
    from polyhead_export.heads_to_prune import check_fraction, parse_heads

    if (fraction is None) == (heads is None):
        raise ExportError("give either --fraction or --heads")
    if scores is not None and fraction is None:
        raise ExportError("--scores choose which --fraction of the heads is removed, so give one")
    if fraction is not None:
        check_fraction(fraction)
    named = () if heads is None else parse_heads(heads)

    # torch takes seconds, which a wrong argument need not wait for
    from polyhead_export.batches import batches_of_sentences, random_batches
    from polyhead_export.family import IncompleteExportError, count_steps
    from polyhead_export.parity import RANDOM_INPUTS
    from polyhead_export.progress import Steps, print_line
    from polyhead_export.pruning import prune_encoder
    from polyhead_proto.drift import SENTENCES

    given = options.lines()
    (source,) = options.sources()
    options.check_versions([source.name])
    console = Console(stderr=True)

    with Steps(console) as steps:
        built = build(source, steps, console)
        config = built.encoder.config
        steps.expect(1 + count_steps(config, options.graphs))
        if built.tokenizer is not None:
            lines = given or SENTENCES
            batches = batches_of_sentences(built.tokenizer, config, lines)
            inputs = f"{len(lines)} sentences"
        elif given:
            raise ExportError("--sentences need a tokenizer.json, this encoder has none")
        else:
            batches, inputs = random_batches(config, seed=options.seed), RANDOM_INPUTS
        by_gradient = fraction is not None and scores is None
        steps(f"{source.name}: " + (f"measuring heads on {inputs}" if by_gradient else "changing heads"))
        pruned, pruning, spared = prune_encoder(
            built.encoder,
            batches,
            inputs,
            fraction=fraction,
            heads=named,
            scores=scores,
            groups=groups,
            width=width,
            seed=options.seed,
        )
        for sentence in _sentences(config, pruning, spared, groups=groups):
            print_line(console, f"{source.name}: {sentence}")
        built = dataclasses.replace(built, encoder=pruned)  # frees the weights before pruning
        try:
            exported = options.export(
                built,
                source.name,
                sentences=given if options.precision == "int8" or config.pooling is not None else (),
                on_step=steps,
                pruning=pruning,
            )
        except IncompleteExportError as error:
            print_exported([error.exported], [])
            raise
    print_exported([exported], [])
    print_next(options.models)


def _sentences(
    config: "EncoderConfig", pruning: "Pruning", spared: "tuple[Head, ...]", *, groups: bool
) -> list[str]:
    """Say what was pruned, what was not, and what it changed."""
    heads, drift = pruning.heads, pruning.drift
    count = sum(len(config.heads_of(layer)) for layer in range(config.layers))
    changed, to = ("removes", "") if pruning.width is None else ("narrows", f" to {pruning.width} columns")
    sentences = [f"{changed} {len(heads)} of {count} heads{to}: {_spelled(sorted(heads))}"]
    if spared:
        kind = "group of heads that share keys and values" if groups else "head"
        sentences.append(f"keeps {_spelled(spared)}, though to be removed: each layer keeps one {kind}")
    vectors = {"logits": "logits", "pooled": "pooled vectors", "output": "vectors of tokens"}[drift.output]
    sentences.append(
        f"on {pruning.inputs}, the {vectors} have a cosine with those before of at least "
        f"{drift.cosine.least:.4f}, {drift.cosine.mean:.4f} in the mean; single numbers differ by up to "
        f"{drift.largest_difference:.1e}"
    )
    return sentences


def _spelled(heads: "list[Head] | tuple[Head, ...]") -> str:
    return ",".join(f"{layer}:{head}" for layer, head in heads)
