"""The fast graph: attention is one fused operator, which has no weights to return."""

from typing import ClassVar

from polyhead_export.signature import GraphKind


class FastGraph(GraphKind):
    """The encoder's output alone."""

    name: ClassVar[str] = "fast"
    file: ClassVar[str] = "model.onnx"
