"""A request's header is checked once, and its template never taken for another's."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from polyhead_proto import messages as pb
from polyhead_server import Settings
from polyhead_server.inference.templates import (
    Extent,
    RequestTemplate,
    RequestTemplates,
    extent_of,
    make_template,
)
from polyhead_server.inference.wire import InferRequest, parse, split_infer
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.registry import Model, Registry


def tiny(repository: Path) -> Model:
    """The fast model of `tiny`, without an engine."""
    signature = signature_of(read_manifest(repository / "tiny" / "1", family="tiny", version=1), "fast")
    return Model(signature=signature, scheduler=cast(Any, None), tokeniser=None, provider="CPU")


@pytest.fixture
def registry(repository: Path) -> Registry:
    registry = Registry()
    registry.declare("tiny", 1)
    registry.ready(tiny(repository))
    return registry


@pytest.fixture
def templates(registry: Registry) -> RequestTemplates:
    return RequestTemplates(registry)


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
    template = make_template(message, len(what.raw), registry.find("tiny"), Settings(models=Path()))
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
    none = dataclasses.replace(request(), raw=[])

    assert templates.find(none) is None


def test_a_template_ends_with_its_model(
    templates: RequestTemplates, registry: Registry, repository: Path
) -> None:
    learn(templates, registry, request())
    registry.ready(tiny(repository))

    assert templates.find(request()) is None


def test_a_template_ends_when_another_version_becomes_the_newest(
    templates: RequestTemplates, registry: Registry
) -> None:
    learn(templates, registry, request())
    registry.declare("tiny", 2)
    learn(templates, registry, request())
    registry.forget("tiny", 2)

    assert templates.find(request()) is None


def test_a_template_is_not_known_any_more_when_its_model_is_gone(
    templates: RequestTemplates, registry: Registry
) -> None:
    learn(templates, registry, request())
    registry.forget("tiny", 1)

    assert templates.find(request()) is None


def test_data_is_not_remembered(templates: RequestTemplates, registry: Registry) -> None:
    learn(templates, registry, request(raw=False))

    assert templates.find(request(raw=False)) is None


def test_only_so_many_are_remembered(templates: RequestTemplates, registry: Registry) -> None:
    for tokens in range(1, 1100):
        learn(templates, registry, request(tokens))

    assert templates.find(request(1)) is None
    assert templates.find(request(1099)) is not None


def test_what_follows_from_a_length_is_remembered_with_the_template(
    templates: RequestTemplates, registry: Registry, repository: Path
) -> None:
    def extent(tokens: int) -> Extent:
        sizes, settings = {"B": 1, "T": tokens}, Settings(models=repository)
        return extent_of(template.outputs, sizes, template.model.signature, settings, text_bytes={})

    template = learn(templates, registry, request())
    first = extent(1)
    for each in (first, extent(1)):
        templates.learn(template, each)
    assert template.extents == {1: first}
    assert template.extents[1] is first

    for tokens in range(2, 8194):
        templates.learn(template, dataclasses.replace(first, tokens=tokens))
    assert templates.find(request()) is None


def test_what_follows_from_a_text_is_not_remembered(templates: RequestTemplates, registry: Registry) -> None:
    template = dataclasses.replace(learn(templates, registry, request()), has_texts=True)
    extent = template.extent
    assert extent is not None

    templates.learn(template, extent)

    assert not template.extents
