"""Convert encoders that are built from PyTorch's own modules."""

import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from polyhead_model.config import Activation, EncoderConfig
from polyhead_model.encoder import Encoder
from polyhead_model.projections import split_projections

_STACKS: dict[type[nn.Module], type[nn.Module]] = {
    nn.TransformerEncoder: nn.TransformerEncoderLayer,
    nn.TransformerDecoder: nn.TransformerDecoderLayer,
}
"""Stack → layer."""
_CONVERTIBLE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, *_STACKS.values(), *_STACKS)

# How the names of a layer's tensors begin: theirs → ours.
_ATTENTION = {"in_proj_": "w_qkv.", "out_proj.": "w_o."}
_BLOCK = {
    **{f"self_attn.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
    "norm1.": "attention_norm.",
}
_NAMES: dict[type[nn.Module], dict[str, str]] = {
    nn.MultiheadAttention: _ATTENTION,
    nn.TransformerEncoderLayer: {**_BLOCK, "norm2.": "feed_forward_norm."},
    nn.TransformerDecoderLayer: {
        **_BLOCK,
        **{f"multihead_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
        "norm2.": "cross_attention_norm.",
        "norm3.": "feed_forward_norm.",
    },
}


def from_torch(module: nn.Module, *, cross_attention: bool = False) -> Encoder:
    """Convert a module of `torch.nn` to an `Encoder` with a copy of its weights.

    Outputs and attention weights are those of the module in evaluation mode. The encoder takes x [B, T, D],
    whatever `batch_first` is. In training, it drops attention weights only.

    What a module is given in each call is not converted. If it is always called with a causal mask, set
    `encoder.config = dataclasses.replace(encoder.config, causal=True)`.

    Args:
        module: A `MultiheadAttention`, `TransformerEncoderLayer`, `TransformerEncoder`,
            `TransformerDecoderLayer` or `TransformerDecoder`, also inside of `DataParallel`,
            `DistributedDataParallel` or `torch.compile`. Not of a subclass, which may compute something else.
        cross_attention: Whether a `MultiheadAttention` attends to a second sequence, not to its own.

    Raises:
        TypeError: The module, or a part of it, has another type.
        ValueError: The module has a setting or a tensor that `EncoderConfig` cannot describe.
    """
    module = _unwrapped(module)
    if type(module) not in _CONVERTIBLE:
        raise TypeError(_refusal(module))
    layers, norm = [module], None
    if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        layers, norm = list(module.layers), module.norm
    if not layers:
        raise ValueError(f"a {type(module).__name__} must have at least 1 layer, had 0")
    for number, layer in enumerate(layers):
        _require_type(f"layers[{number}]", layer, _STACKS.get(type(module), type(module)))
    fields = _fields(layers)
    if cross_attention:
        if type(module) is not nn.MultiheadAttention:
            raise ValueError(
                "cross_attention must be false unless the module is a MultiheadAttention, was true: of "
                f"{type(module).__name__} it is known"
            )
        fields["cross_attention"] = "alone"
    if norm is not None:
        _check_norm("norm", norm, fields["d_model"])
        if norm.eps != fields["layer_norm_epsilon"]:
            fields["final_norm_epsilon"] = norm.eps
    norms = [part for part in module.modules() if isinstance(part, nn.LayerNorm)]
    config = EncoderConfig(
        layers=len(layers),
        final_norm=norm is not None,
        norm_bias=not norms or any(part.bias is not None for part in norms),
        **fields,
    )
    state = {
        f"layers.{number}.{name}": tensor
        for number, layer in enumerate(layers)
        for name, tensor in _tensors(layer)
    }
    if norm is not None:
        state |= {f"final_norm.{name}": tensor for name, tensor in norm.state_dict().items()}
    with torch.device("meta"):  # do not allocate or initialise: every parameter is assigned
        encoder = Encoder(config)
    for name, parameter in encoder.named_parameters():
        if re.search(r"norm\.(weight|bias)$", name):  # a norm of theirs may have neither
            like = next(module.parameters())
            state.setdefault(name, like.new_full(parameter.shape, float(name.endswith("weight"))))
    try:
        encoder.load_state_dict(
            {name: tensor.clone() for name, tensor in split_projections(state).items()}, assign=True
        )
    except RuntimeError as error:
        raise ValueError(
            "the module's tensors must be as torch.nn makes them; if it is parametrised or pruned, make that "
            f"permanent first ({error})"
        ) from error
    return encoder.train(module.training)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside of wrappers that compute the same."""
    while True:
        inner = dict(module.named_children())
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = inner["module"]
        elif list(inner) == ["_orig_mod"]:  # what torch.compile returns
            module = inner["_orig_mod"]
        else:
            return module


def _fields(layers: list[nn.Module]) -> dict[str, Any]:
    """Return the fields of `EncoderConfig` that describe each of the layers."""
    first, *others = (_describe(layer) for layer in layers)
    for number, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != first[name]:
                raise ValueError(
                    f"all layers must be alike, but {name} of layer {number} was {value!r}, "
                    f"of layer 0 {first[name]!r}"
                )
    return first


def _describe(layer: Any) -> dict[str, Any]:
    """Return the fields of `EncoderConfig` that describe a layer."""
    if isinstance(layer, nn.MultiheadAttention):
        return _describe_attention(layer)
    _require_type("self_attn", layer.self_attn, nn.MultiheadAttention)
    fields = _describe_attention(layer.self_attn)
    norms = ["norm1", "norm2"]
    if isinstance(layer, nn.TransformerDecoderLayer):
        _require_type("multihead_attn", layer.multihead_attn, nn.MultiheadAttention)
        if (other := _describe_attention(layer.multihead_attn)) != fields:
            raise ValueError(f"multihead_attn must be like self_attn, {fields}, was {other}")
        fields["cross_attention"] = "after_self"
        norms.append("norm3")
    for name in ("linear1", "linear2"):
        _require_type(name, getattr(layer, name), nn.Linear)
    for name in norms:
        _check_norm(name, getattr(layer, name), fields["d_model"], layer.norm1.eps)
    return fields | {
        "feed_forward": layer.linear1.out_features,
        "norm": "pre" if layer.norm_first else "post",
        "activation": _activation(layer.activation),
        "layer_norm_epsilon": layer.norm1.eps,
    }


def _describe_attention(attention: nn.MultiheadAttention) -> dict[str, Any]:
    _require_type("out_proj", attention.out_proj, nn.Linear)
    width = attention.embed_dim
    for name, value, required in (
        ("kdim", attention.kdim, width),
        ("vdim", attention.vdim, width),
        ("add_bias_kv", attention.bias_k is not None, False),
        ("add_zero_attn", attention.add_zero_attn, False),
    ):
        if value != required:
            raise ValueError(f"{name} must be {required}, was {value}: an Encoder has nothing like it")
    return {
        "d_model": width,
        "heads": attention.num_heads,
        "bias": attention.in_proj_bias is not None,
        "dropout": attention.dropout,
    }


def _activation(function: Any) -> Activation:
    if isinstance(function, nn.ReLU) or function in (F.relu, torch.relu):
        return "relu"
    if function is F.gelu:
        return "gelu"
    if isinstance(function, nn.GELU):
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    if isinstance(function, nn.SiLU) or function is F.silu:
        return "silu"
    raise ValueError(
        "activation must be relu, gelu or silu, by name or as torch.nn.ReLU, GELU, SiLU or their functions, "
        f"was {function!r}"
    )


def _tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a layer's tensors, each with our name; a name that is not known stays as it is."""
    prefixes = _NAMES[type(layer)]
    for name, tensor in layer.state_dict().items():
        theirs = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        yield prefixes.get(theirs, "") + name.removeprefix(theirs), tensor


def _require_type(name: str, part: object, expected: type[nn.Module]) -> None:
    """Reject a module of another type; of a subclass, too, which may compute something else."""
    if type(part) not in (expected, NonDynamicallyQuantizableLinear if expected is nn.Linear else expected):
        raise TypeError(f"{name} must be a torch.nn.{expected.__name__}, was {_type_name(part)}")


def _check_norm(name: str, norm: Any, width: int, epsilon: float | None = None) -> None:
    _require_type(name, norm, nn.LayerNorm)
    if norm.normalized_shape != (width,):
        raise ValueError(f"{name} must normalise {width} columns, was over {list(norm.normalized_shape)}")
    if epsilon not in (None, norm.eps):
        raise ValueError(
            f"{name}.eps must be that of the first norm, {epsilon:g}, was {norm.eps:g}: "
            "layers have one epsilon"
        )


def _refusal(module: nn.Module) -> str:
    """Say what can be converted, and what to do with this module."""
    kinds = ", ".join(kind.__name__ for kind in _CONVERTIBLE)
    part = next((name for name, part in module.named_modules() if type(part) in _CONVERTIBLE), None)
    hint = "" if part is None else f"; from_torch converts its part {part!r}"
    return (
        f"the module must be a {kinds} of torch.nn, was {_type_name(module)}: describe it by an "
        f"EncoderConfig, and load its weights with Encoder(config).load_state_dict{hint}"
    )


def _type_name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
