"""Names that follow from others."""

import pytest

from polyhead_proto.names import family_name


@pytest.mark.parametrize(
    ("checkpoint", "family"),
    [
        ("bge-small-en-v1.5", "bge-small-en-v1-5"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        (".hidden_", "hidden"),
        ("", "encoder"),
        ("模型", "encoder"),
        ("x" * 300, "x" * 255),
    ],
)
def test_a_family_is_named_after_its_checkpoint(checkpoint: str, family: str) -> None:
    assert family_name(checkpoint) == family
