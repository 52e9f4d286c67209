"""The table of roles names what there is."""

import inspect
from dataclasses import fields

import pytest

from polyhead_client import Client, Encoding
from polyhead_client.output_options import OPTIONS
from polyhead_client.roles import ROLES

ARGUMENTS = inspect.signature(Client.encode).parameters


@pytest.mark.parametrize("name", ROLES)
def test_a_role_has_an_argument_an_option_and_a_field(name: str) -> None:
    role = ROLES[name]

    assert role.argument in ARGUMENTS
    assert (role.option or role.argument) in OPTIONS
    assert role.with_options <= {*OPTIONS}
    assert role.field is None or role.field in {field.name for field in fields(Encoding)}


def test_options_are_arguments_of_encode() -> None:
    assert set(OPTIONS) - ARGUMENTS.keys() == {"text", "reads", "head_reads"}
