"""One graph on the device: inputs and outputs stay in its memory, and runs are queued behind one another."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort
import torch
from torch import Tensor

from gpu.card import ELEMENTS, Card
from polyhead_model import EncoderConfig

_capture_ids = itertools.count(1)


class WrongProviderError(Exception):
    """onnxruntime put a session elsewhere than on the device."""


def open_session(card: Card, model: Path | bytes, *, graphs: bool = False) -> ort.InferenceSession:
    """A session on the device.

    Args:
        card: The device.
        model: A file, or a serialised model.
        graphs: Capture runs as CUDA graphs.

    Raises:
        WrongProviderError: It is elsewhere.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, options, providers=card.providers(graphs=graphs))
    session.disable_fallback()
    wanted = "CPUExecutionProvider" if card.kind == "cpu" else "CUDAExecutionProvider"
    if session.get_providers()[0] != wanted:
        raise WrongProviderError(f"onnxruntime put it on {session.get_providers()[0]} instead of {wanted}")
    return session


def placed(session: ort.InferenceSession) -> dict[str, dict[str, int]]:
    """The session's operators, counted by provider; empty where onnxruntime cannot tell."""
    counts: dict[str, dict[str, int]] = {}
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return counts
    for part in session.get_provider_graph_assignment_info():
        of_provider = counts.setdefault(part.ep_name, {})
        for node in part.get_nodes():
            of_provider[node.op_type] = of_provider.get(node.op_type, 0) + 1
    return counts


class BoundGraph:
    """A session with tensors for its inputs and outputs, which it reads and writes in place.

    Args:
        card: Where the session and the tensors are.
        session: The session.
        inputs: By name.
        outputs: By name; those that are not here are computed and dropped.
        captured: The session captures CUDA graphs; this one is told apart from others of the session.
    """

    def __init__(
        self,
        card: Card,
        session: ort.InferenceSession,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        *,
        captured: bool = False,
    ) -> None:
        self.outputs = outputs
        self._tensors = (*inputs.values(), *outputs.values())  # kept: onnxruntime has only their addresses
        self._session = session
        self._binding = session.io_binding()
        self._options = ort.RunOptions()
        # The queue of the device orders runs; waiting after each would time the host as well.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if captured:
            self._options.add_run_config_entry("gpu_graph_id", str(next(_capture_ids)))
        for name, tensor in inputs.items():
            self._binding.bind_input(name, *_place(card, tensor))
        for name, tensor in outputs.items():
            self._binding.bind_output(name, *_place(card, tensor))

    def __call__(self) -> None:
        """Queues one run."""
        self._session.run_with_iobinding(self._binding, self._options)


def empty_outputs(
    card: Card, config: EncoderConfig, batch: int, tokens: int, *, attention: bool
) -> dict[str, Tensor]:
    """Memory for everything that a graph of the encoder gives at (B, T)."""
    shapes: dict[str, tuple[int, ...]] = {"output": (batch, tokens, config.d_model)}
    if config.pooling is not None:
        shapes["pooled"] = (batch, config.d_model)
    if attention:
        shapes |= {
            f"attention.{layer}": (batch, config.heads, tokens, tokens) for layer in range(config.layers)
        }
    return {name: torch.empty(shape, device=card.device) for name, shape in shapes.items()}


def full_inputs(card: Card, config: EncoderConfig, batch: int, tokens: int) -> dict[str, Tensor]:
    """Random input of (B, T) on the device, every sequence as long as T."""
    random = torch.Generator().manual_seed(batch * 10_000 + tokens)
    if config.vocabulary is None:
        inputs = {"x": torch.randn(batch, tokens, config.d_model, generator=random)}
    else:
        inputs = {"input_ids": torch.randint(config.vocabulary, (batch, tokens), generator=random)}
        if config.types:
            inputs["token_type_ids"] = torch.zeros(batch, tokens, dtype=torch.int64)
    inputs["lengths"] = torch.full((batch,), tokens, dtype=torch.int32)
    return {name: tensor.to(card.device) for name, tensor in inputs.items()}


def _place(card: Card, tensor: Tensor) -> tuple[str, int, object, tuple[int, ...], int]:
    """Where a tensor is, in onnxruntime's words."""
    return card.kind, 0, ELEMENTS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr()
