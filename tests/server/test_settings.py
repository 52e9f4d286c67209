"""Sizes in settings."""

import pytest

from polyhead_server.settings import format_size, parse_size


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
