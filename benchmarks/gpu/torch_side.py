"""What the graphs are held against: the same encoder in PyTorch, with its own fused attention."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.card import DTYPES, Card, Gpu
from gpu.plan import Precision
from polyhead_model import Encoder


def attend_sdpa(
    query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None, /
) -> tuple[Tensor, None]:
    """PyTorch's fused attention, as an `Attend`."""
    q, k, v = (each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in (query, key, value))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None])
    return context.transpose(1, 2).flatten(2), None


class TorchEncoder:
    """An encoder on the device, eager and compiled, over one set of weights.

    One W_qkv, and no mask where every sequence is as long as T.

    Args:
        card: Where it runs.
        encoder: In fp32 on the CPU.
        precision: Of the weights and of everything that is computed.
    """

    def __init__(self, card: Card, encoder: Encoder, precision: Precision) -> None:
        self._card = card
        fused = encoder if encoder.config.fused else encoder.fuse()
        self._eager = fused.to(card.device, DTYPES[precision]).eval()
        self._compiled = _twin(self._eager)
        self._dtype = DTYPES[precision]

    def compile(self) -> None:
        """Compiles anew, for the next size that it is called with.

        The layers one by one, which all share what is compiled: whole encoders of 24 layers take minutes for
        all sizes. What that costs between layers, a captured graph does away with.
        """
        torch.compiler.reset()
        backend = "inductor" if self._card.kind == "cuda" else "eager"  # for a try-out, tracing is enough
        for layer in self._compiled.layers:
            layer.compile(backend=backend, dynamic=False, fullgraph=True)

    def eager(self, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
        """One run as written."""
        return self._call(self._eager, inputs)

    def compiled(self, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
        """One run as compiled; the first call compiles."""
        return self._call(self._compiled, inputs)

    def _call(self, encoder: Encoder, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
        x = inputs["x"].to(self._dtype) if "x" in inputs else inputs["input_ids"]
        types = inputs.get("token_type_ids")

        def call() -> Tensor:
            with torch.no_grad():
                result = encoder(x, token_type_ids=types, attend=attend_sdpa)
                output: Tensor = result.output if result.pooled is None else result.pooled
                return output

        return call


@contextmanager
def best_kernels() -> Iterator[None]:
    """PyTorch's attention by cuDNN where that can, else FlashAttention: by itself it takes the slower one."""
    kernels = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(kernels, set_priority=True):
        yield


def captured(card: Card, call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph: nothing is left for the host but one launch.

    Raises:
        RuntimeError: It cannot be captured.
    """
    if not isinstance(card, Gpu):
        raise RuntimeError("CUDA graphs need a GPU")
    for _ in range(3):
        call()
    card.synchronise()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=card.torch_stream):
        kept = call()

    def replay() -> object:
        graph.replay()
        return kept  # the graph writes into it: it must live as long

    return replay


def _twin(encoder: Encoder) -> Encoder:
    """A second encoder over the same weights."""
    with torch.device("meta"):
        twin = Encoder(encoder.config)
    twin.load_state_dict(encoder.state_dict(), assign=True)
    return twin.eval()
