"""KServe's model server with encoders; it has no batching of its own."""

import argparse

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

from benchmarks.graph import encode, open_graph


class KServeEncoder(Model):  # type: ignore[misc]
    """An encoder.

    Args:
        name: What it is called by.
        graph: An ONNX file.
        threads: Threads of one run.
    """

    def __init__(self, name: str, graph: str, threads: int) -> None:
        super().__init__(name)
        self._session = open_graph(graph, threads)
        self.ready = True

    def predict(
        self, payload: InferRequest, headers: object = None, response_headers: object = None
    ) -> InferResponse:
        """Answer one request."""
        output = encode(self._session, payload.inputs[0].as_numpy())
        reply = InferOutput(name="output", shape=list(output.shape), datatype="FP32")
        reply.set_data_from_numpy(output, binary_data=True)
        return InferResponse(payload.id, self.name, [reply], use_binary_outputs=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("graphs", nargs="+", help="NAME=FILE")
    chosen = parser.parse_args()
    named = (graph.partition("=") for graph in chosen.graphs)
    encoders = [KServeEncoder(name, path, chosen.threads) for name, _, path in named]
    server = ModelServer(
        http_port=chosen.http_port, grpc_port=chosen.port, workers=1, enable_latency_logging=False
    )
    server.start(encoders)
