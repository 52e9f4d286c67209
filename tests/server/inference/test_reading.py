"""What a request is read into."""

from functools import partial
from math import inf
from pathlib import Path
from typing import Any, cast

from polyhead_proto import messages as pb
from polyhead_server import Settings
from polyhead_server.inference.account import RequestAccount
from polyhead_server.inference.reading import Job, read
from polyhead_server.inference.wire import split_infer
from polyhead_server.repository import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.registry import Model, Registry


def test_numbers_of_typed_contents_count_as_what_they_are_read_as(repository: Path) -> None:
    """One of a byte takes eight, which the size of the message does not tell."""
    signature = signature_of(
        read_manifest(repository / "tiny-tokens" / "1", family="tiny-tokens", version=1), "fast"
    )
    registry = Registry()
    registry.declare(signature.name, 1)
    registry.ready(Model(signature=signature, scheduler=cast(Any, None), tokeniser=None, provider="CPU"))
    reader = partial(read, registry=registry, settings=Settings(models=Path()))

    def job(tokens: int, *, typed: bool) -> Job:
        message = pb.ModelInferRequest(model_name=signature.name)
        tensor = message.inputs.add(name="input_ids", datatype="INT64", shape=[1, tokens])
        if typed:
            tensor.contents.int64_contents.extend([1] * tokens)
        else:
            message.raw_input_contents.append(tokens * (1).to_bytes(8, "little"))
        with RequestAccount(registry.unattributed, inf) as account:
            return reader(split_infer(message.SerializeToString()), None, account, streamed=False)

    for tokens in (3, 20):
        assert job(tokens, typed=True).room == job(tokens, typed=False).room + 8 * tokens
