"""Say what is exported, in a line each: what a checkpoint is, and which model types there are."""

from typing import TYPE_CHECKING

from polyhead_model.config import EncoderConfig
from polyhead_model.model_types import model_types

if TYPE_CHECKING:
    from rich.table import Table

    from polyhead_export.sources import Built
    from polyhead_export.tokenizers import TokenizerFile


def describe_found(built: "Built") -> str:
    """Return what a checkpoint was found to be, in one line."""
    from polyhead_model import parameters

    config = built.encoder.config
    groups = "" if config.kv_heads is None else f" ({config.groups} K/V)"
    layers = "1 layer" if config.layers == 1 else f"{config.layers} layers"
    parts = [
        f"found {built.model_type}: {layers} × {config.heads} heads{groups}, "
        f"D = {config.d_model:,}, {parameters(config):,} parameters",
        _pooling(config),
        *_heads(config),
        _prompts(built.tokenizer),
        _limit(built.tokenizer, config),
    ]
    return "; ".join(part for part in parts if part)


def _pooling(config: EncoderConfig) -> str:
    if config.pooling is None:
        return "not pooled"
    width = "" if config.pooled_size == config.d_model else f" to {config.pooled_size:,} dimensions"
    return f"{config.pooling} pooling{width}{', normalised' if config.normalise else ''}"


def _heads(config: EncoderConfig) -> list[str]:
    """Return the heads for tasks."""
    heads = []
    if (classifier := config.classifier) is not None:
        of = "tokens" if classifier.pooling is None else "texts"
        count = len(classifier.labels)
        heads.append(f"classifier of {of}, {count:,} label{'s' if count > 1 else ''}")
    named = {
        "sparse vectors": config.splade or config.lexical,
        "token vectors": config.token_vectors,
        "contacts": config.contacts,
    }
    return heads + [name for name, head in named.items() if head is not None]


def _prompts(tokenizer: "TokenizerFile | None") -> str:
    names = [] if tokenizer is None else sorted(tokenizer.prompts)
    return f"prompts {', '.join(names)}" if names else "no prompts"


def _limit(tokenizer: "TokenizerFile | None", config: EncoderConfig) -> str:
    if tokenizer is not None:
        return f"texts of up to {tokenizer.max_tokens:,} tokens"
    return "" if config.positions is None else f"up to {config.positions:,} token ids"


def type_table() -> "Table":
    """Return the model types of checkpoints that load, as their tables have them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    columns = ("model_type", "positions", "layers beyond BERT's", "heads for")
    table = Table(
        *(Column(each, no_wrap=each == columns[0]) for each in columns),
        title="model types that --checkpoint reads",
        title_justify="left",
        box=SIMPLE_HEAD,
        caption="heads classify texts or tokens, or weigh words (SPLADE)",
        caption_justify="left",
    )
    for each in model_types():
        table.add_row(each.name, *(", ".join(words) for words in (each.positions, each.layers, each.heads)))
    return table
