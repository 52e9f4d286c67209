"""Whether a server answers what its graph computes: one ragged request, at a size that nothing rounds to.

Shape letters: B batch, T tokens, D d_model.
"""

from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from load import INFER
from polyhead_model import EncoderConfig
from polyhead_proto import messages as pb

Feeds = Mapping[str, NDArray[Any]]

_DATATYPES = {"input_ids": "INT64", "token_type_ids": "INT64", "lengths": "INT32"}


def feeds_of(config: EncoderConfig, lengths: list[int], *, seed: int) -> Feeds:
    """Random token ids, padded to [B, T]."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    feeds: dict[str, NDArray[Any]] = {"input_ids": random.integers(config.vocabulary or 1, size=shape)}
    if config.types:
        feeds["token_type_ids"] = np.zeros(shape, np.int64)
    return feeds | {"lengths": np.array(lengths, np.int32)}


class Question:
    """A request, and what the graph alone makes of it.

    Args:
        session: The graph.
        model: Its name on a server.
        config: The encoder's.
        tokens: About its T.
    """

    def __init__(
        self, session: ort.InferenceSession, *, model: str, config: EncoderConfig, tokens: int
    ) -> None:
        longest = max(1, tokens - 3)
        feeds = feeds_of(config, [longest, 1, (longest + 1) // 2], seed=11)
        self._request = pb.ModelInferRequest(model_name=model)
        for name, array in feeds.items():
            self._request.inputs.add(name=name, datatype=_DATATYPES[name], shape=array.shape)
            self._request.raw_input_contents.append(array.tobytes())
        self._request.outputs.add(name="pooled")
        (self._pooled,) = session.run(["pooled"], dict(feeds))

    def difference(self, address: str) -> float:
        """The largest |difference| between the server's pooled vectors [B, D] and the graph's."""
        with grpc.insecure_channel(address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
            reply = pb.ModelInferResponse.FromString(call(self._request.SerializeToString(), timeout=60))
        pooled = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(self._pooled.shape)
        return float(np.abs(pooled - self._pooled).max())
