"""Read everything in a Hugging Face folder except the weights, which `polyhead_model.checkpoint` reads.

Needs no torch, so that checkpoints can be described without it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyhead_model import hf_fields, hf_heads
from polyhead_model.attention_config import MOST_LAYERS
from polyhead_model.bge_m3 import read_lexical_weights, read_token_vectors
from polyhead_model.checkpoint_files import CheckpointError, choice, flag, integer, read_object
from polyhead_model.config import Activation, EncoderConfig
from polyhead_model.hf_dialects import DIALECTS
from polyhead_model.hf_layout import Adapters, ClassifierDialect, Dialect
from polyhead_model.late_interaction import MEANS_LEFT_OUT, LateInteraction
from polyhead_model.logit_score import LogitScore
from polyhead_model.matryoshka import read_matryoshka
from polyhead_model.prompts import Prompts
from polyhead_model.sentence_modules import SentenceModules
from polyhead_model.sentence_vectors import DenseFile
from polyhead_model.task_heads import Pooling, TokenVectors
from polyhead_model.tokenizer_files import TOKENIZER, check_tokenizer, tokenizer_limit

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Theirs → ours."""


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Everything about a checkpoint except its weights."""

    model_type: str
    """As in config.json; a key of `DIALECTS`."""
    dialect: Dialect
    encoder: EncoderConfig
    head: ClassifierDialect | None
    """Of the encoder's classifier; None if it has none, or one that is made of modules."""
    folder: Path
    """The folder of config.json and the weights."""
    tokenizer: Path | None
    """Its tokenizer.json, if there is one."""
    prompts: Prompts
    """What sentence-transformers may put before texts."""
    adapters: Adapters | None
    """Of the weights, for tasks; None if there are none."""
    task: str | None
    """The task whose adapter is to be merged into the weights; None = none."""
    dense: tuple[DenseFile, ...]
    """The dense layers behind pooling, a classifier's that is made of modules, or of vectors of tokens."""
    score: DenseFile | None
    """The layer that gives the logits of such a classifier."""
    logit_score: LogitScore | None
    """Which logits of words are the classifier's score; None if it has a layer of its own."""
    max_tokens: int
    """The longest text: sentence-transformers' max_seq_length, otherwise the tokenizer's own limit, and at
    most the model's positions."""
    position_offset: int
    """The number of leading rows of the position table that no token uses."""
    folded_types: bool
    """Whether the model has a single token type, a constant that is added to the positions, or the tokens."""
    left_out: tuple[str, ...]
    """What cannot be served, in words, as far as it can be seen without the weights."""


def read_checkpoint_info(
    folder: Path,
    *,
    prompt_name: str | None = None,
    task: str | None = None,
    pooling: Pooling | None = None,
    normalise: bool = False,
) -> CheckpointInfo:
    """Read a local Hugging Face or sentence-transformers folder, without the weights.

    Args:
        folder: A folder with config.json, or with the modules.json of sentence-transformers.
        prompt_name: The name of the prompt to use by default, among those of sentence-transformers; None
            means that of the task, or the checkpoint's own choice, and empty no prompt.
        task: The task whose adapter is to be merged into the weights; None means none.
        pooling: The pooling of a checkpoint that does not say how to pool.
        normalise: Whether to scale the vectors that are pooled by `pooling` to length 1.

    Raises:
        CheckpointError: The folder is not a checkpoint of a supported type, or needs something that
            polyhead does not support.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"a checkpoint must be a folder with config.json and model.safetensors, but {folder} {found}"
        )
    modules = _pooled(folder, SentenceModules.read(folder, prompt_name=prompt_name), pooling, normalise)
    path = modules.transformer / "config.json"
    config = read_object(path)
    model_type, dialect = _dialect_of(path, config)
    config = {**config, **{ours: config[name] for name, ours in dialect.renamed.items() if name in config}}
    _refuse_adapters(modules.transformer)
    adapters = _adapters(path, config, dialect, task)
    if (layers := integer(path, config, dialect.layers)) > MOST_LAYERS:  # before they are listed
        raise CheckpointError(f"{path}: {dialect.layers} must be at most {MOST_LAYERS:,}, was {layers:,}")
    fields = dialect.fields(path, config)
    padding_id = fields.get("padding_id")
    positions = integer(path, config, dialect.positions)
    if padding_id is not None:
        positions -= padding_id + 1
    types = integer(path, config, "type_vocab_size") if dialect.types else 0
    named, default = dialect.layer_norm_epsilon, dialect.default_epsilon
    width = modules.dense[-1].layer.width if modules.dense else integer(path, config, dialect.d_model)
    truncate_dim = (
        modules.truncate_dim if modules.pooling and (modules.truncate_dim or width) < width else None
    )
    matryoshka = (
        None if modules.pooling is None or modules.score else read_matryoshka(path, config, width=width)
    )
    if truncate_dim is not None and matryoshka:
        matryoshka = tuple(each for each in matryoshka if each <= truncate_dim) or None
    d_model = integer(path, config, dialect.d_model)
    if d_model < 1:
        raise CheckpointError(f"{path}: {dialect.d_model} must be at least 1, was {d_model}")
    m3_vectors = None if modules.late else read_token_vectors(path.parent, d_model)
    described: hf_fields.Fields = {
        "d_model": d_model,
        "token_vectors": m3_vectors,
        "heads": integer(path, config, dialect.heads),
        "layers": layers,
        "kept_heads": _kept_heads(path, config, dialect),
        "feed_forward": dialect.feed_forward and integer(path, config, dialect.feed_forward),
        "activation": "gelu"
        if dialect.activation is None
        else choice(path, config, dialect.activation, ACTIVATIONS),
        "layer_norm_epsilon": default if named is None else config.get(named, default),
        "vocabulary": integer(path, config, "vocab_size"),
        "positions": positions,
        "types": 0 if types == 1 else types,
        "pooling": None if modules.score else modules.pooling,
        "normalise": modules.normalise,
        **_dense_of(modules),
        "lexical": read_lexical_weights(path.parent),
        "truncate_dim": truncate_dim,
        "matryoshka": matryoshka,
    }
    try:
        head = hf_heads.stored_head(path, config, modules, dialect)
        described["classifier"] = hf_heads.classifier(path, config, modules, dialect, head)
        described["splade"] = hf_heads.splade(path, config, modules, dialect)
        encoder = EncoderConfig(**(described | fields))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if modules.late is not None:
        _check_expansion(path, encoder, modules.late)
    tokenizer = modules.transformer / TOKENIZER
    if tokenizer.is_file():
        check_tokenizer(modules.transformer, model_type)
    # Those of late interaction are of queries and documents.
    limit = modules.max_tokens or (None if modules.late else tokenizer_limit(modules.transformer))
    return CheckpointInfo(
        model_type=model_type,
        dialect=dialect,
        encoder=encoder,
        head=head,
        folder=modules.transformer,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        prompts=modules.prompts if prompt_name is not None else _prompts_of(modules, task),
        adapters=adapters,
        task=task,
        dense=modules.dense,
        score=modules.score,
        logit_score=modules.logit_score
        and dataclasses.replace(
            modules.logit_score, tied=flag(path, config, "tie_word_embeddings", default=False)
        ),
        max_tokens=min(positions, limit or positions),
        position_offset=padding_id or 0,
        folded_types=types == 1,
        left_out=(
            *modules.left_out,
            *(() if encoder.classifier is None else hf_heads.left_out_of_scores(config, modules)),
            *(() if m3_vectors is None else (MEANS_LEFT_OUT,)),
            *_unmerged(path.parent, adapters, task),
        ),
    )


def _dense_of(modules: SentenceModules) -> hf_fields.Fields:
    """Return the fields of dense layers, unless they are a classifier's."""
    dense = tuple(file.layer for file in modules.dense)
    if (late := modules.late) is None:
        return {} if modules.score else {"dense": dense}
    head = TokenVectors(dense=dense, skipped_ids=late.skipped_ids, expansion_id=late.expansion_id)
    return {"token_vectors": head}


def _check_expansion(path: Path, encoder: EncoderConfig, late: LateInteraction) -> None:
    """Reject queries filled up so far that local attention finds no token of the text at their end."""
    longest = max((form.fill_to for form in late.forms.values()), default=0)
    if late.expansion_id is None or encoder.local_window is None or longest <= encoder.local_window // 2:
        return
    raise CheckpointError(
        f"{path}: local attention sees {encoder.local_window // 2} tokens to each side, so queries must be "
        f"filled up to at most as many, were to {longest}: else the last ones attend to nothing"
    )


def _pooled(
    folder: Path, modules: SentenceModules, pooling: Pooling | None, normalise: bool
) -> SentenceModules:
    """Add a pooling to modules that have none."""
    if normalise and pooling is None and modules.pooling is None:
        raise CheckpointError(f"{folder}: normalise needs a pooling, and the checkpoint has none")
    if modules.pooling is None:
        return dataclasses.replace(modules, pooling=pooling, normalise=normalise)
    if pooling not in (None, modules.pooling) or (normalise and not modules.normalise):
        said = f"{modules.pooling}, {'' if modules.normalise else 'not '}normalised"
        raise CheckpointError(
            f"{folder}: modules.json says how to pool ({said}): leave pooling and normalise out, or change it"
        )
    return modules


def _kept_heads(
    path: Path, config: Mapping[str, object], dialect: Dialect
) -> tuple[tuple[int, ...], ...] | None:
    """Return the heads that `pruned_heads` leaves in each layer, as `EncoderConfig` has them."""
    pruned = config.get("pruned_heads") or {}
    heads, layers = integer(path, config, dialect.heads), integer(path, config, dialect.layers)
    if not isinstance(pruned, dict) or not all(
        str(layer).isdecimal()
        and int(layer) < layers
        and isinstance(numbers, list)
        and all(type(number) is int and 0 <= number < heads for number in numbers)
        for layer, numbers in pruned.items()
    ):
        raise CheckpointError(
            f"{path}: pruned_heads must list heads from 0 to {heads - 1} for layers from 0 to {layers - 1}, "
            f"was {pruned!r}"
        )
    if not any(pruned.values()):
        return None
    return tuple(
        tuple(head for head in range(heads) if head not in pruned.get(str(layer), ()))
        for layer in range(layers)
    )


def _dialect_of(path: Path, config: Mapping[str, object]) -> tuple[str, Dialect]:
    """Return the model type and its dialect."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in DIALECTS:
        raise CheckpointError(f"{path}: model_type must be one of {', '.join(DIALECTS)}, was {model_type!r}")
    dialect = DIALECTS[model_type]
    dialect = dialect.published.get(_code(config).rpartition(".")[2], dialect)
    _refuse_variants(path, config, dialect)
    return model_type, dialect


def _refuse_variants(path: Path, config: Mapping[str, object], dialect: Dialect) -> None:
    """Reject variants of any type that share its name, but not its equations."""
    if (code := _code(config)) and not dialect.follows_code:
        raise CheckpointError(
            f"{path}: auto_map must not name an AutoModel, was {code!r}: the encoder is defined "
            "by code of its own, which polyhead does not run"
        )
    if config.get("is_decoder"):
        raise CheckpointError(f"{path}: is_decoder must be false, was true: polyhead serves encoders")


def _code(config: Mapping[str, object]) -> str:
    """Return the class that a folder names as its AutoModel; empty if it names none."""
    named = config.get("auto_map")
    return str(named["AutoModel"]) if isinstance(named, dict) and "AutoModel" in named else ""


_MERGE = "merge one (peft's merge_and_unload)"


def _adapters(
    path: Path, config: Mapping[str, object], dialect: Dialect, task: str | None
) -> Adapters | None:
    """Return the adapters for tasks, of which the one that is wanted must be one."""
    adapters = None if dialect.adapters is None else dialect.adapters(path, config)
    if task is not None and adapters is None:
        why = "the checkpoint has no adapters for tasks"
        if apart := ", ".join(map(str, _adapters_apart(path.parent))):
            why = f"adapters in files of their own are not merged here ({apart}), {_MERGE}"
        raise CheckpointError(f"{path}: task must be left out, was {task!r}: {why}")
    if task is not None and adapters is not None and task not in adapters.tasks:
        raise CheckpointError(f"{path}: task must be one of {', '.join(adapters.tasks)}, was {task!r}")
    return adapters


def _prompts_of(modules: SentenceModules, task: str | None) -> Prompts:
    """Return the prompts; that of a task is the default one."""
    prompts = modules.prompts
    if task is None or task not in prompts.texts:
        return prompts
    return dataclasses.replace(prompts, default=prompts.texts[task])


def _unmerged(folder: Path, adapters: Adapters | None, task: str | None) -> tuple[str, ...]:
    """Name the adapters beside which the weights are served as they are."""
    named = [path.parent.name for path in _adapters_apart(folder)]
    folders = f"the adapters {', '.join(named)} are not served: {_MERGE}"
    if adapters is None or task is not None:
        return (folders,) if named else ()
    return (f"the adapters for {', '.join(adapters.tasks)} are not served: choose one with --task",)


def _adapters_apart(folder: Path) -> list[Path]:
    """Return what describes the adapters of a folder that have folders of their own."""
    return sorted(folder.glob("*/adapter_config.json"))


def _refuse_adapters(folder: Path) -> None:
    path = folder / "adapter_config.json"
    if path.exists():
        raise CheckpointError(
            f"{path}: adapters are not supported: merge this one into the weights (peft's merge_and_unload)"
        )
