"""A request's header is checked once, and its template never taken for another's."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from tests.server.graphs import described

from polyhead_proto import messages as pb
from polyhead_server import Settings
from polyhead_server.engine.devices import on_cpu
from polyhead_server.inference.templates import (
    RequestTemplate,
    RequestTemplates,
    make_template,
)
from polyhead_server.inference.wire import InferRequest, parse, split_infer
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.registry import Model, Registry

SETTINGS = Settings(models=Path())


def tiny(repository: Path) -> Model:
    """The fast model of `tiny`, without an engine."""
    signature = described(repository, "tiny")
    return Model(
        signature=signature,
        scheduler=cast(Any, None),
        lanes=cast(Any, None),
        device=on_cpu(""),
        statistics=Statistics("tiny", 1),
    )


@pytest.fixture
def registry(repository: Path) -> Registry:
    registry = Registry()
    registry.declare("tiny", 1)
    registry.ready(tiny(repository))
    return registry


@pytest.fixture
def templates(registry: Registry) -> RequestTemplates:
    return RequestTemplates(registry, SETTINGS)


def request(tokens: int = 3, *, data: bytes = b"", output: str = "output", raw: bool = True) -> InferRequest:
    message = pb.ModelInferRequest(model_name="tiny", id=data.hex())
    message.inputs.add(name="x", datatype="FP32", shape=[1, tokens, 16])
    message.outputs.add(name=output)
    if raw:
        message.raw_input_contents.append(data)
    else:
        message.inputs[0].contents.fp32_contents.extend([0.5] * tokens * 16)
    return split_infer(message.SerializeToString())


def learn(templates: RequestTemplates, registry: Registry, what: InferRequest) -> RequestTemplate:
    message = parse(pb.ModelInferRequest, what.header)
    template = make_template(message, len(what.contents), registry.find("tiny"), SETTINGS)
    templates.find(what)
    templates.remember(what, template)
    return template


def test_requests_that_differ_in_data_and_id_have_one_template(
    templates: RequestTemplates, registry: Registry
) -> None:
    template = learn(templates, registry, request(data=b"one"))

    assert templates.find(request(data=b"another")) is template


@pytest.mark.parametrize("other", [request(4), request(output="pooled"), request(raw=False)])
def test_any_other_difference_makes_another_template(
    templates: RequestTemplates, registry: Registry, other: InferRequest
) -> None:
    learn(templates, registry, request())

    assert templates.find(other) is None


def test_the_number_of_raw_contents_is_part_of_it(templates: RequestTemplates, registry: Registry) -> None:
    learn(templates, registry, request())
    none = dataclasses.replace(request(), contents=[])

    assert templates.find(none) is None


def test_data_is_not_remembered(templates: RequestTemplates, registry: Registry) -> None:
    learn(templates, registry, request(raw=False))

    assert templates.find(request(raw=False)) is None


def test_only_so_many_are_remembered(templates: RequestTemplates, registry: Registry) -> None:
    for tokens in range(1, 1100):
        learn(templates, registry, request(tokens))

    assert templates.find(request(1)) is None
    assert templates.find(request(1099)) is not None
