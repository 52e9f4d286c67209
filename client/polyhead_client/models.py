"""The metadata and statistics of a server and its models.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from polyhead_client.errors import ServerError
from polyhead_client.frozen import Picklable
from polyhead_client.visibility import Visibility
from polyhead_proto.names import ATTENTION, LENGTHS, OUTPUT, POOLED, TEXT, TOKENS, Property
from polyhead_proto.tensors import TensorSpec

if TYPE_CHECKING:
    from polyhead_proto import messages as pb

# The axes of outputs, by role, of a server that does not report them.
_AXES = {
    OUTPUT: ("B", "T", "D"),
    POOLED: ("B", "D"),
    TOKENS: ("B", "T"),
    LENGTHS: ("B",),
    ATTENTION: ("B", "H", "T", "T"),
}


def _number(key: Property) -> "cached_property[int | None]":
    """Make a property of a model that is a number."""

    def read(info: "ModelInfo") -> int | None:
        value = info.properties.get(key, "")
        return int(value) if value.isdecimal() else None

    return cached_property(read)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInfo(Picklable):
    """A served model: the fast graph of a family (`NAME`) or another graph (`NAME.attention`, …).

    Numbers are None if the server does not report them.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    properties: Mapping[str, str]
    """All properties, as the server reports them."""

    @classmethod
    def from_message(cls, message: "pb.ModelMetadataResponse") -> "ModelInfo":
        """Read the reply to ModelMetadata.

        Raises:
            ServerError: The property `tensors` is malformed.
        """
        try:
            described = json.loads(message.properties.get(Property.TENSORS) or "{}")
            inputs, outputs = (_tensors(tensors, described) for tensors in (message.inputs, message.outputs))
        except (ValueError, TypeError, AttributeError) as error:
            raise ServerError(f"malformed reply: what {message.name} says of its tensors") from error
        return cls(
            name=message.name,
            versions=tuple(message.versions),
            platform=message.platform,
            inputs=inputs,
            outputs=outputs,
            properties=MappingProxyType(dict(message.properties)),
        )

    @property
    def family(self) -> str:
        """The family that this graph belongs to."""
        return family_of(self.name)

    def with_role(self, role: str) -> tuple[TensorSpec, ...]:
        """Return the outputs that have a role, and axes."""
        return self._by_role.get(role, ())

    def layers_with(self, role: str) -> tuple[int, ...]:
        """Return the layers of which this graph has an output of a role each, in order."""
        return tuple(sorted(layer for tensor in self.with_role(role) for layer in tensor.of_layers))

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers whose attention weights this graph returns, in order."""
        return self.layers_with(ATTENTION)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the family, including this one: one for each graph."""
        names = self.properties.get(Property.MODELS, "")
        return tuple(names.split(",")) if names else (self.name,)

    @property
    def takes_text(self) -> bool:
        """Whether the model takes texts, which the server tokenises."""
        return TEXT in self.inputs

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that the server can put before texts, by name."""
        try:
            prompts = json.loads(self.properties.get(Property.TEXT_PROMPTS) or "{}")
        except ValueError:
            prompts = None
        if not isinstance(prompts, dict):
            raise ServerError(f"malformed reply: what {self.name} says of its prompts")
        return MappingProxyType({str(name): str(text) for name, text in prompts.items()})

    layers = _number(Property.LAYERS)
    """L."""
    heads = _number(Property.HEADS)
    """H; where heads were pruned, the number before."""
    kv_heads = _number(Property.KV_HEADS)
    """G, the heads of keys and values, which H / G heads in a row share; None: each has its own."""

    @property
    def precision(self) -> str | None:
        """The precision of the family's files: fp32, int8, fp16 or bf16."""
        return self.properties.get(Property.PRECISION) or None

    @cached_property
    def drift(self) -> Mapping[str, Any] | None:
        """How far the family's precision is from fp32, as its export measured it; None in fp32.

        Its keys: `inputs` it was measured on, `cosines` (least and mean) and `deviations` of outputs.

        Raises:
            ServerError: The property is malformed.
        """
        return self._drift(Property.DRIFT)

    @property
    def compute_precision(self) -> str | None:
        """The precision in which the server computes what the files hold in fp32."""
        return self.properties.get(Property.COMPUTE_PRECISION) or None

    @cached_property
    def compute_drift(self) -> Mapping[str, Any] | None:
        """What computing in another precision than fp32 changes, as the server measured it.

        None in fp32, and if the client asked before the server, which answers meanwhile, had measured it.

        Its keys are those of `drift`, and `other_top_keys`: the share of queries whose strongest key is
        another.

        Raises:
            ServerError: The property is malformed.
        """
        return self._drift(Property.COMPUTE_DRIFT)

    @cached_property
    def same_bits(self) -> tuple[str, ...]:
        """The outputs of which the same request gets the same bits alone, in any batch and on any thread.

        The server measured them when it loaded the model; there are none on GPUs.
        """
        return tuple(filter(None, self.properties.get(Property.SAME_BITS, "").split(",")))

    @cached_property
    def kept_heads(self) -> tuple[tuple[int, ...], ...] | None:
        """The numbers of each layer's heads that pruning left; None if no head was pruned.

        Raises:
            ServerError: The property is malformed.
        """
        value = self.properties.get(Property.KEPT_HEADS, "")
        try:
            return tuple(tuple(map(int, layer)) for layer in json.loads(value)) if value else None
        except (ValueError, TypeError) as error:
            raise ServerError(f"malformed reply: {Property.KEPT_HEADS} of {self.name}") from error

    @cached_property
    def visibility(self) -> Visibility | None:
        """What hides keys from queries, beside padding; None if nothing does."""
        is_causal = self.properties.get(Property.CAUSAL) == "true"
        if not is_causal and self.local_window is None:
            return None
        return Visibility(
            causal=is_causal,
            local_window=self.local_window,
            global_every=self.global_every,
            first_global=self.first_global or 0,
        )

    local_window = _number(Property.LOCAL_WINDOW)
    """In local layers, a token sees only those at most half of it away."""
    global_every = _number(Property.GLOBAL_EVERY)
    """n: every n-th layer is not local; None, with a window: all are."""
    first_global = _number(Property.FIRST_GLOBAL)
    """The first of those layers."""
    d_model = _number(Property.D_MODEL)
    """D."""
    parameters = _number(Property.PARAMETERS)
    """The number of trained parameters."""
    vocabulary = _number(Property.VOCABULARY)
    """The number of token ids; None for a family that takes vectors."""
    max_tokens = _number(Property.MAX_TOKENS)
    """The largest T."""
    max_batch_size = _number(Property.MAX_BATCH_SIZE)
    """The largest B of a request."""
    max_request_tokens = _number(Property.MAX_REQUEST_TOKENS)
    """The largest B × T of a request, padding included."""
    max_request_bytes = _number(Property.MAX_REQUEST_BYTES)
    """The largest request that the server accepts."""
    max_reply_bytes = _number(Property.MAX_REPLY_BYTES)
    """The largest reply that the server sends in one message."""
    max_stream_reply_bytes = _number(Property.MAX_STREAM_REPLY_BYTES)
    """The largest reply that the server streams in parts; None if it does not."""

    @cached_property
    def _by_role(self) -> Mapping[str, tuple[TensorSpec, ...]]:
        found: dict[str, tuple[TensorSpec, ...]] = {}
        for tensor in self.outputs.values():
            if len(tensor.axes) > 1:
                found[tensor.meaning] = (*found.get(tensor.meaning, ()), tensor)
        return found

    def _drift(self, key: Property) -> Mapping[str, Any] | None:
        try:
            drift = json.loads(self.properties.get(key) or "null")
        except ValueError:
            drift = ()
        if drift is not None and not isinstance(drift, dict):
            raise ServerError(f"malformed reply: {key} of {self.name}")
        return None if drift is None else MappingProxyType(drift)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """An entry of the server's list of models."""

    name: str
    version: str
    state: str
    """READY, LOADING or UNAVAILABLE."""
    reason: str
    """The reason why it is not READY."""


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """The server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Duration:
    """The count and total duration of an event."""

    count: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class ModelStatistics(Picklable):
    """The statistics of a model since the server started."""

    name: str
    version: str
    inference_count: int
    """The number of sequences."""
    execution_count: int
    """The number of engine runs."""
    last_inference_ms: int
    """Milliseconds since the epoch; 0 before the first."""
    durations: Mapping[str, Duration]
    """Durations of requests: success, fail, queue, compute_input, compute_infer, compute_output, ..."""

    @classmethod
    def from_message(cls, message: "pb.ModelStatistics") -> "ModelStatistics":
        """Read an entry of the reply to ModelStatistics."""
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
    """Return the family of a model: `minilm` of `minilm.attention`."""
    return model.partition(".")[0]


def _tensors(
    messages: "Iterable[pb.ModelMetadataResponse.TensorMetadata]", described: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, TensorSpec]:
    return MappingProxyType(
        {message.name: _tensor(message, described.get(message.name, {})) for message in messages}
    )


def _tensor(message: "pb.ModelMetadataResponse.TensorMetadata", described: Mapping[str, Any]) -> TensorSpec:
    of = {"axes": _AXES.get(str(described.get("role") or message.name)), **described}
    return TensorSpec.from_json(of, name=message.name, datatype=message.datatype, shape=message.shape)
