"""The message classes of `inference.proto`; `messages.pyi` declares their fields for type checkers."""

from google.protobuf import message_factory

from polyhead_proto.pool import FILE

globals().update(
    {
        name: message_factory.GetMessageClass(descriptor)
        for name, descriptor in FILE.message_types_by_name.items()
    }
    | {
        name: value.number
        for enum in FILE.enum_types_by_name.values()
        for name, value in enum.values_by_name.items()
    }
)
