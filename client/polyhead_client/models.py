"""What a server says about itself and its models.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from polyhead_client.errors import ServerError
from polyhead_proto.names import TEXT

if TYPE_CHECKING:
    from polyhead_proto import messages as pb


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One input or output of a model; -1 in the shape is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One served model: a family's fast graph (`NAME`) or another (`NAME.attention`, …).

    The numbers are None where the server does not say.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    properties: Mapping[str, str]
    """Everything the server says, as it says it."""

    @classmethod
    def from_message(cls, message: "pb.ModelMetadataResponse") -> "ModelInfo":
        """Reads the reply to ModelMetadata."""
        return cls(
            name=message.name,
            versions=tuple(message.versions),
            platform=message.platform,
            inputs=_tensors(message.inputs),
            outputs=_tensors(message.outputs),
            properties=MappingProxyType(dict(message.properties)),
        )

    @property
    def family(self) -> str:
        """The encoder that this graph belongs to."""
        return family_of(self.name)

    @cached_property
    def attention(self) -> Mapping[int, str]:
        """The outputs that hold attention weights, by layer; empty where the server does not say."""
        try:
            tensors = json.loads(self.properties.get("tensors") or "{}")
            layers = {
                int(tensor["layer"]): name
                for name, tensor in tensors.items()
                if tensor.get("role") == "attention" and name in self.outputs and "layer" in tensor
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise ServerError(f"malformed reply: what {self.name} says of its tensors") from error
        return MappingProxyType(dict(sorted(layers.items())))

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers whose weights this graph gives, in order."""
        return tuple(self.attention)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the same family, this one among them: one for each graph."""
        names = self.properties.get("models", "")
        return tuple(names.split(",")) if names else (self.name,)

    @property
    def takes_text(self) -> bool:
        """Texts may be sent; the server tokenises them."""
        return TEXT in self.inputs

    @property
    def layers(self) -> int | None:
        """L."""
        return self._number("layers")

    @property
    def heads(self) -> int | None:
        """H."""
        return self._number("heads")

    @property
    def d_model(self) -> int | None:
        """D."""
        return self._number("d_model")

    @property
    def parameters(self) -> int | None:
        """How many numbers were trained."""
        return self._number("parameters")

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None for a family that takes vectors."""
        return self._number("vocabulary")

    @property
    def max_tokens(self) -> int | None:
        """The largest T."""
        return self._number("max_tokens")

    @property
    def max_batch_size(self) -> int | None:
        """The largest B of a request."""
        return self._number("max_batch_size")

    @property
    def max_request_tokens(self) -> int | None:
        """The largest B × T of a request, padding included."""
        return self._number("max_request_tokens")

    @property
    def max_request_bytes(self) -> int | None:
        """The largest request that the server takes."""
        return self._number("max_request_bytes")

    @property
    def max_reply_bytes(self) -> int | None:
        """The largest reply that the server gives."""
        return self._number("max_reply_bytes")

    @property
    def max_stream_reply_bytes(self) -> int | None:
        """The largest reply that the server streams in parts; None where it does not."""
        return self._number("max_stream_reply_bytes")

    def _number(self, key: str) -> int | None:
        value = self.properties.get(key, "")
        return int(value) if value.isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One line of the server's list of models."""

    name: str
    version: str
    state: str
    """READY, LOADING or UNAVAILABLE."""
    reason: str
    """Why it is not READY."""


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """The server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How often something was done, and for how long in all."""

    count: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class ModelStatistics:
    """What a model has done since the server started."""

    name: str
    version: str
    inference_count: int
    """Sequences."""
    execution_count: int
    """Runs of the engine."""
    last_inference_ms: int
    """Milliseconds since the epoch; 0 before the first."""
    durations: Mapping[str, Duration]
    """Of requests: success, fail, queue, compute_input, compute_infer, compute_output, ..."""

    @classmethod
    def from_message(cls, message: "pb.ModelStatistics") -> "ModelStatistics":
        """Reads one entry of the reply to ModelStatistics."""
        statistics = message.inference_stats
        return cls(
            name=message.name,
            version=message.version,
            inference_count=message.inference_count,
            execution_count=message.execution_count,
            last_inference_ms=message.last_inference,
            durations=MappingProxyType(
                {
                    field.name: Duration(count=duration.count, total_ns=duration.ns)
                    for field in statistics.DESCRIPTOR.fields
                    for duration in [getattr(statistics, field.name)]
                }
            ),
        )


def family_of(model: str) -> str:
    """`minilm` of `minilm.attention`."""
    return model.partition(".")[0]


def _tensors(messages: "Iterable[pb.ModelMetadataResponse.TensorMetadata]") -> Mapping[str, TensorInfo]:
    return MappingProxyType(
        {
            message.name: TensorInfo(name=message.name, datatype=message.datatype, shape=tuple(message.shape))
            for message in messages
        }
    )
