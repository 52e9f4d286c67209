"""Which head a checkpoint has, by config.json and modules.json: a classifier, or that of SPLADE."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead_model.checkpoint_files import CheckpointError, integer
from polyhead_model.hf_dialects import DIALECTS
from polyhead_model.hf_layout import ClassifierDialect, Dialect
from polyhead_model.logit_score import LogitScore
from polyhead_model.sentence_modules import SentenceModules
from polyhead_model.sentence_vectors import DenseFile
from polyhead_model.task_heads import Classifier, Dense, ScoreActivation, Splade

Config = Mapping[str, object]

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


def stored_head(
    path: Path, config: Config, modules: SentenceModules, dialect: Dialect
) -> ClassifierDialect | None:
    """Return how a classifier of sequences or tokens is stored; None if the checkpoint is anything else.

    A language model that gives scores gets the classifier of its type, made of rows of its own matrix.

    Only config.json tells: the heads of other tasks may have the same tensors.

    Raises:
        CheckpointError: modules.json says that there is one, and config.json does not.
    """
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    names = [name for name in listed if isinstance(name, str)]
    if modules.logit_score is not None:
        _check_language_model(path, config, dialect, names)
        return dialect.classifier
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


def classifier(
    path: Path, config: Config, modules: SentenceModules, dialect: Dialect, head: ClassifierDialect | None
) -> Classifier | None:
    """Return the classifier that config.json describes, or that modules are; None if there is none.

    Raises:
        CheckpointError: A value is not what it must be, or is not supported.
        ValueError: The classifier cannot be.
    """
    if modules.score is not None:
        return _of_modules(path, config, modules, modules.score)
    if head is None:
        return None
    if modules.logit_score is not None:
        return _of_language_model(path, config, modules, head, modules.logit_score)
    settings = {} if head.fields is None else dict(head.fields(path, config))
    pooling, late = settings.pop("pooling", head.pooling), settings.pop("pools_logits", False)
    dense: tuple[Dense, ...] = ()
    if head.dense is not None:
        width = integer(path, config, dialect.d_model)
        layer = {"activation": head.activation, "norm": head.norm is not None} | settings
        dense = (Dense(width=width, **layer),)
    labels = _labels(path, config)
    others: dict[str, Any] = {} if pooling is None else _of_scores(path, config, modules, labels)
    if pooling == "last" and config.get("pad_token_id") is not None:
        others["padding_id"] = integer(path, config, "pad_token_id")
    return Classifier(
        labels=labels, pooling=pooling, pools_logits=late, dense=dense, bias=head.bias, **others
    )


def _check_language_model(path: Path, config: Config, dialect: Dialect, names: Sequence[str]) -> None:
    """Check that a checkpoint with LogitScore is a language model of a type that is supported."""
    if dialect.language_model is None:
        known = ", ".join(name for name, each in DIALECTS.items() if each.language_model is not None)
        raise CheckpointError(
            f"{path}: model_type must be one of {known} before LogitScore, was {config.get('model_type')!r}"
        )
    if not any(name.endswith("ForCausalLM") for name in names):
        raise CheckpointError(
            f"{path}: architectures must name a …ForCausalLM, as LogitScore reads its logits, "
            f"were {config.get('architectures')!r}"
        )


def _of_language_model(
    path: Path, config: Config, modules: SentenceModules, head: ClassifierDialect, score: LogitScore
) -> Classifier:
    """Return the classifier whose one logit LogitScore makes of those of words."""
    vocabulary = integer(path, config, "vocab_size")
    if (largest := max(score.ids)) >= vocabulary:
        raise CheckpointError(
            f"{path}: vocab_size must be above the token ids of LogitScore, {largest}, was {vocabulary}"
        )
    labels = ("LABEL_0",)
    scores = _of_scores(path, config, modules, labels)
    return Classifier(labels=labels, pooling=head.pooling, bias=head.bias, **scores)


def _of_modules(path: Path, config: Config, modules: SentenceModules, score: DenseFile) -> Classifier:
    """Return the classifier of a CrossEncoder whose scores a Dense gives, as `modules` read it."""
    labels = tuple(f"LABEL_{number}" for number in range(min(score.layer.width, _MAX_LABELS)))
    return Classifier(
        labels=labels,
        pooling=modules.pooling,
        dense=tuple(file.layer for file in modules.dense),
        bias=score.layer.bias,
        **_of_scores(path, config, modules, labels),
    )


def _of_scores(path: Path, config: Config, modules: SentenceModules, labels: Sequence[str]) -> dict[str, Any]:
    """Return what transformers' pipeline makes of logits, and what a CrossEncoder does."""
    kind = config.get("problem_type")
    if kind not in (None, *_SCORES):
        raise CheckpointError(f"{path}: problem_type must be one of {', '.join(_SCORES)}, was {kind!r}")
    activation: ScoreActivation | None = "sigmoid" if len(labels) == 1 else None
    if (name := _activation_fn(config, modules)) is not None:
        activation = _SCORE_ACTIVATIONS.get(name)
    return {"scores": None if kind is None else _SCORES[str(kind)], "activation": activation}


def left_out_of_scores(config: Config, modules: SentenceModules) -> tuple[str, ...]:
    """Return the activation of a CrossEncoder's scores, in words, if we have no such one."""
    name = _activation_fn(config, modules)
    if name in (None, *_SCORE_ACTIVATIONS):
        return ()
    return (f"the activation of scores is not served ({name}): see scores in metadata",)


def _activation_fn(config: Config, modules: SentenceModules) -> str | None:
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


def splade(path: Path, config: Config, modules: SentenceModules, dialect: Dialect) -> Splade | None:
    """Return the head of SPLADE, if the modules say that there is one.

    Raises:
        CheckpointError: The checkpoint has none, or of a type that is not supported.
    """
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


def _labels(path: Path, config: Config) -> tuple[str, ...]:
    """Return the names of the labels, which config.json leaves out if they are the default: two."""
    named = config.get("id2label")
    if named is None:
        count = 2 if config.get("num_labels") is None else integer(path, config, "num_labels")
        named = {str(number): f"LABEL_{number}" for number in range(min(count, _MAX_LABELS))}
    if not isinstance(named, dict) or set(named) != {str(number) for number in range(len(named))}:
        raise CheckpointError(f"{path}: id2label must name the labels 0, 1, …, was {named!r:.200}")
    # Numbers are names, too.
    return tuple(
        str(name) if isinstance(name, int | float) else name
        for name in (named[str(number)] for number in range(len(named)))
    )
