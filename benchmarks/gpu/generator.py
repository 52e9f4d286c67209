"""One of the processes that put load on a server: `python -m gpu.generator`, then orders, line by line.

A connection reaches one worker of a server, so each process opens several.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from load import closed_loop
from polyhead_proto import messages as pb


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to send, where to, and for how long."""

    address: str
    model: str
    vocabulary: int
    types: bool
    """The model takes `token_type_ids`."""
    batch: int
    """B of each request."""
    tokens: int
    """T of each request."""
    outputs: tuple[str, ...]
    dtype: str | None = None
    """In which type attention is sent; None is the graph's own."""
    in_flight: int = 1
    connections: int = 1
    seconds: float
    seed: int = 0

    def as_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))


def requests_of(order: Order, count: int = 16) -> list[bytes]:
    """Different requests, each `order.batch` sequences of random ids, all as long as T."""
    random = np.random.default_rng(order.seed)
    return [request_of(order, random).SerializeToString() for _ in range(count)]


def request_of(order: Order, random: np.random.Generator) -> Any:
    """One request."""
    shape = (order.batch, order.tokens)
    inputs: list[tuple[str, str, Any]] = [
        ("input_ids", "INT64", random.integers(order.vocabulary, size=shape))
    ]
    if order.types:
        inputs.append(("token_type_ids", "INT64", np.zeros(shape, np.int64)))
    inputs.append(("lengths", "INT32", np.full(order.batch, order.tokens, np.int32)))
    request = pb.ModelInferRequest(model_name=order.model)
    for name, datatype, array in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in order.outputs:
        output = request.outputs.add(name=name)
        if order.dtype is not None and name.startswith("attention."):
            output.parameters["dtype"].string_param = order.dtype
    return request


async def send(order: Order, requests: Sequence[bytes]) -> dict[str, Any]:
    """Keeps requests in flight on every connection, and says what became of them."""
    each, more = divmod(order.in_flight, order.connections)
    loads = await asyncio.gather(
        *(
            closed_loop(order.address, requests, in_flight=each + (number < more), seconds=order.seconds)
            for number in range(order.connections)
        )
    )
    return {
        "replies_per_second": sum(load.rate for load in loads),
        "latencies_ms": [round(latency, 3) for load in loads for latency in load.latencies_ms],
        "errors": sum(load.errors for load in loads),
        "cores": loads[0].client_cpu_seconds / loads[0].seconds,  # the loops share one process
    }


def main() -> None:
    """Takes orders, one a line: builds the requests, says that it is ready, waits for the word, sends.

    What fails is answered with `{"error": …}`, and the next order is waited for.
    """
    for line in sys.stdin:
        order = Order(**json.loads(line))
        requests = requests_of(order)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            answer = asyncio.run(send(order, requests))
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
