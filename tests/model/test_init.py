"""The package's list of public names."""

import pytest

import polyhead_model


def test_names_are_listed_and_others_are_refused() -> None:
    assert set(polyhead_model.__all__) <= set(dir(polyhead_model))
    with pytest.raises(AttributeError, match="module 'polyhead_model' has no attribute 'Decoder'"):
        polyhead_model.Decoder  # noqa: B018
