"""The attention of modules, recorded in process."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from polyhead_client import Encoding
from polyhead_model import Encoder, EncoderConfig, MultiHeadAttention
from polyhead_model.masks import causal
from polyhead_view import attention_of, draw_heads

D, H = 16, 4


def x(batch: int = 1, tokens: int = 5) -> Tensor:
    return torch.randn(batch, tokens, D, generator=torch.Generator().manual_seed(batch))


def softmax_of(record: Encoding, layer: int) -> NDArray[Any]:
    """The weights that follow from the recorded queries, keys and mask."""
    queries, keys, visible = (
        np.asarray((each or {})[layer]) for each in (record.query_vectors, record.key_vectors, record.visible)
    )
    scores = np.where(visible, queries @ keys.swapaxes(-1, -2), -np.inf)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def check(record: Encoding, *layers: Any) -> None:
    """Compare a record of one sequence with the weights [H, T, S] of each layer."""
    assert list(record.attention) == list(range(len(layers)))
    for layer, expected in enumerate(layers):
        np.testing.assert_allclose(record.attention[layer], expected, atol=2e-6)
        np.testing.assert_allclose(softmax_of(record, layer), expected, atol=2e-6)


class ByMatmul(nn.Module):
    """Heads by a view, the product by `@`, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def split(self, x: Tensor) -> list[Tensor]:
        return [each.reshape(*x.shape[:2], H, -1).transpose(1, 2) for each in self.w(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~causal(x.shape[1]), -torch.inf)
        out: Tensor = self.o((F.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor) -> Any:
        """[B, H, T, T]."""
        q, k, _ = self.split(x)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        return scores.masked_fill(~causal(x.shape[1]), -torch.inf).softmax(-1).detach()


class ByEinsum(ByMatmul):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in self.split(x))
        scores = torch.einsum("nqhd,nkhd->nhqk", [q, k]) + torch.full((5, 5), -1e9).triu(1)
        return torch.einsum("nhqk,nkhd->nqhd", torch.softmax(scores * q.shape[-1] ** -0.5, dim=3), v).flatten(
            2
        )


class ByBmm(ByMatmul):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.flatten(0, 1) for each in self.split(x))
        scores = torch.bmm(q, k.mT).mul(q.shape[-1] ** -0.5).masked_fill(~causal(x.shape[1])[0], -1e4)
        return scores.softmax(dim=-1) @ v


class ByFusedKernel(ByMatmul):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class ByLoop(ByMatmul):
    def forward(self, x: Tensor) -> Tensor:
        heads = []
        for q, k, v in zip(*(each.unbind(1) for each in self.split(x)), strict=True):
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~causal(x.shape[1]), -torch.inf)
            heads.append(scores.softmax(-1) @ v)
        return torch.cat(heads, -1)


@pytest.mark.parametrize("kind", [ByMatmul, ByEinsum, ByBmm, ByFusedKernel, ByLoop])
@pytest.mark.parametrize("batch", [1, 3])
def test_attention_is_recorded_however_it_is_spelled(kind: type[ByMatmul], batch: int) -> None:
    module = kind()
    record = attention_of(module, x(batch))
    expected = module.weights(x(batch))

    for number in range(batch):
        check(record if batch == 1 else record.sequence(number), expected[number])


def test_layers_are_counted_as_they_are_computed() -> None:
    layers = [ByMatmul(), ByMatmul()]

    record = attention_of(nn.Sequential(*layers), x())

    check(record, layers[0].weights(x())[0], layers[1].weights(layers[0](x()))[0])
    np.testing.assert_array_equal((record.visible or {})[0][0], causal(5)[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_of_pytorch(batch_first: bool, need_weights: bool) -> None:
    module = nn.MultiheadAttention(D, H, dropout=0.5, batch_first=batch_first)
    given = x(2) if batch_first else x(2).transpose(0, 1)
    blocked = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    inputs = {"query": given, "key": given, "value": given, "attn_mask": blocked, "key_padding_mask": padding}

    record = attention_of(
        module, {**inputs, "need_weights": need_weights}, tokens=[list("abcde"), list("fgh")]
    )

    expected = module.eval()(**inputs, average_attn_weights=False)[1].detach()
    assert record.tokens == [list("abcde"), list("fgh")]
    for number, length in enumerate((5, 3)):
        check(record.sequence(number), expected[number, :, :length, :length])


def test_other_widths_of_keys_and_added_keys_of_pytorch_s_attention() -> None:
    module = nn.MultiheadAttention(D, H, kdim=8, vdim=8, add_zero_attn=True)
    query, memory = x()[0], torch.randn(3, 8)

    record = attention_of(module, (query, memory, memory))

    check(record, module.eval()(query, memory, memory, average_attn_weights=False)[1].detach())
    assert np.asarray(record.attention[0]).shape == (H, 5, 4)


@pytest.mark.parametrize("masked", [True, False])
def test_an_encoder_of_pytorch_within_a_module_of_one_s_own(masked: bool) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
            out: Tensor = self.inner(x, src_key_padding_mask=src_key_padding_mask)
            return out

    module = Mine()
    padding = torch.arange(5) >= torch.tensor([[5], [2]])
    record = attention_of(module, {"x": x(2), "src_key_padding_mask": padding} if masked else x(2))

    layer: Any = module.inner.layers[0]
    expected = layer.self_attn.eval()(
        x(2), x(2), x(2), key_padding_mask=padding if masked else None, average_attn_weights=False
    )[1]
    for number, length in enumerate((5, 2) if masked else (5, 5)):
        one = record.sequence(number)
        assert one.lengths == length
        np.testing.assert_allclose(
            one.attention[0], expected[number, :, :length, :length].detach(), atol=2e-6
        )


def test_our_own_modules() -> None:
    attention = MultiHeadAttention(D, H, fused=True)
    check(attention_of(attention, (x(),)), attention(x(), need_weights=True)[1][0].detach())

    encoder = Encoder(
        EncoderConfig(d_model=D, heads=H, layers=2, feed_forward=32, causal=True, rotary_base=1e4)
    )
    lengths = torch.tensor([5, 3])
    record = attention_of(encoder, (x(2), lengths))
    expected = encoder(x(2), lengths, need_weights=True).attention
    for number, length in enumerate(lengths.tolist()):
        check(record.sequence(number), *(each[number, :, :length, :length].detach() for each in expected))


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(ByMatmul(), nn.Dropout(0.5), ByMatmul())
    module[2].eval()

    attention_of(module, x().requires_grad_())

    assert [each.training for each in (module, module[0], module[1], module[2])] == [True, True, True, False]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
    assert torch.is_grad_enabled()


def test_a_module_that_raises_is_left_as_it_was() -> None:
    module = nn.Sequential(ByMatmul(), nn.Linear(3, 3))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        attention_of(module, x())

    assert module.training
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def test_layers_of_several_sequences_are_chosen_by_name() -> None:
    layer = nn.TransformerDecoderLayer(D, H, 32, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 2)

    with pytest.raises(
        ValueError,
        match=r"were \[1, 4, 5, 5\] of layers.0.self_attn, \[1, 4, 5, 3\] of layers.0.multihead_attn",
    ):
        attention_of(decoder, (x(), x(tokens=3)))

    record = attention_of(decoder, (x(), x(tokens=3)), modules="*.multihead_attn")
    assert np.asarray(record.attention[1]).shape == (H, 5, 3)


def test_what_computes_no_attention_is_refused() -> None:
    learned = nn.Sequential(nn.Linear(D, D), nn.Softmax(-1))

    with pytest.raises(
        ValueError, match=r"must compute a softmax of queries times keys.* Sequential did not"
    ):
        attention_of(learned, x())
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, was builtin_function"):
        attention_of(torch.softmax, x())


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (list("abcd"), "tokens of sequence 0 must be 5, were 4"),
        ([list("abcde")] * 2, "tokens must be a list for each of 1 sequences, was of 2"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_of(ByMatmul(), x(), tokens=tokens)


def test_a_record_is_an_encoding(tmp_path: Path) -> None:
    record = attention_of(ByMatmul(), x(), tokens=list("abcde"))

    record.save(tmp_path / "record.npz")
    loaded = Encoding.load(tmp_path / "record.npz")
    np.testing.assert_array_equal((loaded.key_vectors or {})[0], (record.key_vectors or {})[0])
    assert repr(record).startswith("<Encoding of ByMatmul: 5 tokens; attention [4, 5, 5] of layer 0, visible")
    assert len(record.to_frame()) == 4 * 5 * 5
    assert record.show().state["open"] == "0.0"
    assert draw_heads(record).get_suptitle() == "ByMatmul\nattention weights of layer 0"


def test_importing_the_package_imports_no_pytorch() -> None:
    code = "import sys, polyhead_view; polyhead_view.attention_of; sys.exit('torch' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["Bert", "GPT2", "MPNet", "Llama", "ModernBert", "T5"])
def test_models_of_transformers(name: str, attention: str) -> None:
    import transformers

    if name == "MPNet" and attention == "sdpa":
        attention = "eager"  # it has no other
    common = {"vocab_size": 30, "num_hidden_layers": 2, "num_attention_heads": H, "hidden_size": D}
    common |= {"intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    special: dict[str, dict[str, Any]] = {
        "Llama": {"num_key_value_heads": 2},
        "ModernBert": {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        "T5": {"d_model": D, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": H},
    }
    config = getattr(transformers, f"{name}Config")(**common | special.get(name, {}))
    kind = getattr(transformers, "T5EncoderModel" if name == "T5" else f"{name}Model")
    model = kind._from_config(config, attn_implementation=attention)
    ids = torch.randint(3, 30, (2, 5), generator=torch.Generator().manual_seed(0))
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1] if name in {"GPT2", "Llama"} else [1, 1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": valid}

    record = attention_of(model, inputs)

    assert model.config._attn_implementation == attention
    model.set_attn_implementation("eager")
    expected = model.eval()(**inputs, output_attentions=True).attentions
    for number in range(2):
        kept = np.flatnonzero(valid[number])
        one = record.sequence(number)
        for layer, weights in enumerate(expected):
            of_one = weights[number].detach().numpy()[:, kept][:, :, kept]
            np.testing.assert_allclose(one.attention[layer], of_one, atol=2e-6)
            if name not in {"MPNet", "T5"}:  # their relative positions are added to scores
                np.testing.assert_allclose(softmax_of(one, layer), of_one, atol=2e-6)


@pytest.mark.slow
def test_a_compiled_module_runs_as_it_was_written() -> None:
    module = ByMatmul()
    compiled: Any = torch.compile(module, backend="eager")

    check(attention_of(nn.Sequential(compiled), x()), module.weights(x())[0])
