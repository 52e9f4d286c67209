"""What the server and its models are: `ServerMetadata` and `ModelMetadata`."""

import json
from collections.abc import Sequence
from importlib.metadata import version

from polyhead_proto import messages as pb
from polyhead_server.registry import Model, Registry
from polyhead_server.settings import Settings
from polyhead_server.signature import Signature, TensorSpec

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
