"""A model of Triton's Python back end: joins the requests of a batch, and answers them by one run."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.engines.plans import open_tokenizer, pad, token_ids
from benchmarks.graph import encode_each, open_graph


class TritonPythonModel:
    """An encoder, of vectors or of texts; the name of the class is Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph and the tokenizer that the configuration names."""
        parameters = json.loads(args["model_config"])["parameters"]
        threads = int(parameters["threads"]["string_value"])
        self._session = open_graph(parameters["graph"]["string_value"], threads)
        tokenizer = parameters.get("tokenizer")
        self._tokenizer = tokenizer and open_tokenizer(tokenizer["string_value"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests of a batch."""
        name, answer, output = (
            ("text", self._embed, "pooled") if self._tokenizer else ("x", self._encode, "output")
        )
        inputs = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor(output, rows)]) for rows in answer(inputs)]

    def _encode(self, inputs: Sequence[Any]) -> list[Any]:
        return [np.ascontiguousarray(output) for output in encode_each(self._session, inputs)]

    def _embed(self, inputs: Sequence[Any]) -> list[Any]:
        """Embed texts, [B_i, 1] of each request."""
        texts = [text.decode() for array in inputs for text in array.ravel()]
        vectors = self._session.run(["pooled"], pad(token_ids(self._tokenizer, texts)))[0]
        return np.split(vectors, np.cumsum([len(array) for array in inputs])[:-1])
