"""`ModelConfig`: the model in the terms of Triton's configuration, which `perf_analyzer` reads first."""

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import triton_type
from polyhead_server.devices import CUDA
from polyhead_server.registry import Model
from polyhead_server.scheduling.work import DEFAULT_PRIORITY, PRIORITIES
from polyhead_server.service.metadata import PLATFORM, properties
from polyhead_server.settings import Settings


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
                kind=pb.ModelInstanceGroup.KIND_GPU
                if model.provider == CUDA
                else pb.ModelInstanceGroup.KIND_CPU,
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
