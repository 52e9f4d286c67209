"""Sizes and gRPC options in settings."""

import pytest

from polyhead_server.settings import format_size, parse_grpc_option, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("67108864", 67108864),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("2GB", 2 * 10**9),
        ("1KiB", 1024),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "1.5MiB", "1 TiB", "MiB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size must be a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(64 * 2**20, "64MiB"), (2**31, "2GiB"), (1500, "1500"), (0, "0")])
def test_sizes_are_written_in_the_largest_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("grpc.max_connection_age_ms=60000", ("grpc.max_connection_age_ms", 60000)),
        ("grpc.http2.min_time=-1", ("grpc.http2.min_time", -1)),
        ("grpc.lb_policy_name=a=b", ("grpc.lb_policy_name", "a=b")),
    ],
)
def test_grpc_options_are_read(text: str, option: tuple[str, int | str]) -> None:
    assert parse_grpc_option(text) == option


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpc.max_connection_age_ms", "must be NAME=VALUE"),
        ("grpc.max_connection_age_ms=", "must be NAME=VALUE"),
        ("max_connection_age_ms=1", "must be NAME=VALUE"),
        ("grpc.a b=1", "must be NAME=VALUE"),
        ("grpc.a=2147483648", "must be from -2147483648 to 2147483647, was 2147483648"),
        ("grpc.max_receive_message_length=1", "must be set by --max-request-bytes"),
        ("grpc.max_send_message_length=1", "must be set by --max-reply-bytes"),
        ("grpc.so_reuseport=0", "must be set by --workers"),
    ],
)
def test_other_grpc_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grpc_option(text)
