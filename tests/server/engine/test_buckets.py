"""Sizes are rounded up to few."""

import pytest

from polyhead_server.engine.buckets import bucket_rows, bucket_tokens


def test_tokens_are_a_multiple_of_eight_that_is_large_enough() -> None:
    for tokens in range(1, 600):
        bucket = bucket_tokens(tokens)

        assert bucket % 8 == 0
        assert tokens <= bucket < tokens + 8


@pytest.mark.parametrize(("tokens", "limit", "bucket"), [(25, 30, 30), (30, 30, 30), (17, 30, 24), (3, 5, 5)])
def test_tokens_stay_within_the_graphs_limit(tokens: int, limit: int, bucket: int) -> None:
    assert bucket_tokens(tokens, limit) == bucket


def test_rows_have_few_sizes_and_little_padding() -> None:
    buckets = [bucket_rows(batch) for batch in range(1, 257)]

    assert len(set(buckets)) == 28
    for batch, bucket in enumerate(buckets, 1):
        assert batch <= bucket
        assert bucket_rows(bucket) == bucket
        assert (bucket - batch) / bucket < 0.2
    assert buckets == sorted(buckets)
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256} <= set(buckets)
