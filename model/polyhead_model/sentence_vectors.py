"""Read the modules of sentence-transformers on vectors: dense layers, their norms, scaling to length 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, flag, integer, read_object
from polyhead_model.task_heads import Dense, DenseActivation

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

AFTER_POOLING = ("Dense", "LayerNorm", "Normalize", "Dropout")
OF_TOKENS = ("Dense", "Normalize", "Dropout", "MultiVectorMask")

POOLED, TOKENS = ("sentence_embedding",), ("token_embeddings",)
"""What modules read and write."""
_SCORES = "scores"
"""What the last module of a CrossEncoder writes."""
_NORM_EPSILON = 1e-5
"""Of `torch.nn.LayerNorm` without arguments, which sentence-transformers makes."""
BY_PYLATE = (*TOKENS, *POOLED)
"""Its layers are of tokens, whatever their configuration says."""


@dataclass(frozen=True, kw_only=True)
class DenseFile:
    """A dense layer, and the folder of its weights."""

    folder: Path
    in_features: int
    layer: Dense
    norm: Path | None = None
    """The folder of the weights of its norm, if it has one."""
    scores: bool = False
    """Whether it writes a CrossEncoder's scores, not vectors."""


def read_vector_modules(
    modules: Sequence[tuple[str, Path]], names: tuple[str, ...]
) -> tuple[tuple[DenseFile, ...], bool]:
    """Read the modules on vectors.

    Args:
        modules: Their kinds and folders.
        names: What they may read and write.

    Returns:
        The dense layers, of which the last may be a CrossEncoder's, and whether the result is scaled.

    Raises:
        CheckpointError: A module is not one that we have, or not in this place.
    """
    dense: list[DenseFile] = []
    normalise = False
    for kind, folder in modules:
        path = folder / "config.json"
        if dense and dense[-1].scores and kind != "Dropout":
            raise CheckpointError(
                f"{dense[-1].folder}: a Dense that writes {_SCORES!r} must be the last module"
            )
        if kind == "Normalize":
            config = read_object(path) if path.is_file() else {}
            _check_names(path, config, names)
            normalise = True
        elif kind == "Dense":
            dense.append(_read_dense(folder, names, normalise=normalise))
            normalise = False
        elif kind == "LayerNorm":
            if not dense or dense[-1].norm or normalise:
                raise CheckpointError(f"{folder}: a LayerNorm must follow a Dense, does not")
            layer = replace(dense[-1].layer, norm=True, norm_epsilon=_NORM_EPSILON)
            dense[-1] = replace(dense[-1], layer=layer, norm=folder)
        # Dropout is for training only, and a mask changes no vectors.
    return tuple(dense), normalise


def _read_dense(folder: Path, names: tuple[str, ...], *, normalise: bool) -> DenseFile:
    path = folder / "config.json"
    config = read_object(path)
    scores = names == POOLED and config.get("module_output_name") == _SCORES
    _check_names(path, {**config, "module_output_name": None} if scores else config, names)
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
    if scores and (layer.activation != "identity" or normalise):
        raise CheckpointError(
            f"{path}: a Dense that writes {_SCORES!r} must follow no Normalize, and have the activation "
            f"Identity, was {activation}"
        )
    width = integer(path, config, "in_features")
    return DenseFile(folder=folder, in_features=width, layer=layer, scores=scores)


def _check_names(path: Path, config: Mapping[str, object], names: tuple[str, ...]) -> None:
    """Reject a module that reads or writes something other than the vectors before it."""
    read = config.get("module_input_name", names[0])
    written = config.get("module_output_name") or read
    if read != written or read not in names:
        what = "pooled vectors" if names == POOLED else "vectors of tokens"
        raise CheckpointError(
            f"{path}: module_input_name and module_output_name must be {names[0]!r}, were {read!r} "
            f"and {config.get('module_output_name')!r}: only {what} go through such modules"
        )
