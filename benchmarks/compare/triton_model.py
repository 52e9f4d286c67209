"""A model of Triton's Python back end: joins the requests of a batch, and answers them by one run."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.graph import encode_each, open_graph


class TritonPythonModel:
    """An encoder of vectors; the name of the class is Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph that the configuration names."""
        parameters = json.loads(args["model_config"])["parameters"]
        threads = int(parameters["threads"]["string_value"])
        self._session = open_graph(parameters["graph"]["string_value"], threads)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests of a batch."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        outputs = (np.ascontiguousarray(output) for output in encode_each(self._session, inputs))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output", output)]) for output in outputs]
