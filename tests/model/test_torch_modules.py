"""PyTorch's own modules, converted: the same numbers, or a refusal that says what to do."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.numerics import close
from torch import Tensor, nn
from torch.nn.utils import prune

from polyhead_model import EncoderConfig, from_torch, masks

D, H = 12, 3
LENGTHS = torch.tensor([6, 1, 4])


def randomised(module: nn.Module) -> nn.Module:
    """The module in evaluation mode with other weights, biases and norms than the initial ones."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return module.eval()


def block(**options: Any) -> nn.TransformerEncoderLayer:
    options = {"d_model": D, "nhead": 4, "dim_feedforward": 20, "batch_first": True} | options
    return nn.TransformerEncoderLayer(**options)


def decoder_block(**options: Any) -> nn.TransformerDecoderLayer:
    return nn.TransformerDecoderLayer(D, 4, 20, batch_first=True, **options)


def stack(norm: nn.Module | None = None, layers: int = 3, **options: Any) -> nn.TransformerEncoder:
    nested = options.pop("nested", False)
    return nn.TransformerEncoder(block(**options), layers, norm=norm, enable_nested_tensor=nested)


def call(module: Any, x: Tensor, memory: Tensor | None = None, **options: Any) -> Tensor:
    """The module's output [B, T, D] for x [B, T, D]; attention takes the names of what encoders take."""
    attention = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
    order = (0, 1, 2) if attention.batch_first else (1, 0, 2)
    query = x.permute(order)
    key = None if memory is None else memory.permute(order)
    if module is attention:
        key = query if key is None else key
        masks_ = {"key_padding_mask": options.get("src_key_padding_mask"), "attn_mask": options.get("mask")}
        output: Tensor = module(query, key, key, **masks_)[0]
    else:
        output = module(query, **options) if key is None else module(query, key, **options)
    return output.permute(order)


def weights_of(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """The weights [B, H, Tq, Tk] of every attention in the order of the calls, which torch's layers drop."""
    calls: list[tuple[Any, Any, dict[str, Any]]] = []
    hooks = [
        part.register_forward_pre_hook(lambda *called: calls.append(called), with_kwargs=True)
        for part in module.modules()
        if isinstance(part, nn.MultiheadAttention)
    ]
    run()
    for hook in hooks:
        hook.remove()
    wanted = {"need_weights": True, "average_attn_weights": False}
    return [part(*arguments, **(options | wanted))[1] for part, arguments, options in calls]


def compare_weights(ours: Sequence[Tensor], theirs: Sequence[Tensor], valid: Tensor) -> None:
    """Compare the weights of every query that is no padding."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        by_query = (each.transpose(1, 2)[valid] for each in (one, other))
        close(*by_query)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(D, H, batch_first=True),
    "attention, tokens first, no bias": lambda: nn.MultiheadAttention(D, H, bias=False, dropout=0.1),
    "attention, its own widths given": lambda: nn.MultiheadAttention(D, 1, kdim=D, vdim=D),
    "layer": block,
    "layer, tokens first, odd heads": lambda: block(nhead=H, batch_first=False, activation="gelu"),
    "layer, norm first, no bias": lambda: block(norm_first=True, bias=False, activation=F.gelu),
    "layer, silu": lambda: block(activation=F.silu),
    "stack": stack,
    "stack, nested tensors": lambda: stack(nested=True, activation=nn.GELU()),
    "stack, norm first": lambda: stack(nn.LayerNorm(D), norm_first=True, activation=nn.ReLU()),
    "stack, epsilon": lambda: stack(nn.LayerNorm(D, eps=0.1), layer_norm_eps=0.1, activation=torch.relu),
    "stack, final norm of another epsilon": lambda: stack(nn.LayerNorm(D, eps=0.1), activation=nn.SiLU()),
    "stack, no bias, tokens first": lambda: stack(
        nn.LayerNorm(D, elementwise_affine=False), bias=False, batch_first=False, layers=1
    ),
}


VISIBLE = {
    "full": None,
    "causal": masks.causal(6),
    "arbitrary": (torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.5)
    | (torch.arange(6) == 0),  # PyTorch gives NaN where a row sees nothing
}
"""What each query may attend to."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("mask", VISIBLE.values(), ids=VISIBLE)
def test_outputs_and_attention_are_those_of_the_module(
    build: Callable[[], nn.Module], mask: Tensor | None
) -> None:
    module = randomised(build())
    encoder = from_torch(module)
    x = torch.randn(3, 6, D)
    valid = masks.valid_tokens(LENGTHS, 6)
    blocked = None if mask is None else ~mask.expand(3, 6, 6).repeat_interleave(encoder.config.heads, dim=0)

    result = encoder(x, LENGTHS, mask=mask, need_weights=True)

    name = "src_mask" if isinstance(module, nn.TransformerEncoderLayer) else "mask"
    options = {"src_key_padding_mask": ~valid, name: blocked}
    for fast in (False, True):  # without gradients, torch takes its fast path where there is one
        with torch.set_grad_enabled(not fast):
            output = call(module, x, **options)
        close(result.output[valid], output[valid])
    compare_weights(result.attention, weights_of(module, lambda: call(module, x, **options)), valid)


CROSS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(D, H, batch_first=True),
    "attention, tokens first, no bias": lambda: nn.MultiheadAttention(D, H, bias=False),
    "layer": decoder_block,
    "layer, norm first, no bias": lambda: decoder_block(norm_first=True, bias=False),
    "stack": lambda: nn.TransformerDecoder(decoder_block(activation="gelu"), 2, nn.LayerNorm(D)),
}


@pytest.mark.parametrize("build", CROSS.values(), ids=CROSS)
def test_attention_to_a_second_sequence_is_that_of_the_module(build: Callable[[], nn.Module]) -> None:
    module: Any = randomised(build())
    alone = isinstance(module, nn.MultiheadAttention)
    encoder = from_torch(module, cross_attention=alone)
    x, memory, memory_lengths = torch.randn(3, 6, D), torch.randn(3, 5, D), torch.tensor([2, 5, 1])
    valid = masks.valid_tokens(LENGTHS, 6)
    padding = ~masks.valid_tokens(memory_lengths, 5)

    result = encoder(x, LENGTHS, memory=memory, memory_lengths=memory_lengths, need_weights=True)

    options = {"tgt_key_padding_mask": ~valid, "memory_key_padding_mask": padding}
    if alone:
        options = {"src_key_padding_mask": padding}
    output = call(module, x, memory, **options)
    close(result.output[valid], output[valid])
    weights = weights_of(module, lambda: call(module, x, memory, **options))
    if alone:
        compare_weights(result.attention, weights, valid)
    else:  # each layer attends to its own sequence first
        compare_weights(result.attention, weights[::2], valid)
        compare_weights(result.cross_attention, weights[1::2], valid)


def test_wrappers_are_taken_off() -> None:
    module = randomised(stack())
    expected = from_torch(module)
    x = torch.randn(1, 4, D)

    compiled: Any = torch.compile(module, backend="eager")
    for wrapped in (nn.DataParallel(module), compiled, nn.DataParallel(compiled)):
        encoder = from_torch(wrapped)
        assert encoder.config == expected.config
        assert torch.equal(encoder(x).output, expected(x).output)


def test_only_attention_alone_can_be_either() -> None:
    with pytest.raises(ValueError, match="must be false unless the module is a MultiheadAttention, was true"):
        from_torch(block(), cross_attention=True)


def test_the_tanh_approximation_of_gelu() -> None:
    module = randomised(block(activation=nn.GELU(approximate="tanh")))
    x = torch.randn(3, 6, D)

    # Not without gradients: torch's fast path computes the exact GELU, whatever the activation says.
    close(from_torch(module)(x).output, module(x))


def test_a_configuration_says_what_the_module_is() -> None:
    module = stack(nn.LayerNorm(D), norm_first=True, dropout=0.25, activation="gelu").train()
    encoder = from_torch(module)

    assert encoder.training
    assert not from_torch(module.eval()).training
    assert encoder.config == EncoderConfig(
        d_model=D,
        heads=4,
        layers=3,
        feed_forward=20,
        norm="pre",
        final_norm=True,
        activation="gelu",
        dropout=0.25,
        layer_norm_epsilon=1e-5,
    )


def test_the_encoder_has_a_copy_of_the_weights() -> None:
    module = randomised(stack(dtype=torch.float64))
    x = torch.randn(1, 4, D, dtype=torch.float64)
    encoder = from_torch(module)
    before = encoder(x).output
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()

    assert before.dtype == torch.float64
    assert torch.equal(encoder(x).output, before)
    assert all(parameter.requires_grad for parameter in encoder.parameters())


class Twice(nn.TransformerEncoderLayer):
    """A layer that computes something else than its base class."""

    def forward(self, src: Tensor, *args: Any, **options: Any) -> Tensor:
        return super().forward(2 * src, *args, **options)


class Classifier(nn.Module):
    """What people build around an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, D)
        self.encoder = stack()
        self.head = nn.Linear(D, 2)


def changed(module: nn.Module, name: str, value: object) -> nn.Module:
    path, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(path), attribute, value)
    return module


def pruned() -> nn.Module:
    layer = block()
    prune.random_unstructured(layer.linear1, "weight", 0.5)  # type: ignore[no-untyped-call]
    return layer


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "another module": (
        lambda: nn.GRU(D, D),
        "of torch.nn, was torch.nn.modules.rnn.GRU: describe it by an EncoderConfig, and load its weights "
        "with Encoder(config).load_state_dict",
    ),
    "a model around one": (
        Classifier,
        "Encoder(config).load_state_dict; from_torch converts its part 'encoder'",
    ),
    "a subclass": (lambda: Twice(D, 2, 8), "Twice"),
    "no layers": (lambda: changed(stack(), "layers", nn.ModuleList()), "must have at least 1 layer, had 0"),
    "layers that differ": (
        lambda: changed(stack(), "layers.2.norm_first", True),
        "all layers must be alike, but norm of layer 2 was 'pre', of layer 0 'post'",
    ),
    "widths of their own": (lambda: nn.MultiheadAttention(D, H, vdim=7), "vdim must be 12, was 7"),
    "add_bias_kv": (
        lambda: nn.MultiheadAttention(D, H, add_bias_kv=True),
        "add_bias_kv must be False, was True: an Encoder has nothing like it",
    ),
    "another activation": (
        lambda: block(activation=F.mish),
        "activation must be relu, gelu or silu, by name or as",
    ),
    "norms of two epsilons": (
        lambda: changed(block(), "norm2.eps", 0.1),
        "norm2.eps must be that of the first norm, 1e-05, was 0.1",
    ),
    "a norm of all tokens": (
        lambda: stack(nn.LayerNorm((6, D), elementwise_affine=False)),
        "norm must normalise 12 columns, was over [6, 12]",
    ),
    "another part": (
        lambda: changed(block(), "linear1", nn.Identity()),
        "linear1 must be a torch.nn.Linear, was torch.nn.modules.linear.Identity",
    ),
    "a pruned part": (pruned, "if it is parametrised or pruned, make that permanent first"),
    "a part of another shape": (
        lambda: changed(block(), "linear2", nn.Linear(20, D + 1)),
        "the module's tensors must be as torch.nn makes them",
    ),
    "two attentions that differ": (
        lambda: changed(decoder_block(), "multihead_attn", nn.MultiheadAttention(D, H)),
        "multihead_attn must be like self_attn, {'d_model': 12, 'heads': 4,",
    ),
    "dropout of everything": (lambda: nn.MultiheadAttention(D, H, dropout=1.0), "below 1, was 1.0"),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_equivalent_is_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        from_torch(build())
