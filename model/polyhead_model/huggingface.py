"""Read everything in a Hugging Face folder except the weights, which `polyhead_model.checkpoint` reads.

Needs no torch, so that checkpoints can be described without it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyhead_model import hf_fields
from polyhead_model.checkpoint_files import CheckpointError, integer, read_object
from polyhead_model.config import (
    MOST_LAYERS,
    Activation,
    Classifier,
    Dense,
    EncoderConfig,
    Pooling,
    ScoreActivation,
    Splade,
    TokenVectors,
)
from polyhead_model.hf_dialects import DIALECTS, ClassifierDialect, Dialect
from polyhead_model.late_interaction import LateInteraction
from polyhead_model.matryoshka import read_matryoshka
from polyhead_model.sentence_modules import DenseFile, Prompts, SentenceModules
from polyhead_model.tokenizer_files import TOKENIZER, check_tokenizer, tokenizer_limit

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Theirs → ours."""

_SCORES: Mapping[str, ScoreActivation | None] = {
    "regression": "identity",
    "single_label_classification": None,
    "multi_label_classification": "sigmoid",
}
"""What makes scores of logits, by `problem_type`; None: a softmax, or the sigmoid of a single one."""

_SCORE_ACTIVATIONS: Mapping[str, ScoreActivation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
"""Classes of torch.nn → ours."""

_MAX_LABELS = 2**20
"""More labels than any weights have; the number in config.json is not trusted."""


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Everything about a checkpoint except its weights."""

    model_type: str
    """As in config.json; a key of `DIALECTS`."""
    dialect: Dialect
    encoder: EncoderConfig
    head: ClassifierDialect | None
    """Of the encoder's classifier; None if it has none."""
    folder: Path
    """The folder of config.json and the weights."""
    tokenizer: Path | None
    """Its tokenizer.json, if there is one."""
    prompts: Prompts
    """What sentence-transformers may put before texts."""
    dense: tuple[DenseFile, ...]
    """The dense layers behind pooling, or of vectors of tokens."""
    max_tokens: int
    """The longest text: sentence-transformers' max_seq_length, otherwise the tokenizer's own limit, and at
    most the model's positions."""
    position_offset: int
    """The number of leading rows of the position table that no token uses."""
    folded_types: bool
    """Whether the model has a single token type, a constant that is added to the positions."""
    left_out: tuple[str, ...]
    """What cannot be served, in words, as far as it can be seen without the weights."""


def read_checkpoint_info(
    folder: Path, *, prompt_name: str | None = None, pooling: Pooling | None = None, normalise: bool = False
) -> CheckpointInfo:
    """Read a local Hugging Face or sentence-transformers folder, without the weights.

    Args:
        folder: A folder with config.json, or with the modules.json of sentence-transformers.
        prompt_name: The name of the prompt to use by default, among those of sentence-transformers; None
            means the checkpoint's own choice, and empty no prompt.
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
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in DIALECTS:
        raise CheckpointError(f"{path}: model_type must be one of {', '.join(DIALECTS)}, was {model_type!r}")
    dialect = DIALECTS[model_type]
    _refuse_variants(path, config)
    _refuse_adapters(modules.transformer)
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
    truncate_dim = modules.truncate_dim if modules.truncate_dim and modules.truncate_dim < width else None
    matryoshka = None if modules.pooling is None else read_matryoshka(path, config, width=width)
    if truncate_dim is not None and matryoshka:
        matryoshka = tuple(each for each in matryoshka if each <= truncate_dim) or None
    described: hf_fields.Fields = {
        "d_model": integer(path, config, dialect.d_model),
        "heads": integer(path, config, dialect.heads),
        "layers": layers,
        "kept_heads": _kept_heads(path, config, dialect),
        "feed_forward": dialect.feed_forward and integer(path, config, dialect.feed_forward),
        "activation": _activation(path, config, dialect.activation),
        "layer_norm_epsilon": default if named is None else config.get(named, default),
        "vocabulary": integer(path, config, "vocab_size"),
        "positions": positions,
        "types": 0 if types == 1 else types,
        "pooling": modules.pooling,
        "normalise": modules.normalise,
        ("dense" if modules.late is None else "token_vectors"): _dense_of(modules),
        "truncate_dim": truncate_dim,
        "matryoshka": matryoshka,
    }
    try:
        head = _head(path, config, modules, dialect)
        described["classifier"] = None if head is None else _classifier(path, config, modules, dialect, head)
        described["splade"] = _splade(path, config, modules, dialect)
        encoder = EncoderConfig(**(described | fields))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if modules.late is not None:
        _check_expansion(path, encoder, modules.late)
    left_out, activation = modules.left_out, _activation_fn(config, modules)
    if encoder.classifier is not None and activation not in (None, *_SCORE_ACTIVATIONS):
        left_out = (
            *left_out,
            f"the activation of scores is not served ({activation}), but the sigmoid is",
        )
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
        prompts=modules.prompts,
        dense=modules.dense,
        max_tokens=min(positions, limit or positions),
        position_offset=padding_id or 0,
        folded_types=types == 1,
        left_out=left_out,
    )


def _dense_of(modules: SentenceModules) -> tuple[Dense, ...] | TokenVectors:
    dense = tuple(file.layer for file in modules.dense)
    if (late := modules.late) is None:
        return dense
    return TokenVectors(dense=dense, skipped_ids=late.skipped_ids, expansion_id=late.expansion_id)


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


def _head(
    path: Path, config: Mapping[str, object], modules: SentenceModules, dialect: Dialect
) -> ClassifierDialect | None:
    """Return how a classifier of sequences or tokens is stored; None if the checkpoint is anything else.

    Only config.json tells: the heads of other tasks may have the same tensors.
    """
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    names = [name for name in listed if isinstance(name, str)]
    classifies = any(name.endswith("ForSequenceClassification") for name in names)
    if modules.task == "sequence-classification" and not classifies:
        raise CheckpointError(
            f"{path}: architectures must name a …ForSequenceClassification, as transformer_task is "
            f"{modules.task!r}, were {architectures!r}"
        )
    if modules.task == "feature-extraction":
        return None
    if classifies:
        return dialect.classifier
    tags = any(name.endswith("ForTokenClassification") for name in names)
    return dialect.token_classifier if tags else None


def _classifier(
    path: Path,
    config: Mapping[str, object],
    modules: SentenceModules,
    dialect: Dialect,
    head: ClassifierDialect,
) -> Classifier:
    """Return the classifier that config.json describes."""
    settings = {} if head.fields is None else dict(head.fields(path, config))
    pooling = settings.pop("pooling", head.pooling)
    dense: tuple[Dense, ...] = ()
    if head.dense is not None:
        width = integer(path, config, dialect.d_model)
        layer = {"activation": head.activation, "norm": head.norm is not None} | settings
        dense = (Dense(width=width, **layer),)
    labels = _labels(path, config)
    of_scores: dict[str, Any] = {}
    if pooling is not None:
        activation = _score_activation(_activation_fn(config, modules), labels)
        of_scores = {"scores": _scores(path, config), "activation": activation}
    if pooling == "last" and config.get("pad_token_id") is not None:
        of_scores["padding_id"] = integer(path, config, "pad_token_id")
    return Classifier(labels=labels, pooling=pooling, dense=dense, bias=head.bias, **of_scores)


def _scores(path: Path, config: Mapping[str, object]) -> ScoreActivation | None:
    """Return what transformers' pipeline makes of the logits of this `problem_type`."""
    kind = config.get("problem_type")
    if kind not in (None, *_SCORES):
        raise CheckpointError(f"{path}: problem_type must be one of {', '.join(_SCORES)}, was {kind!r}")
    return None if kind is None else _SCORES[str(kind)]


def _activation_fn(config: Mapping[str, object], modules: SentenceModules) -> str | None:
    """Return the class of torch.nn that the CrossEncoder of sentence-transformers applies to its logits.

    It passes by what is not of torch, as we do. None = none is named.
    """
    own = config.get("sentence_transformers")
    named = [
        modules.activation_fn,
        own.get("activation_fn") if isinstance(own, dict) else None,
        config.get("sbert_ce_default_activation_function"),
    ]
    of_torch = (name for name in named if isinstance(name, str) and name.startswith("torch."))
    return next((name.rpartition(".")[2] for name in of_torch), None)


def _score_activation(name: str | None, labels: Sequence[str]) -> ScoreActivation | None:
    """Return what a CrossEncoder makes of logits; None if nothing says so, or we have no such activation."""
    if name is not None:
        return _SCORE_ACTIVATIONS.get(name)
    return "sigmoid" if len(labels) == 1 else None


def _splade(
    path: Path, config: Mapping[str, object], modules: SentenceModules, dialect: Dialect
) -> Splade | None:
    """Return the head of SPLADE, if the modules say that there is one."""
    if modules.splade is None:
        return None
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    if not any(isinstance(name, str) and name.endswith("ForMaskedLM") for name in names):
        raise CheckpointError(
            f"{path}: architectures must name a …ForMaskedLM, as SPLADE pools its logits, "
            f"were {architectures!r}"
        )
    if dialect.masked_lm is None:
        known = ", ".join(name for name, each in DIALECTS.items() if each.masked_lm is not None)
        raise CheckpointError(
            f"{path}: model_type must be one of {known} for sparse vectors, was {config.get('model_type')!r}"
        )
    return modules.splade


def _labels(path: Path, config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the labels, which config.json leaves out if they are the default: two."""
    named = config.get("id2label")
    if named is None:
        count = 2 if config.get("num_labels") is None else integer(path, config, "num_labels")
        named = {str(number): f"LABEL_{number}" for number in range(min(count, _MAX_LABELS))}
    if not isinstance(named, dict) or set(named) != {str(number) for number in range(len(named))}:
        raise CheckpointError(f"{path}: id2label must name the labels 0, 1, …, was {named!r}")
    return tuple(named[str(number)] for number in range(len(named)))


def _activation(path: Path, config: Mapping[str, object], name: str | None) -> Activation:
    if name is None:
        return "gelu"
    value = config.get(name)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise CheckpointError(f"{path}: {name} must be one of {', '.join(ACTIVATIONS)}, was {value!r}")
    return ACTIVATIONS[value]


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


def _refuse_variants(path: Path, config: Mapping[str, object]) -> None:
    """Reject variants of any type that share its name, but not its equations."""
    code = config.get("auto_map")
    if isinstance(code, dict) and "AutoModel" in code:
        raise CheckpointError(
            f"{path}: auto_map must not name an AutoModel, was {code['AutoModel']!r}: the encoder is defined "
            "by code of its own, which polyhead does not run"
        )
    if config.get("is_decoder"):
        raise CheckpointError(f"{path}: is_decoder must be false, was true: polyhead serves encoders")


def _refuse_adapters(folder: Path) -> None:
    path = folder / "adapter_config.json"
    if path.exists():
        raise CheckpointError(
            f"{path}: adapters are not supported: merge this one into the weights (peft's merge_and_unload)"
        )
