"""Attention in every form, against the equation."""

import onnx
import pytest
import torch

from gpu.card import open_card
from gpu.form_data import by_token, expected, form_inputs
from gpu.forms import FORMS, Form, build_form
from gpu.graph import BoundGraph, open_session
from gpu.plan import Precision

SIZE = (3, 11, 4, 6)


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.layout != "packed"], ids=lambda form: form.name
)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 4e-3)])
def test_each_form_computes_attention(form: Form, precision: Precision, tolerance: float) -> None:
    batch, tokens, heads, width = SIZE
    inputs, lengths = form_inputs(form, precision, SIZE, seed=5)
    shape = (batch, heads, tokens, width) if form.layout == "heads" else (batch, tokens, heads * width)
    out = torch.empty(shape, dtype=next(iter(inputs.values())).dtype)
    card = open_card("cpu")
    model = build_form(form, precision, heads, width)

    BoundGraph(card, open_session(card, model), inputs, {"out": out})()

    visible = torch.arange(tokens) < lengths[:, None]
    got, want = by_token(form, out.float(), heads), expected(form, inputs, lengths, heads)
    assert (got - want)[visible].abs().max() < tolerance


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_each_form_is_valid(form: Form, precision: Precision) -> None:
    model = onnx.load_from_string(build_form(form, precision, 4, 6))

    onnx.checker.check_model(model, full_check=form.operator == "explicit")
    inputs, _ = form_inputs(form, precision, SIZE, seed=5)
    assert [value.name for value in model.graph.input] == list(inputs)


def test_masked_forms_are_ragged_and_have_a_sequence_of_padding() -> None:
    masked = next(form for form in FORMS if form.mask == "lengths")
    inputs, lengths = form_inputs(masked, "fp32", (4, 9, 2, 8), seed=1)

    assert lengths[0] == 9
    assert lengths[-1] == 0
    assert inputs["lengths"].tolist() == lengths.tolist()


def test_names_tell_forms_apart() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)


def test_packed_holds_query_key_and_value_of_each_head() -> None:
    separate, packed = (
        next(form for form in FORMS if form.layout == layout and form.mask == "none")
        for layout in ("separate", "packed")
    )
    apart, lengths = form_inputs(separate, "fp32", SIZE, seed=3)
    together, _ = form_inputs(packed, "fp32", SIZE, seed=3)

    torch.testing.assert_close(
        expected(packed, together, lengths, SIZE[2]), expected(separate, apart, lengths, SIZE[2])
    )
