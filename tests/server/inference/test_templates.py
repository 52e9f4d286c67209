"""A request's form is checked once, and never taken for another's."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from polyhead_proto import messages as pb
from polyhead_server import Settings
from polyhead_server.inference.templates import Form, Forms
from polyhead_server.inference.wire import InferRequest, split_infer
from polyhead_server.repository import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.registry import Model, Registry


def tiny(repository: Path) -> Model:
    """The fast model of `tiny`, without an engine."""
    manifest = read_manifest(repository / "tiny" / "1", family="tiny", version=1)
    signature = signature_of(manifest, "fast")
    return Model(signature=signature, scheduler=cast(Any, None), tokeniser=None, provider="CPU")


@pytest.fixture
def registry(repository: Path) -> Registry:
    registry = Registry()
    registry.declare("tiny", 1)
    registry.ready(tiny(repository))
    return registry


@pytest.fixture
def forms(registry: Registry, repository: Path) -> Forms:
    return Forms(registry, Settings(models=repository))


def request(tokens: int = 3, *, data: bytes = b"", output: str = "output", raw: bool = True) -> InferRequest:
    message = pb.ModelInferRequest(model_name="tiny", id=data.hex())
    message.inputs.add(name="x", datatype="FP32", shape=[1, tokens, 16])
    message.outputs.add(name=output)
    if raw:
        message.raw_input_contents.append(data)
    else:
        message.inputs[0].contents.fp32_contents.extend([0.5] * tokens * 16)
    request = split_infer(message.SerializeToString())
    assert request is not None
    return request


def learn(forms: Forms, registry: Registry, what: InferRequest) -> Form:
    form = forms.check(what, what.message(), registry.find("tiny"))
    forms.remember(what, form)
    return form


def test_requests_that_differ_in_data_and_id_have_one_form(forms: Forms, registry: Registry) -> None:
    form = learn(forms, registry, request(data=b"one"))

    assert forms.recall(request(data=b"another")) is form


@pytest.mark.parametrize("other", [request(4), request(output="pooled"), request(raw=False)])
def test_any_other_difference_is_another_form(forms: Forms, registry: Registry, other: InferRequest) -> None:
    learn(forms, registry, request())

    assert forms.recall(other) is None


def test_the_number_of_raw_contents_is_part_of_it(forms: Forms, registry: Registry) -> None:
    learn(forms, registry, request())
    none = dataclasses.replace(request(), raw=[])

    assert forms.recall(none) is None


def test_a_form_ends_with_its_model(forms: Forms, registry: Registry, repository: Path) -> None:
    learn(forms, registry, request())
    registry.ready(tiny(repository))

    assert forms.recall(request()) is None


def test_a_form_is_not_known_any_more_when_its_model_is_gone(forms: Forms, registry: Registry) -> None:
    learn(forms, registry, request())
    registry.forget("tiny", 1)

    assert forms.recall(request()) is None


def test_data_is_not_remembered(forms: Forms, registry: Registry) -> None:
    learn(forms, registry, request(raw=False))

    assert forms.recall(request(raw=False)) is None


def test_only_so_many_are_remembered(forms: Forms, registry: Registry) -> None:
    for tokens in range(1, 1100):
        learn(forms, registry, request(tokens))

    assert forms.recall(request(1)) is None
    assert forms.recall(request(1099)) is not None
