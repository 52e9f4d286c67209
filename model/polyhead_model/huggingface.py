"""Read everything in a Hugging Face folder except the weights, which `polyhead_model.checkpoint` reads.

Needs no torch, so that checkpoints can be described without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, integer, read_object
from polyhead_model.config import Activation, EncoderConfig
from polyhead_model.hf_dialects import DIALECTS, Dialect
from polyhead_model.sentence_modules import SentenceModules
from polyhead_model.tokenizer_files import TOKENIZER, check_tokenizer, tokenizer_limit

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Theirs → ours."""


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Everything about a checkpoint except its weights."""

    model_type: str
    """As in config.json; a key of `DIALECTS`."""
    dialect: Dialect
    encoder: EncoderConfig
    folder: Path
    """The folder of config.json and the weights."""
    tokenizer: Path | None
    """Its tokenizer.json, if there is one."""
    prompt: str
    """Put before every text by sentence-transformers by default."""
    max_tokens: int
    """The longest text: sentence-transformers' max_seq_length, otherwise the tokenizer's own limit, and at
    most the model's positions."""
    position_offset: int
    """The number of leading rows of the position table that no token uses."""
    folded_types: bool
    """Whether the model has a single token type, a constant that is added to the positions."""


def read_checkpoint_info(folder: Path, *, prompt: bool = True) -> CheckpointInfo:
    """Read a local Hugging Face or sentence-transformers folder, without the weights.

    Args:
        folder: A folder with config.json, or with the modules.json of sentence-transformers.
        prompt: Whether to use the default prompt of sentence-transformers.

    Raises:
        CheckpointError: The folder is not a checkpoint of a supported type, or needs something that
            polyhead does not support.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"a checkpoint must be a folder with config.json and model.safetensors, but {folder} {found}"
        )
    modules = SentenceModules.read(folder, prompt=prompt)
    path = modules.transformer / "config.json"
    config = read_object(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in DIALECTS:
        raise CheckpointError(f"{path}: model_type must be one of {', '.join(DIALECTS)}, was {model_type!r}")
    dialect = DIALECTS[model_type]
    _refuse_variants(path, config)
    _refuse_adapters(modules.transformer)
    fields = dialect.fields(path, config)
    padding_id = fields.get("padding_id")
    positions = integer(path, config, dialect.positions)
    if padding_id is not None:
        positions -= padding_id + 1
    types = integer(path, config, "type_vocab_size") if dialect.types else 0
    named, default = dialect.layer_norm_epsilon, dialect.default_epsilon
    try:
        encoder = EncoderConfig(
            **{
                "d_model": integer(path, config, dialect.d_model),
                "heads": integer(path, config, dialect.heads),
                "layers": integer(path, config, dialect.layers),
                "kept_heads": _kept_heads(path, config, dialect),
                "feed_forward": dialect.feed_forward and integer(path, config, dialect.feed_forward),
                "activation": _activation(path, config, dialect.activation),
                "layer_norm_epsilon": default if named is None else config.get(named, default),
                "vocabulary": integer(path, config, "vocab_size"),
                "positions": positions,
                "types": 0 if types == 1 else types,
                "pooling": modules.pooling,
                "normalise": modules.normalise,
            }
            | fields
        )
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    tokenizer = modules.transformer / TOKENIZER
    if tokenizer.is_file():
        check_tokenizer(modules.transformer, model_type)
    return CheckpointInfo(
        model_type=model_type,
        dialect=dialect,
        encoder=encoder,
        folder=modules.transformer,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        prompt=modules.prompt,
        max_tokens=min(positions, modules.max_tokens or tokenizer_limit(modules.transformer) or positions),
        position_offset=padding_id or 0,
        folded_types=types == 1,
    )


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
