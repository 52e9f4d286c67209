"""Folders as they are published, through export and a real server, against sentence-transformers.

tests/model/test_published.py has them without an export.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from tests.published import EMBEDDERS, TEXTS, WIDTH, sentence_transformer, write_nomic_embed_text
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import export_family, from_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What sentence-transformers loads from the folders, by name."""
    found = {}
    for name, write in EMBEDDERS.items():
        folder = tmp_path_factory.mktemp(name)
        write(folder)
        if name == "nomic-embed-text":
            write_nomic_embed_text(folder, renamed=True)
        found[name] = sentence_transformer(folder)
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("models")
    for name, write in EMBEDDERS.items():
        folder = tmp_path_factory.mktemp(name)
        write(folder)
        source = from_checkpoint(
            folder, name, pooling="mean" if name == "eurobert" else None, matryoshka=(8, WIDTH)
        )
        built = source.build()
        export_family(built.encoder, name, repository, tokenizer=built.tokenizer, left_out=built.left_out)
    with serving(quick_settings(repository, device=device)) as server, Client(server.address) as one:
        yield one


@pytest.mark.parametrize("name", EMBEDDERS)
def test_what_is_published(name: str, references: Mapping[str, Any], client: Client) -> None:
    model = references[name]

    for prompt in (None, *client.model(name).prompts):
        found: Any = client.encode(TEXTS, model=name, prompt_name=prompt, truncate=True).pooled
        expected = model.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        one: Any = client.encode(TEXTS[0], model=name, prompt_name=prompt, dimensions=8).pooled
        of_length_1 = name in ("qwen3-embedding", "embeddinggemma")  # which end with Normalize
        cut = expected[0, :8] / (np.linalg.norm(expected[0, :8]) if of_length_1 else 1)
        np.testing.assert_allclose(one, cut, rtol=1e-5, atol=1e-5)
