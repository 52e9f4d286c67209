"""A server of a small encoder with an insight graph."""

from collections.abc import Iterator

import pytest
from tests.conftest import TEXT_MAX_TOKENS, build_encoder, write_tokenizer
from tests.servers import quick_settings, serving

from polyhead_export import TokenizerFile, export_family


@pytest.fixture(scope="session")
def insight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of `tiny-tokens` alone, with all that it needs for a survey."""
    folder = tmp_path_factory.mktemp("insight")
    write_tokenizer(folder / "tokenizer.json")
    tokenizer = TokenizerFile(path=folder / "tokenizer.json", max_tokens=TEXT_MAX_TOKENS)
    name = "tiny-tokens"
    export_family(build_encoder(name), name, folder / "models", tokenizer=tokenizer, graphs=["insight"])
    with serving(quick_settings(folder / "models")) as server:
        yield server.address
