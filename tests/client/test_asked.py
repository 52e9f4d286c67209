"""What is declared of outputs, and what callers are told of it, agree."""

from dataclasses import fields

from polyhead_client.asked import ARGUMENTS, Wanted
from polyhead_client.encoding import Encoding
from polyhead_proto.outputs import DECLARED


def test_every_argument_that_is_declared_is_typed_and_documented() -> None:
    assert ARGUMENTS.keys() == Wanted.__annotations__.keys()
    assert all(f" {name}: " in (Wanted.__doc__ or "") for name in ARGUMENTS)


def test_every_output_has_its_field() -> None:
    named = {each.name for each in fields(Encoding)}

    assert {each.field for each in DECLARED.values() if each.field} <= named


def test_options_are_arguments() -> None:
    assert {option for each in DECLARED.values() for option in each.options} <= ARGUMENTS.keys()
