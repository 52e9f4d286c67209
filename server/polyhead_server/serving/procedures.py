"""The procedures of `inference.GRPCInferenceService` other than inference, from message to message."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from google.protobuf.message import Message

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import triton_type
from polyhead_proto.names import Property
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import InvalidRequestError, UnknownModelError, UnsupportedError, listed, quoted
from polyhead_server.observability.metrics import Metrics, Totals
from polyhead_server.repository.manifest import PACKED, PADDED
from polyhead_server.scheduling.batch import DEFAULT_PRIORITY, PRIORITIES
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.reconciler import Reconciler
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

Procedure = Callable[[Any], Message | Awaitable[Message]]


class Procedures:
    """Answer everything but inference: liveness, readiness, metadata, statistics, loading and unloading.

    Callers may load and unload only with `--repository-mode explicit`. Their requests carry no file, path or
    configuration: models come from the repository, and are checked as at the start.

    Args:
        registry: The models.
        lifecycle: The server's readiness.
        reconciler: Loads and unloads models.
        settings: The limits, which metadata publishes.
    """

    def __init__(
        self, registry: Registry, lifecycle: Lifecycle, reconciler: Reconciler, settings: Settings
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._settings = settings
        self._changes: set[asyncio.Task[None]] = set()
        self._by_name: dict[str, Procedure] = {
            "ServerLive": lambda _: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda _: pb.ServerReadyResponse(ready=lifecycle.ready),
            "ServerMetadata": lambda _: server_metadata(settings),
            "ModelReady": self._model_ready,
            "ModelMetadata": lambda asked: model_metadata(self._find(asked), registry, settings),
            "ModelConfig": lambda asked: model_config(self._find(asked), settings),
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": lambda asked: repository_index(registry, ready_only=asked.ready),
            "RepositoryModelLoad": lambda asked: self._change(
                asked, reconciler.load, pb.RepositoryModelLoadResponse()
            ),
            "RepositoryModelUnload": lambda asked: self._change(
                asked, reconciler.unload, pb.RepositoryModelUnloadResponse(), "unload_dependents"
            ),
        }

    def find(self, name: str) -> Procedure:
        """Return the function that answers a procedure's requests. It raises `RequestError`.

        Raises:
            UnsupportedError: There is no such procedure.
        """
        if name not in self._by_name:
            raise UnsupportedError(f"procedure must be one of {listed(self._by_name)}, was {quoted(name)}")
        return self._by_name[name]

    def _model_ready(self, request: pb.ModelReadyRequest) -> Message:
        try:
            slot = self._registry.slot(request.name, request.version)
        except UnknownModelError:  # as in Triton: an unknown model is not ready
            return pb.ModelReadyResponse(ready=False)
        ready = slot.state is ModelState.READY and not self._lifecycle.draining.is_set()
        return pb.ModelReadyResponse(ready=ready)

    async def _model_statistics(self, request: pb.ModelStatisticsRequest) -> Message:
        models = [self._find(request)] if request.name else self._registry.models()
        return await asyncio.to_thread(model_statistics, models, self._registry.metrics)

    async def _change(
        self,
        request: Any,
        change: Callable[[str], Coroutine[Any, Any, None]],
        answer: Message,
        *accepted: str,
    ) -> Message:
        """Load or unload a family, and answer when that is done. It is done even if the caller leaves.

        Args:
            request: Names the family.
            change: Does it.
            answer: What the caller gets.
            accepted: The parameters that the request may have.
        """
        with self._lifecycle.accept():
            self._check_change(request, *accepted)
            task = asyncio.get_running_loop().create_task(change(request.model_name))
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may ask
            await asyncio.shield(task)
            return answer

    def _find(self, request: Any) -> Model:
        return self._registry.find(request.name, request.version)

    def _check_change(self, request: Any, *accepted: str) -> None:
        if self._settings.repository_mode != "explicit":
            raise UnsupportedError(
                "models are not loaded or unloaded by call here: "
                "the server must be started with --repository-mode explicit and --management-token-file"
            )
        if request.repository_name:
            raise InvalidRequestError(f"repository_name must be empty, was {quoted(request.repository_name)}")
        for name in request.parameters:
            if name not in accepted:
                raise InvalidRequestError(
                    f"parameter {quoted(name)} is not taken: models come from the server's own repository, "
                    "with the configuration they have there"
                )


# ---- What the server is, and its models -----------------------------------------------------------


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
        platform=_PLATFORMS.get(model.device.backend, model.device.backend),
        # Triton's clients size what they send by the inputs; outputs have the shape in which they are sent.
        inputs=[tensor(spec, (-1, *_dims(spec))) for spec in signature.inputs.values()],
        outputs=[tensor(spec, spec.shape) for spec in signature.outputs.values()],
        properties=_properties(model, settings),
    )


def model_config(model: Model, settings: Settings) -> pb.ModelConfigResponse:
    """Describe a model as Triton's configuration does: shapes leave the batch axis out."""
    signature, device = model.signature, model.device
    config = pb.ModelConfig(
        name=signature.name,
        platform=_PLATFORMS.get(device.backend, device.backend),
        backend=device.backend,
        max_batch_size=settings.max_batch_size,
        default_model_filename=signature.manifest.graphs[signature.graph].file,
        input=[
            pb.ModelInput(
                name=spec.name,
                data_type=triton_type(spec.datatype),
                dims=_dims(spec),
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
                kind=pb.ModelInstanceGroup.KIND_CPU if device.host_memory else pb.ModelInstanceGroup.KIND_GPU,
            )
        ],
        dynamic_batching=pb.ModelDynamicBatching(
            # By default, no request is delayed to fill a batch, no number of requests bounds the queue, and
            # what waits too long is rejected. So it is here; the queue is bounded in tokens.
            priority_levels=PRIORITIES,
            default_priority_level=DEFAULT_PRIORITY,
            default_queue_policy=pb.ModelQueuePolicy(
                default_timeout_microseconds=round(settings.max_wait_seconds * 1e6),
                allow_timeout_override=True,
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
    encoder, drift, tokenizer = manifest.encoder, manifest.drift, manifest.tokenizer
    every = (*signature.inputs.values(), *signature.outputs.values())
    tensors = {spec.name: spec.to_json() for spec in every}
    is_16_bits = manifest.precision not in {"fp32", "int8"}  # and computed in no other precision
    values = {
        Property.FAMILY: manifest.name,
        Property.GRAPH: signature.graph,
        Property.MODELS: ",".join(map(manifest.served_name, manifest.graphs)),
        Property.TENSORS: json.dumps(tensors, separators=(",", ":")),
        Property.LAYERS: encoder.layers,
        Property.HEADS: encoder.heads,
        Property.KV_HEADS: encoder.kv_heads,
        Property.KEPT_HEADS: None if encoder.kept_heads is None else json.dumps(encoder.kept_heads),
        Property.D_MODEL: encoder.d_model,
        Property.HEAD_WIDTH: encoder.head_size,
        Property.CAUSAL: str(encoder.causal).lower(),
        Property.LOCAL_WINDOW: encoder.local_window,
        Property.GLOBAL_EVERY: encoder.global_every,
        Property.FIRST_GLOBAL: encoder.first_global,
        Property.POOLING: f"{encoder.pooling} + dense" if encoder.dense else encoder.pooling,
        Property.PRECISION: manifest.precision,
        Property.DRIFT: None if drift is None else json.dumps(drift.of(signature.graph)),
        Property.COMPUTE_PRECISION: manifest.precision if is_16_bits else model.device.compute_precision,
        Property.COMPUTE_DRIFT: json.dumps(model.drift) if model.drift else None,
        Property.SAME_BITS: ",".join(model.same_bits),
        Property.ACTIVATIONS: ",".join(PACKED if signature.packed else PADDED),
        Property.PARAMETERS: manifest.parameters,
        Property.VOCABULARY: encoder.vocabulary,
        Property.MAX_TOKENS: signature.max_tokens,
        Property.TEXT_MAX_TOKENS: manifest.text_max_tokens,
        Property.TEXT_PROMPT: None if tokenizer is None else tokenizer.prompt,
        Property.TEXT_PROMPTS: None if tokenizer is None else json.dumps(tokenizer.prompts),
        **{name: getattr(settings, name) for name in _LIMITS},
        Property.EXECUTION_PROVIDER: model.device.provider,
        Property.FORMAT: manifest.format,
    }
    return {name.value: "" if value is None else str(value) for name, value in values.items()}


def _dims(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape in Triton's terms: without B, and never empty, so that one value is (1)."""
    return (1,) if spec.is_per_sequence else spec.shape[1:]


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


def model_statistics(models: Iterable[Model], metrics: Metrics) -> pb.ModelStatisticsResponse:
    """Sum up the counters of models over all workers, which takes a while where models are many."""
    totals = metrics.totals()
    return pb.ModelStatisticsResponse(
        model_stats=[
            _statistics(name, version, totals[name, version])
            for name, version in ((one.signature.name, str(one.signature.version)) for one in models)
        ]
    )


def _statistics(name: str, version: str, of: Totals) -> pb.ModelStatistics:
    def duration(count: float, seconds: float) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=round(count), ns=round(seconds * 1e9))

    def total(histogram: str) -> pb.StatisticDuration:
        return duration(of(f"{histogram}_count"), of(f"{histogram}_sum"))

    def batch(size: str) -> pb.InferBatchStatistics:
        runs = of("polyhead_runs_total", sequences=size)
        stages = {
            f"compute_{stage}": duration(runs, of("polyhead_run_seconds_total", sequences=size, stage=stage))
            for stage in ("input", "infer", "output")
        }
        return pb.InferBatchStatistics(batch_size=int(size), **stages)

    sizes = {sample.labels["sequences"] for sample in of.samples["polyhead_runs_total"]}
    return pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=round(of("polyhead_last_run_timestamp_seconds") * 1e3),
        inference_count=round(of("polyhead_sequences_total")),
        execution_count=round(of("polyhead_batch_sequences_count")),
        inference_stats=pb.InferStatistics(
            success=total("polyhead_request_seconds"),
            fail=duration(of.failures, of("polyhead_failed_seconds_total")),
            queue=total("polyhead_queue_seconds"),
            compute_input=duration(of("polyhead_request_seconds_count"), of.input_seconds),
            compute_infer=total("polyhead_compute_seconds"),
            compute_output=total("polyhead_serialise_seconds"),
            cache_hit=duration(0, 0),
            cache_miss=duration(0, 0),
        ),
        batch_stats=[batch(size) for size in sorted(sizes, key=int)],
    )
