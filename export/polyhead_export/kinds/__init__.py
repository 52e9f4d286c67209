"""The kinds of graphs that a family can be exported as: a module and a line here for each."""

from collections.abc import Collection, Mapping, Sequence

from polyhead_export.errors import ExportError
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.kinds.contacts import ContactsGraph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.insight import InsightGraph
from polyhead_export.kinds.maxsim import MaxSimGraph
from polyhead_export.kinds.pooled import PooledGraph
from polyhead_export.kinds.rows import RowsGraph
from polyhead_export.kinds.sparse import SparseGraph
from polyhead_export.kinds.stream import StreamGraph
from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig
from polyhead_model.insight.token_classes import TokenClass

KINDS: Mapping[str, type[GraphKind]] = {
    kind.name: kind
    for kind in (
        FastGraph,
        AttentionGraph,
        RowsGraph,
        InsightGraph,
        PooledGraph,
        ContactsGraph,
        SparseGraph,
        MaxSimGraph,
        StreamGraph,
    )
}
"""Every kind by its name, in the order of their files in a version."""

ALWAYS = (FastGraph.name, AttentionGraph.name)
"""The kinds that every family has."""

ALL = "all"
"""The name of all kinds together."""


def names_of_kinds(graphs: Collection[str]) -> list[str]:
    """Return the names of the kinds that a family has if these are asked for.

    Raises:
        ExportError: There is no such kind.
    """
    for name in graphs:
        if name not in (*KINDS, ALL):
            raise ExportError(f"graphs must be some of {', '.join(KINDS)}, or {ALL}, was {name!r}")
    return [name for name in KINDS if name in ALWAYS or name in graphs or ALL in graphs]


def kinds_of(
    config: EncoderConfig,
    graphs: Collection[str] = (),
    attention_layers: Sequence[int] | None = None,
    token_classes: tuple[TokenClass, ...] = (),
) -> tuple[GraphKind, ...]:
    """Return the kinds of a family's graphs.

    Args:
        config: The encoder's configuration.
        graphs: Names of kinds beside those that every family has; `all` for every kind that is defined for
            this encoder.
        attention_layers: The layers whose attention is returned; None = all.
        token_classes: What is known of the tokens.

    Raises:
        ExportError: There is no such kind, or not for this encoder, or no such layer, or a layer is given
            twice.
    """
    names = names_of_kinds(graphs)
    for name, reason in undefined(config).items():
        if name in graphs:
            raise ExportError(f"graphs must not have {name}{reason}")
        names = [each for each in names if each != name]
    layers = None
    if attention_layers is not None:
        layers = tuple(sorted(attention_layers))
        shown = ", ".join(map(str, attention_layers))
        if not layers or len(set(layers)) < len(layers):
            raise ExportError(f"attention layers must be at least one, each once, were {shown or 'none'}")
        if layers[0] < 0 or layers[-1] >= config.layers:
            raise ExportError(
                f"attention layers must be from 0 to {config.layers - 1}, as the encoder has "
                f"{config.layers} layers, were {shown}"
            )
    return tuple(KINDS[name](attention_layers=layers, token_classes=token_classes) for name in names)


def undefined(config: EncoderConfig) -> Mapping[str, str]:
    """Return the kinds that are not defined for an encoder, and why, as the end of a sentence."""
    reasons = {
        InsightGraph.name: config.cross_attention is not None
        and " where layers attend to a memory: rollout and scores follow one sequence through all layers, "
        "and the memory's tokens are another; rows works",
        PooledGraph.name: config.pooled_position is None
        and ", which computes one token in the last layer: this encoder pools or classifies others than the "
        "first (cls) or the last, or its layers are not blocks of self-attention",
        ContactsGraph.name: config.contacts is None and ": this encoder has no regression that predicts them",
        SparseGraph.name: config.splade is None
        and config.lexical is None
        and ": this encoder has no head that weighs words (SPLADE)",
        MaxSimGraph.name: config.token_vectors is None
        and ": this encoder has no token vectors (late interaction)",
    }
    return {name: reason for name, reason in reasons.items() if reason}
