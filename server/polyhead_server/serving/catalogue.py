"""Describe the server and its models: metadata, configuration, index, statistics, gauges."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import triton_type
from polyhead_proto.names import Property
from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.repository.manifest import PACKED, PADDED
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.scheduling.work import DEFAULT_PRIORITY, PRIORITIES
from polyhead_server.serving.budget import Budget
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.registry import Model, ModelState, Registry
from polyhead_server.settings import Settings

_PLATFORMS = {"onnxruntime": "onnxruntime_onnx"}
"""Triton's names for backends where they differ from those of the configuration."""

EXTENSIONS = ("model_configuration", "parameters", "statistics")
"""The protocol's extensions that are served, by Triton's names."""

_LIMITS = (
    Property.MAX_REQUEST_BYTES,
    Property.MAX_REPLY_BYTES,
    Property.MAX_STREAM_REPLY_BYTES,
    Property.MAX_TEXT_BYTES,
    Property.MAX_BATCH_SIZE,
    Property.MAX_REQUEST_TOKENS,
    Property.MAX_WORKING_BYTES,
)
"""The settings that metadata shows, by their own names."""

_OF_TENSORS = (
    *("axes", "role", "fill", "below", "range", "layer", "layers", "heads", "labels"),
    *("unit", "matryoshka"),
)
"""The fields of tensors that metadata shows."""

_SAMPLE_SECONDS = 0.5
_NO_COUNTS = [0] * slots.SLOTS


def server_metadata(settings: Settings) -> pb.ServerMetadataResponse:
    """Describe the server: name, version, extensions."""
    managed = ("model_repository",) if settings.repository_mode == "explicit" else ()
    binary = ("binary_tensor_data",) if settings.http else ()  # gRPC has no other tensors
    return pb.ServerMetadataResponse(
        name="polyhead", version=version("polyhead"), extensions=(*EXTENSIONS, *managed, *binary)
    )


def model_metadata(model: Model, registry: Registry, settings: Settings) -> pb.ModelMetadataResponse:
    """Describe a model: inputs, outputs, properties. docs/wire.md explains each property."""

    def tensor(spec: TensorSpec, shape: Sequence[int]) -> pb.ModelMetadataResponse.TensorMetadata:
        return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=shape)

    signature = model.signature
    return pb.ModelMetadataResponse(
        name=signature.name,
        versions=[str(number) for number in registry.versions(signature.name)],
        platform=_PLATFORMS.get(model.backend, model.backend),
        # Triton's clients size what they send by the inputs; outputs have the shape in which they are sent.
        inputs=[tensor(spec, (-1, *spec.dims)) for spec in signature.inputs.values()],
        outputs=[tensor(spec, spec.shape) for spec in signature.outputs.values()],
        properties=_properties(model, settings),
    )


def model_config(model: Model, settings: Settings) -> pb.ModelConfigResponse:
    """Describe a model as Triton's configuration does: shapes leave the batch axis out."""
    signature = model.signature
    config = pb.ModelConfig(
        name=signature.name,
        platform=_PLATFORMS.get(model.backend, model.backend),
        backend=model.backend,
        max_batch_size=settings.max_batch_size,
        default_model_filename=signature.manifest.graphs[signature.graph].file,
        input=[
            pb.ModelInput(
                name=spec.name,
                data_type=triton_type(spec.datatype),
                dims=spec.dims,
                reshape=pb.ModelTensorReshape() if spec.is_per_sequence else None,
                optional=spec.optional,
            )
            for spec in signature.inputs.values()
        ],
        output=[
            pb.ModelOutput(name=spec.name, data_type=triton_type(spec.datatype), dims=spec.shape[1:])
            for spec in signature.outputs.values()
        ],
        instance_group=[
            pb.ModelInstanceGroup(
                name=signature.name,
                count=1,
                kind=pb.ModelInstanceGroup.KIND_GPU if model.on_gpu else pb.ModelInstanceGroup.KIND_CPU,
            )
        ],
        dynamic_batching=pb.ModelDynamicBatching(
            # No request is delayed to fill a batch, and the queue is bounded in tokens: 0 in these terms.
            max_queue_delay_microseconds=0,
            priority_levels=PRIORITIES,
            default_priority_level=DEFAULT_PRIORITY,
            default_queue_policy=pb.ModelQueuePolicy(
                timeout_action=pb.ModelQueuePolicy.REJECT,
                default_timeout_microseconds=round(settings.max_wait_seconds * 1e6),
                allow_timeout_override=True,
                max_queue_size=0,
            ),
        ),
        parameters={
            name: pb.ModelParameter(string_value=value)
            for name, value in _properties(model, settings).items()
        },
    )
    return pb.ModelConfigResponse(config=config)


def _properties(model: Model, settings: Settings) -> dict[str, str]:
    """Return what clients may want to know beside tensors; a property that a model lacks is empty."""
    signature = model.signature
    manifest = signature.manifest
    encoder, drift = manifest.encoder, manifest.drift
    values = {
        Property.FAMILY: manifest.name,
        Property.GRAPH: signature.graph,
        Property.MODELS: ",".join(map(manifest.served_name, manifest.graphs)),
        Property.TENSORS: _tensors(signature),
        Property.LAYERS: encoder.layers,
        Property.HEADS: encoder.heads,
        Property.KEPT_HEADS: None if encoder.kept_heads is None else json.dumps(encoder.kept_heads),
        Property.D_MODEL: encoder.d_model,
        Property.HEAD_WIDTH: encoder.head_size,
        Property.CAUSAL: str(encoder.causal).lower(),
        Property.POOLING: f"{encoder.pooling} + dense" if encoder.dense else encoder.pooling,
        Property.PRECISION: manifest.precision,
        Property.DRIFT: None if drift is None else json.dumps(drift.of(signature.graph)),
        Property.COMPUTE_PRECISION: _compute_precision(model),
        Property.COMPUTE_DRIFT: _compute_drift(model),
        Property.ACTIVATIONS: ",".join(PACKED if signature.packed else PADDED),
        Property.PARAMETERS: manifest.parameters,
        Property.VOCABULARY: encoder.vocabulary,
        Property.MAX_TOKENS: signature.max_tokens,
        Property.TEXT_MAX_TOKENS: manifest.text_max_tokens,
        Property.TEXT_PROMPT: None if manifest.tokenizer is None else manifest.tokenizer.prompt,
        Property.TEXT_PROMPTS: None if manifest.tokenizer is None else json.dumps(manifest.tokenizer.prompts),
        **{name: getattr(settings, name) for name in _LIMITS},
        Property.EXECUTION_PROVIDER: model.provider,
        Property.FORMAT: manifest.format,
    }
    return {name.value: "" if value is None else str(value) for name, value in values.items()}


def _compute_drift(model: Model) -> str | None:
    """Return what the precision of computation changes, as JSON; None in fp32, and until it is measured."""
    if model.drift is None or not model.drift.done():
        return None
    return json.dumps(model.drift.result().facts())


def _compute_precision(model: Model) -> str:
    """Return the precision of computation: of a family in 16 bits, its own."""
    own = model.signature.manifest.precision
    return model.compute_precision if own in {"fp32", "int8"} else own


def _tensors(signature: Signature) -> str:
    """Return what the manifest says of inputs and outputs beyond their datatypes, as JSON."""
    described = {
        spec.name: {name: value for name in _OF_TENSORS if (value := getattr(spec, name)) is not None}
        for spec in (*signature.inputs.values(), *signature.outputs.values())
    }
    return json.dumps(described, separators=(",", ":"))


def repository_index(registry: Registry, *, ready_only: bool) -> pb.RepositoryIndexResponse:
    """List the versions of every model, or those that are ready."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=slot.name,
                version=str(slot.version) if slot.version else "",
                state=slot.state,
                reason=slot.reason,
            )
            for slot in registry.slots()
            if slot.state is ModelState.READY or not ready_only
        ]
    )


def model_statistics(models: Iterable[Model], counters: SharedCounters) -> pb.ModelStatisticsResponse:
    """Sum up the counters of models over all workers, which takes a while where models are many."""
    totals = counters.totals()
    return pb.ModelStatisticsResponse(
        model_stats=[
            _statistics(model, totals.get((model.signature.name, model.signature.version), _NO_COUNTS))
            for model in models
        ]
    )


def _statistics(model: Model, values: Sequence[int]) -> pb.ModelStatistics:
    def duration(count: int, ns: int) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=count, ns=ns)

    def total(histogram: slots.Histogram) -> pb.StatisticDuration:
        return duration(histogram.count(values), values[histogram.sum])

    answered = slots.REQUEST.count(values)
    return pb.ModelStatistics(
        name=model.signature.name,
        version=str(model.signature.version),
        last_inference=values[slots.LAST_INFERENCE_MS],
        inference_count=values[slots.SEQUENCES],
        execution_count=slots.BATCH.count(values),
        inference_stats=pb.InferStatistics(
            success=total(slots.REQUEST),
            fail=duration(values[slots.FAILED], values[slots.FAILED_NS]),
            queue=total(slots.QUEUE),
            compute_input=duration(answered, values[slots.INPUT_NS]),
            compute_infer=total(slots.COMPUTE),
            compute_output=total(slots.SERIALISE),
            cache_hit=duration(0, 0),
            cache_miss=duration(0, 0),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=duration(values[row], values[row + 1]),
                compute_infer=duration(values[row], values[row + 2]),
                compute_output=duration(values[row], values[row + 3]),
            )
            for size, row in slots.BATCH_ROWS.items()
            if values[row]
        ],
    )


class Gauges:
    """Write the state of models beside their counters, where metrics read it. Lives on the event loop.

    Args:
        registry: The models.
        budget: The memory of requests and replies.
        lifecycle: The server's readiness.
    """

    def __init__(self, registry: Registry, budget: Budget, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._budget = budget
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Write which models are ready, and where they run."""
        counters = self._registry.counters
        self._registry.unattributed.page[slots.SERVING] = int(self._lifecycle.ready)
        ready = {(slot.name, slot.version): slot.model for slot in self._registry.slots()}
        for key in {*ready, *counters.written}:
            page, model = counters.page(*key), ready.get(key)
            page[slots.READY] = int(model is not None)
            if model is not None:
                page[slots.PROVIDER] = slots.encode_provider(model.provider)

    def sample(self) -> None:
        """Write how much is queued and held, now and every half second."""
        for model in self._registry.models():
            model.statistics.page[slots.QUEUED_TOKENS] = model.scheduler.queued_tokens
        self._registry.unattributed.page[slots.HELD_BYTES] = self._budget.bytes
        self._timer = asyncio.get_running_loop().call_later(_SAMPLE_SECONDS, self.sample)

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()
