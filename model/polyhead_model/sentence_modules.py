"""Read what sentence-transformers adds to a checkpoint: pooling, dense layers, prompts, length limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from polyhead_model.checkpoint_files import CheckpointError, flag, inside, integer, read_json, read_object
from polyhead_model.late_interaction import (
    MEANS_LEFT_OUT,
    LateInteraction,
    is_pylate,
    read_multi_vector,
    read_pylate,
)
from polyhead_model.logit_score import LogitScore, read_logit_score
from polyhead_model.prompts import Prompts, in_pairs, read_prompts, without_pooled_prompts
from polyhead_model.sentence_vectors import (
    AFTER_POOLING,
    BY_PYLATE,
    OF_TOKENS,
    POOLED,
    TOKENS,
    DenseFile,
    read_vector_modules,
)
from polyhead_model.task_heads import Pooling, Splade
from polyhead_model.tokenizer_files import lowercases

_CONFIG = "config_sentence_transformers.json"

Task = Literal["feature-extraction", "sequence-classification", "fill-mask", "text-generation"]
"""What the transformer is loaded for: a CrossEncoder's has a classifier, or predicts the next word; SPLADE's
predicts words.
"""

_OUTPUTS: Mapping[Task, tuple[str, str]] = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "fill-mask": ("logits", "token_embeddings"),
    "text-generation": ("logits", "causal_logits"),
}
"""What counts of a transformer's outputs, and what the modules behind it call that."""

_POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""Theirs → ours, in the order in which they concatenate several."""

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_CALLS = ("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args")
"""The keys under which sentence-transformers stores extra arguments for tokenizers and configurations."""


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The modules of modules.json; a folder without that file is a transformer alone."""

    transformer: Path
    """The folder of config.json and the weights."""
    task: Task | None = None
    """None if there is no modules.json."""
    pooling: Pooling | None = None
    dense: tuple[DenseFile, ...] = ()
    normalise: bool = False
    score: DenseFile | None = None
    """The layer that gives a CrossEncoder's logits, of what `dense` makes of pooled vectors."""
    splade: Splade | None = None
    logit_score: LogitScore | None = None
    """What makes a language model's logits a score."""
    late: LateInteraction | None = None
    """Where there are vectors of tokens instead of a pooling; `dense` makes them."""
    truncate_dim: int | None = None
    """How many dimensions of pooled vectors are left; None = all."""
    activation_fn: str | None = None
    """The class of torch.nn that a CrossEncoder applies to its logits, if that is named here."""
    max_tokens: int | None = None
    """The length, in tokens, at which sentence-transformers truncates text, if given."""
    prompts: Prompts = field(default_factory=Prompts)
    left_out: tuple[str, ...] = ()
    """What cannot be served, in words."""

    @classmethod
    def read(cls, folder: Path, *, prompt_name: str | None = None) -> Self:
        """Read modules.json and the files that it names.

        Args:
            folder: A folder with modules.json, or a transformer alone.
            prompt_name: The name of the default prompt; None = the checkpoint's own, empty = none.

        Raises:
            CheckpointError: The modules are not ones that polyhead supports, or there is no such prompt.
        """
        path, settings = folder / "modules.json", folder / _CONFIG
        if not path.is_file():
            return cls(
                transformer=folder,
                truncate_dim=_truncate_dim(settings, _settings(settings)),
                prompts=read_prompts(settings, prompt_name),
            )
        modules = read_json(path)
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{path}: must be a list of modules")
        # Releases of sentence-transformers moved these classes between modules, under the same names.
        kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
        if kinds in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
            folders = [inside(path, module.get("path", "")) for module in modules]
            return cls._with_splade(path, folders, read_prompts(settings, prompt_name))
        if kinds == ["Transformer", "LogitScore"]:
            folders = [inside(path, module.get("path", "")) for module in modules]
            return cls._with_logit_score(path, folders, read_prompts(settings, prompt_name))
        # Without a mask, only what PyLate writes tells them from modules whose pooling is missing.
        of_tokens = (
            bool(kinds[1:2])
            and kinds[1] in OF_TOKENS
            and ("MultiVectorMask" in kinds or is_pylate(_settings(settings)))
        )
        if (
            kinds[:1] != ["Transformer"]
            or (kinds[1:2] not in ([], ["Pooling"]) and not of_tokens)
            or not all(kind in (OF_TOKENS if of_tokens else AFTER_POOLING) for kind in kinds[2:])
        ):
            raise CheckpointError(
                f"{path}: modules must be Transformer, then (if wanted) Pooling, and after it any of "
                f"{', '.join(AFTER_POOLING)}; or for vectors of tokens any of {', '.join(OF_TOKENS)} "
                f"(without a mask, PyLate's settings must be in {_CONFIG}); or "
                "Transformer and SpladePooling, or LogitScore; were "
                f"{', '.join(kinds) or 'none'}"
            )
        folders = [inside(path, module.get("path", "")) for module in modules]
        task, max_tokens = _read_transformer(folders[0])
        if task in ("fill-mask", "text-generation"):
            one = "SpladePooling" if task == "fill-mask" else "LogitScore"
            raise CheckpointError(
                f"{path}: a transformer with the task {task!r} must be followed by {one} alone"
            )
        if len(kinds) > 1 and task != "feature-extraction":
            raise CheckpointError(
                f"{path}: a transformer with the task {task!r} must be the only module, "
                f"were {', '.join(kinds)}"
            )
        after = list(zip(kinds, folders, strict=True))[1:]
        if of_tokens:
            return cls._of_tokens(folder, folders[0], after, task=task, prompt_name=prompt_name)
        prompts = read_prompts(settings, prompt_name)
        said = _settings(settings)
        if len(kinds) == 1:
            return cls(
                transformer=folders[0],
                task=task,
                activation_fn=said.get("activation_fn"),
                truncate_dim=_truncate_dim(settings, said),
                max_tokens=max_tokens,
                prompts=in_pairs(prompts, folders[0]) if task == "sequence-classification" else prompts,
            )
        config_path = folders[1] / "config.json"
        config = read_object(config_path)
        left_out: tuple[str, ...] = ()
        if not flag(config_path, config, "include_prompt", default=True):
            prompts, left_out = without_pooled_prompts(config_path, prompts)
        dense, normalise = read_vector_modules(after[1:], POOLED)
        score = dense[-1] if dense and dense[-1].scores else None
        if score is not None:
            dense = dense[:-1]
        return cls(
            transformer=folders[0],
            task=task,
            pooling=_read_pooling(config_path, config),
            dense=dense,
            normalise=normalise,
            score=score,
            activation_fn=said.get("activation_fn"),
            truncate_dim=None if score else _truncate_dim(settings, said),
            max_tokens=max_tokens,
            prompts=prompts,
            left_out=left_out,
        )

    @classmethod
    def _of_tokens(
        cls,
        folder: Path,
        transformer: Path,
        modules: Sequence[tuple[str, Path]],
        *,
        task: Task,
        prompt_name: str | None,
    ) -> Self:
        """Read the modules of late interaction, behind the transformer.

        Their own lengths count: tokenizers that were saved have the limit of the last text.
        """
        path = folder / _CONFIG
        config = _settings(path)
        if config.get("truncate_dim") is not None:
            raise CheckpointError(
                f"{path}: truncate_dim must be left out, was {config['truncate_dim']!r}: vectors of tokens "
                "are not cut"
            )
        masks = [place for kind, place in modules if kind == "MultiVectorMask"]
        dense, normalise = read_vector_modules(modules, TOKENS if masks else BY_PYLATE)
        if masks and not normalise:
            raise CheckpointError(
                f"{folder / 'modules.json'}: Normalize must follow the last Dense, does not"
            )
        late = read_multi_vector(transformer, masks[0]) if masks else read_pylate(path, config, transformer)
        means = config.get("similarity_fn_name") == "meanmaxsim"
        return cls(
            transformer=transformer,
            task=task,
            dense=dense,
            late=late,
            prompts=read_prompts(path, prompt_name, late.forms),
            left_out=(MEANS_LEFT_OUT,) if means else (),
        )

    @classmethod
    def _with_splade(cls, path: Path, folders: Sequence[Path], prompts: Prompts) -> Self:
        """Read the modules of SPLADE; the older MLMTransformer does not say its task."""
        task, max_tokens = _read_transformer(folders[0])
        most = _settings(path.parent / _CONFIG).get("max_active_dims")
        if task == "sequence-classification":
            raise CheckpointError(
                f"{path}: the task of a transformer before SpladePooling must be 'fill-mask'"
            )
        return cls(
            transformer=folders[0],
            task="fill-mask",
            splade=_read_splade(folders[1] / "config.json"),
            max_tokens=max_tokens,
            prompts=prompts,
            left_out=()
            if most is None
            else (f"all words of a text are returned, not the largest {most} alone: ask for so many",),
        )

    @classmethod
    def _with_logit_score(cls, path: Path, folders: Sequence[Path], prompts: Prompts) -> Self:
        """Read the modules of a CrossEncoder that is a language model."""
        task, max_tokens = _read_transformer(folders[0])
        if task != "text-generation":
            raise CheckpointError(
                f"{path}: the task of a transformer before LogitScore must be 'text-generation', was {task!r}"
            )
        return cls(
            transformer=folders[0],
            task=task,
            logit_score=read_logit_score(folders[1]),
            activation_fn=_settings(path.parent / _CONFIG).get("activation_fn"),
            max_tokens=max_tokens,
            prompts=in_pairs(prompts, folders[0]),
        )


def _read_splade(path: Path) -> Splade:
    config = read_object(path)
    activation = config.get("activation_function", "relu")
    if activation not in {"relu", "log1p_relu"}:
        raise CheckpointError(f"{path}: activation_function must be relu or log1p_relu, was {activation!r}")
    pooling: Any = config.get("pooling_strategy", "max")
    try:
        return Splade(pooling=pooling, log_twice=activation == "log1p_relu")
    except ValueError as error:
        raise CheckpointError(f"{path}: pooling_strategy: {error}") from error


def _truncate_dim(path: Path, config: Mapping[str, object]) -> int | None:
    if config.get("truncate_dim") is None:
        return None
    count = integer(path, config, "truncate_dim")
    if count < 1:
        raise CheckpointError(f"{path}: truncate_dim must be at least 1, was {count}")
    return count


def _settings(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}


def _read_pooling(path: Path, config: Mapping[str, object]) -> Pooling:
    modes = config.get("pooling_mode")
    if modes is None:  # older releases wrote one flag for each mode
        modes = [mode for name, mode in _POOLING_FLAGS.items() if config.get(name)] or ["mean"]
    wanted = modes if isinstance(modes, list) else [modes]
    if len(wanted) == 1 and isinstance(wanted[0], str) and wanted[0] in _POOLINGS:
        return _POOLINGS[wanted[0]]
    raise CheckpointError(
        f"{path}: pooling must be one of {', '.join(_POOLINGS)}, was {' + '.join(map(str, wanted))}"
    )


def _read_transformer(folder: Path) -> tuple[Task, int | None]:
    """Read the task of the transformer, and the length at which text is truncated."""
    task: Task = "feature-extraction"
    max_tokens = None
    for path in sorted(folder.glob("sentence_*_config.json")):  # sentence_bert_…, sentence_roberta_…
        config = read_object(path)
        task = _read_task(path, config)
        _check_modalities(path, config, task)
        for name in _CALLS:
            given = config.get(name) or {}
            known = {"trust_remote_code"}
            known |= {"chat_template"} if name == "processing_kwargs" and _has_template(config) else set()
            if not isinstance(given, dict) or given.keys() - known:
                raise CheckpointError(f"{path}: {name} must be empty, was {given!r}: it is not supported")
        if config.get("max_seq_length") is not None:
            max_tokens = integer(path, config, "max_seq_length")
            if max_tokens < 1:
                raise CheckpointError(f"{path}: max_seq_length must be at least 1, was {max_tokens}")
    return task, max_tokens


def check_lower_case(folder: Path, tokenizer: Mapping[str, object]) -> None:
    """Reject a transformer that lowercases text, unless its tokenizer does so as it is served.

    Args:
        folder: The transformer's.
        tokenizer: The contents of the tokenizer.json that is served.

    Raises:
        CheckpointError: It does not.
    """
    for path in sorted(folder.glob("sentence_*_config.json")):
        if read_object(path).get("do_lower_case") and not lowercases(tokenizer):
            raise CheckpointError(
                f"{path}: do_lower_case must be false, was true: polyhead leaves that to the tokenizer, "
                "whose normalizer keeps upper case"
            )


def _check_modalities(path: Path, config: Mapping[str, object], task: Task) -> None:
    """Reject a transformer that takes more than texts, or of which another output counts."""
    output, written = _OUTPUTS[task]
    modes: dict[str, Any] = {"text": {"method": "forward", "method_output_name": output}}
    if _has_template(config) and task in ("sequence-classification", "text-generation"):
        kind = config["modality_config"]["message"].get("format")  # type: ignore[index]  # checked there
        modes["message"] = modes["text"] | {"format": "structured" if kind == "structured" else "flat"}
    for name, wanted in (("modality_config", modes), ("module_output_name", written)):
        if config.get(name, wanted) != wanted:
            raise CheckpointError(f"{path}: {name} must be {wanted!r}, was {config[name]!r}")


def _has_template(config: Mapping[str, object]) -> bool:
    """Return whether pairs of texts are messages that a chat template makes one text of."""
    modes = config.get("modality_config")
    return isinstance(modes, dict) and isinstance(modes.get("message"), dict)


def _read_task(path: Path, config: Mapping[str, object]) -> Task:
    given = config.get("transformer_task", "feature-extraction")
    task = next((task for task in get_args(Task) if task == given), None)
    if task is None:
        raise CheckpointError(
            f"{path}: transformer_task must be one of {', '.join(get_args(Task))}, was {given!r}"
        )
    return task  # type: ignore[no-any-return]  # get_args has no better type
