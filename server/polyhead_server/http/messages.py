"""Protobuf messages as JSON: with the protocol's own field names, and numbers of 64 bits as numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class JsonForm:
    """How a message, or a part of one, is written in JSON."""

    schema: dict[str, Any]
    write: Callable[[Any], Any]
    """Returns what JSON has for a value."""


@cache
def json_form(descriptor: Any) -> JsonForm:
    """Return how messages that have a descriptor are written."""
    forms = {field.name: _of_field(field) for field in descriptor.fields}
    optional = {field.name for field in descriptor.fields if field.message_type and not field.is_repeated}

    def write(message: Any) -> dict[str, Any]:
        return {
            name: form.write(getattr(message, name))
            for name, form in forms.items()
            if name not in optional or message.HasField(name)
        }

    schema = {
        "type": "object",
        "properties": {name: form.schema for name, form in forms.items()},
        "required": [name for name in forms if name not in optional],
    }
    return JsonForm(schema, write)


def _of_field(field: Any) -> JsonForm:
    if field.message_type and field.message_type.GetOptions().map_entry:
        of = _of_value(field.message_type.fields_by_name["value"])
        schema = {"type": "object", "additionalProperties": of.schema}
        return JsonForm(schema, lambda values: {key: of.write(value) for key, value in values.items()})
    one = _of_value(field)
    if not field.is_repeated:
        return one
    return JsonForm({"type": "array", "items": one.schema}, lambda values: [*map(one.write, values)])


def _of_value(field: Any) -> JsonForm:
    if field.message_type:
        return json_form(field.message_type)
    if field.enum_type:
        numbers = field.enum_type.values_by_number
        return JsonForm({"enum": list(field.enum_type.values_by_name)}, lambda number: numbers[number].name)
    names = {field.CPPTYPE_BOOL: "boolean", field.CPPTYPE_STRING: "string"}
    names |= dict.fromkeys((field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE), "number")
    return JsonForm({"type": names.get(field.cpp_type, "integer")}, lambda value: value)
