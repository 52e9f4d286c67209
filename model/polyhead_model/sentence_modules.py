"""Read what sentence-transformers adds to a checkpoint: pooling, dense layers, prompts, length limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from polyhead_model.checkpoint_files import CheckpointError, flag, inside, integer, read_json, read_object
from polyhead_model.config import Dense, DenseActivation, Pooling, Splade
from polyhead_model.late_interaction import (
    LateInteraction,
    TextForm,
    is_pylate,
    read_multi_vector,
    read_pylate,
)
from polyhead_model.tokenizer_files import TOKENIZER, lowercases

_CONFIG = "config_sentence_transformers.json"

Task = Literal["feature-extraction", "sequence-classification", "fill-mask"]
"""What the transformer is loaded for: a CrossEncoder's has a classifier, SPLADE's predicts words."""

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

_ACTIVATIONS: Mapping[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "ELU": "elu",
    "LeakyReLU": "leaky_relu",
    "Mish": "mish",
    "Softplus": "softplus",
}
"""Classes of torch.nn, which sentence-transformers makes without arguments → ours."""

_NO_FORMS: Mapping[str, TextForm] = MappingProxyType({})

_CALLS = ("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args")
"""The keys under which sentence-transformers stores extra arguments for tokenizers and configurations."""

_AFTER_POOLING = ("Dense", "Normalize", "Dropout")
_OF_TOKENS = (*_AFTER_POOLING, "MultiVectorMask")

_POOLED, _TOKENS = ("sentence_embedding",), ("token_embeddings",)
"""What modules read and write."""
_BY_PYLATE = (*_TOKENS, *_POOLED)
"""Its layers are of tokens, whatever their configuration says."""


@dataclass(frozen=True, kw_only=True)
class DenseFile:
    """A dense layer, and the folder of its weights."""

    folder: Path
    in_features: int
    layer: Dense


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What may be put before texts."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    default: str = ""
    """The text that is put before every text unless a request says otherwise; may be empty."""
    forms: Mapping[str, TextForm] = field(default_factory=dict)
    """What else some of their names do, by name."""
    form: TextForm | None = None
    """What else is done by default."""


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
    splade: Splade | None = None
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
            return cls(transformer=folder, prompts=_read_prompts(settings, prompt_name))
        modules = read_json(path)
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{path}: must be a list of modules")
        # Releases of sentence-transformers moved these classes between modules, under the same names.
        kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
        if kinds in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
            folders = [inside(path, module.get("path", "")) for module in modules]
            return cls._with_splade(path, folders, _read_prompts(settings, prompt_name))
        # Without a mask, only what PyLate writes tells them from modules whose pooling is missing.
        of_tokens = (
            bool(kinds[1:2])
            and kinds[1] in _OF_TOKENS
            and ("MultiVectorMask" in kinds or is_pylate(_settings(settings)))
        )
        if (
            kinds[:1] != ["Transformer"]
            or (kinds[1:2] not in ([], ["Pooling"]) and not of_tokens)
            or not all(kind in (_OF_TOKENS if of_tokens else _AFTER_POOLING) for kind in kinds[2:])
        ):
            raise CheckpointError(
                f"{path}: modules must be Transformer, then (if wanted) Pooling, and after it any of "
                f"{', '.join(_AFTER_POOLING)}; or for vectors of tokens any of {', '.join(_OF_TOKENS)} "
                f"(without a mask, PyLate's settings must be in {_CONFIG}); or "
                "Transformer and SpladePooling; were "
                f"{', '.join(kinds) or 'none'}"
            )
        folders = [inside(path, module.get("path", "")) for module in modules]
        task, max_tokens = _read_transformer(folders[0])
        if task == "fill-mask":
            raise CheckpointError(
                f"{path}: a transformer with the task 'fill-mask' must be followed by SpladePooling alone"
            )
        if len(kinds) > 1 and task != "feature-extraction":
            raise CheckpointError(
                f"{path}: a transformer with the task {task!r} must be the only module, "
                f"were {', '.join(kinds)}"
            )
        after = list(zip(kinds, folders, strict=True))[1:]
        if of_tokens:
            return cls._of_tokens(folder, folders[0], after, task=task, prompt_name=prompt_name)
        prompts = _read_prompts(settings, prompt_name)
        said = _settings(settings)
        if len(kinds) == 1:
            return cls(
                transformer=folders[0],
                task=task,
                activation_fn=said.get("activation_fn"),
                max_tokens=max_tokens,
                prompts=prompts,
            )
        config_path = folders[1] / "config.json"
        config = read_object(config_path)
        left_out: tuple[str, ...] = ()
        if not flag(config_path, config, "include_prompt", default=True):
            prompts, left_out = _without_pooled_prompts(config_path, prompts)
        dense, normalise = _read_modules(after[1:], _POOLED)
        return cls(
            transformer=folders[0],
            task=task,
            pooling=_read_pooling(config_path, config),
            dense=dense,
            normalise=normalise,
            truncate_dim=_truncate_dim(settings, said),
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
        masks = [place for kind, place in modules if kind == "MultiVectorMask"]
        dense, normalise = _read_modules(modules, _TOKENS if masks else _BY_PYLATE)
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
            prompts=_read_prompts(path, prompt_name, late.forms),
            left_out=("scores are sums over the query's tokens, not their means",) if means else (),
        )

    @classmethod
    def _with_splade(cls, path: Path, folders: Sequence[Path], prompts: Prompts) -> Self:
        """Read the modules of SPLADE; the older MLMTransformer does not say its task."""
        task, max_tokens = _read_transformer(folders[0])
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


def _read_prompts(path: Path, name: str | None, forms: Mapping[str, TextForm] = _NO_FORMS) -> Prompts:
    """Read the prompts, beside those that have forms, and choose the default one."""
    config = _settings(path)
    given = config.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise CheckpointError(f"{path}: prompts must be texts by name, were {given!r}")
    prompts = dict.fromkeys(forms, "") | {name: text or "" for name, text in given.items()}
    if "" in prompts:
        raise CheckpointError(f"{path}: a prompt's name must not be empty: that stands for no prompt")
    known = ", ".join(map(repr, prompts)) or "none"
    wanted = config.get("default_prompt_name") if name is None else name
    default = prompts.get(wanted) if isinstance(wanted, str) else None
    if default is None and wanted not in (None, ""):
        what = "default_prompt_name" if name is None else "the prompt"
        raise CheckpointError(f"{path}: {what} must be one of prompts ({known}), was {wanted!r}")
    form = forms.get(wanted) if isinstance(wanted, str) else None
    return Prompts(texts=prompts, default=default or "", forms=dict(forms), form=form)


def _without_pooled_prompts(path: Path, prompts: Prompts) -> tuple[Prompts, tuple[str, ...]]:
    """Leave out the prompts whose tokens would have to be left out of pooling; say which."""
    if prompts.default:
        raise CheckpointError(
            f"{path}: include_prompt must be true where there is a default prompt ({prompts.default!r}), was "
            "false: pooling without the prompt's tokens is not supported; leave the prompt out (--no-prompt)"
        )
    empty = {name: text for name, text in prompts.texts.items() if not text}
    others = ", ".join(name for name in prompts.texts if name not in empty)
    left_out = f"the prompts {others} are not served: pooling would have to leave their tokens out"
    return Prompts(texts=empty), (left_out,) if others else ()


def _read_modules(
    modules: Sequence[tuple[str, Path]], names: tuple[str, ...]
) -> tuple[tuple[DenseFile, ...], bool]:
    """Read the modules on vectors; return the dense layers, and whether the result is normalised."""
    dense: list[DenseFile] = []
    normalise = False
    for kind, folder in modules:
        path = folder / "config.json"
        if kind == "Normalize":
            config = read_object(path) if path.is_file() else {}
            _check_names(path, config, names)
            normalise = True
        elif kind == "Dense":
            dense.append(_read_dense(folder, names, normalise=normalise))
            normalise = False
        # Dropout is for training only, and a mask changes no vectors.
    return tuple(dense), normalise


def _read_dense(folder: Path, names: tuple[str, ...], *, normalise: bool) -> DenseFile:
    path = folder / "config.json"
    config = read_object(path)
    _check_names(path, config, names)
    if flag(path, config, "use_residual", default=False):
        raise CheckpointError(f"{path}: use_residual must be false, was true: it is not supported")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    module, _, activation = str(name).rpartition(".")
    if not f"{module}.".startswith("torch.nn.") or activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path}: activation_function must be one of torch.nn's {', '.join(_ACTIVATIONS)}, was {name!r}"
        )
    try:
        layer = Dense(
            width=integer(path, config, "out_features"),
            activation=_ACTIVATIONS[activation],
            bias=flag(path, config, "bias", default=True),
            normalise=normalise,
        )
    except ValueError as error:
        raise CheckpointError(f"{path}: out_features: {error}") from error
    return DenseFile(folder=folder, in_features=integer(path, config, "in_features"), layer=layer)


def _check_names(path: Path, config: Mapping[str, object], names: tuple[str, ...]) -> None:
    """Reject a module that reads or writes something other than the vectors before it."""
    read = config.get("module_input_name", names[0])
    written = config.get("module_output_name") or read
    if read != written or read not in names:
        what = "pooled vectors" if names == _POOLED else "vectors of tokens"
        raise CheckpointError(
            f"{path}: module_input_name and module_output_name must be {names[0]!r}, were {read!r} "
            f"and {config.get('module_output_name')!r}: only {what} go through such modules"
        )


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
        for name in _CALLS:
            given = config.get(name) or {}
            if not isinstance(given, dict) or given.keys() - {"trust_remote_code"}:
                raise CheckpointError(f"{path}: {name} must be empty, was {given!r}: it is not supported")
        if config.get("do_lower_case") and not lowercases(read_object(folder / TOKENIZER)):
            raise CheckpointError(
                f"{path}: do_lower_case must be false, was true: polyhead leaves that to tokenizer.json, "
                "whose normalizer keeps upper case"
            )
        if config.get("max_seq_length") is not None:
            max_tokens = integer(path, config, "max_seq_length")
            if max_tokens < 1:
                raise CheckpointError(f"{path}: max_seq_length must be at least 1, was {max_tokens}")
    return task, max_tokens


def _read_task(path: Path, config: Mapping[str, object]) -> Task:
    given = config.get("transformer_task", "feature-extraction")
    task = next((task for task in get_args(Task) if task == given), None)
    if task is None:
        raise CheckpointError(
            f"{path}: transformer_task must be one of {', '.join(get_args(Task))}, was {given!r}"
        )
    return task  # type: ignore[no-any-return]  # get_args has no better type
