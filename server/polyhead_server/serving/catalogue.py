"""What the server and its models are: `ServerMetadata` and `ModelMetadata`."""

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import triton_type
from polyhead_server.observability import counter_layout as at
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.scheduling.work import DEFAULT_PRIORITY, PRIORITIES
from polyhead_server.serving.registry import Model, Registry, State
from polyhead_server.settings import Settings

PLATFORM = "onnxruntime_onnx"

EXTENSIONS = ("model_configuration", "parameters", "statistics")
"""The extensions of the protocol that are served, by Triton's names."""


def server_metadata(settings: Settings) -> pb.ServerMetadataResponse:
    """Name, version and extensions of the server."""
    managed = ("model_repository",) if settings.repository_mode == "explicit" else ()
    return pb.ServerMetadataResponse(
        name="polyhead", version=version("polyhead"), extensions=(*EXTENSIONS, *managed)
    )


def model_metadata(model: Model, registry: Registry, settings: Settings) -> pb.ModelMetadataResponse:
    """Inputs, outputs and properties of one model. docs/wire.md explains each property."""
    signature = model.signature
    return pb.ModelMetadataResponse(
        name=signature.name,
        versions=[str(number) for number in registry.versions(signature.name)],
        platform=PLATFORM,
        # Inputs in Triton's terms, as its clients size what they send by them; outputs as they are sent.
        inputs=[_tensor(spec, (-1, *spec.dims)) for spec in signature.inputs.values()],
        outputs=[_tensor(spec, spec.shape) for spec in signature.outputs.values()],
        properties=properties(model, settings),
    )


def properties(model: Model, settings: Settings) -> dict[str, str]:
    """What a client may want to know about a model; empty where there is none of it."""
    signature = model.signature
    manifest = signature.manifest
    encoder = manifest.encoder
    values = {
        "family": manifest.name,
        "graph": signature.graph,
        "models": ",".join(map(manifest.served_name, manifest.graphs)),
        "tensors": _describe(signature),
        "layers": encoder.layers,
        "heads": encoder.heads,
        "d_model": encoder.d_model,
        "head_width": encoder.head_size,
        "causal": str(encoder.causal).lower(),
        "pooling": encoder.pooling,
        "precision": manifest.precision,
        "parameters": manifest.numbers.parameters,
        "vocabulary": encoder.vocabulary,
        "max_tokens": signature.max_tokens,
        "text_max_tokens": manifest.text_max_tokens,
        "text_prompt": None if manifest.tokenizer is None else manifest.tokenizer.prompt,
        "max_request_bytes": settings.max_request_bytes,
        "max_reply_bytes": settings.max_reply_bytes,
        "max_stream_reply_bytes": settings.max_stream_reply_bytes,
        "max_text_bytes": settings.max_text_bytes,
        "max_batch_size": settings.max_batch_size,
        "max_request_tokens": settings.max_request_tokens,
        "max_working_bytes": settings.max_working_bytes,
        "execution_provider": model.provider,
        "format": manifest.format,
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _describe(signature: Signature) -> str:
    """Axes and roles of inputs and outputs, as JSON: what their shapes and names do not say."""
    return json.dumps(
        {
            spec.name: {"axes": spec.axes}
            | ({} if spec.role is None else {"role": spec.role})
            | ({} if spec.layer is None else {"layer": spec.layer})
            for spec in (*signature.inputs.values(), *signature.outputs.values())
        },
        separators=(",", ":"),
    )


def _tensor(spec: TensorSpec, shape: Sequence[int]) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=shape)


def model_config(model: Model, settings: Settings) -> pb.ModelConfigResponse:
    """One model's configuration. Its shapes leave the batch dimension out."""
    signature = model.signature
    config = pb.ModelConfig(
        name=signature.name,
        platform=PLATFORM,
        backend="onnxruntime",
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
            # Nothing waits for company, and the queue is bounded in tokens: both are 0 in these terms.
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
            name: pb.ModelParameter(string_value=value) for name, value in properties(model, settings).items()
        },
    )
    return pb.ModelConfigResponse(config=config)


def repository_index(registry: Registry, *, ready_only: bool) -> pb.RepositoryIndexResponse:
    """Lists the repository, or what of it is ready."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=slot.name,
                version=str(slot.version) if slot.version else "",
                state=slot.state,
                reason=slot.reason,
            )
            for slot in registry.slots()
            if slot.state is State.READY or not ready_only
        ]
    )


_NOTHING = [0] * at.SLOTS


def model_statistics(models: Iterable[Model], counters: SharedCounters) -> pb.ModelStatisticsResponse:
    """The counters of these models. Reads every worker's, which takes a while where models are many."""
    totals = counters.totals()
    return pb.ModelStatisticsResponse(
        model_stats=[
            _one(model, totals.get((model.signature.name, model.signature.version), _NOTHING))
            for model in models
        ]
    )


def _one(model: Model, values: Sequence[int]) -> pb.ModelStatistics:
    answered = at.REQUEST.count(values)

    def duration(histogram: at.Histogram) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=histogram.count(values), ns=values[histogram.sum])

    return pb.ModelStatistics(
        name=model.signature.name,
        version=str(model.signature.version),
        last_inference=values[at.LAST_INFERENCE_MS],
        inference_count=values[at.SEQUENCES],
        execution_count=at.BATCH.count(values),
        inference_stats=pb.InferStatistics(
            success=duration(at.REQUEST),
            fail=pb.StatisticDuration(count=values[at.FAILED], ns=values[at.FAILED_NS]),
            queue=duration(at.QUEUE),
            compute_input=pb.StatisticDuration(count=answered, ns=values[at.INPUT_NS]),
            compute_infer=duration(at.COMPUTE),
            compute_output=duration(at.SERIALISE),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=pb.StatisticDuration(count=values[row], ns=values[row + 1]),
                compute_infer=pb.StatisticDuration(count=values[row], ns=values[row + 2]),
                compute_output=pb.StatisticDuration(count=values[row], ns=values[row + 3]),
            )
            for size, row in at.BATCH_ROWS.items()
            if values[row]
        ],
    )
