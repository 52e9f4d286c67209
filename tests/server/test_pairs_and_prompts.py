"""Pairs of texts and prompts, as requests of any client ask for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import PROMPTS
from tests.server.conftest import Running

FIRST = ["the cat", "i saw that small red house", ""]
SECOND = ["a dog sat on the mat", "no", "the sofa"]


@pytest.fixture(scope="module")
def reference(repository: Path) -> Any:
    file: Any = repository / "tiny-tokens" / "1" / "tokenizer.json"
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_file=str(file), pad_token="[PAD]")


@pytest.mark.parametrize("graph", ["tiny-tokens", "tiny-tokens.attention"])
def test_a_pair_is_its_token_ids_and_types(server: Running, graph: str, reference: Any) -> None:
    options = {"padding": True, "truncation": True, "max_length": 16, "return_tensors": "np"}
    encoded = reference(FIRST, SECOND, return_token_type_ids=True, **options)
    lengths = encoded["attention_mask"].sum(1).astype(np.int32)

    pairs = server.infer(graph, {"text": FIRST, "text_pair": SECOND}, parameters={"truncate": True})
    by_ids = server.infer(
        graph,
        {
            "input_ids": encoded["input_ids"],
            "token_type_ids": encoded["token_type_ids"],
            "lengths": lengths,
        },
    )
    untyped = server.infer(graph, {"input_ids": encoded["input_ids"], "lengths": lengths})

    np.testing.assert_array_equal(pairs["pooled"], by_ids["pooled"])
    np.testing.assert_array_equal(pairs["lengths"], lengths)
    assert np.abs(pairs["pooled"] - untyped["pooled"]).max() > 0.01


def test_requests_with_the_same_head_may_have_other_pairs(server: Running) -> None:
    """The head of a request is checked once, its texts each time."""
    results = [
        server.infer("tiny-tokens", {"text": ["the cat"], "text_pair": [other]})["pooled"]
        for other in ("a dog", "on mat", "a dog")
    ]

    np.testing.assert_array_equal(results[0], results[2])
    assert np.abs(results[0] - results[1]).max() > 1e-3


@pytest.mark.parametrize("name", [*PROMPTS, ""])
def test_a_prompt_stands_before_the_first_text(server: Running, name: str) -> None:
    prompt = PROMPTS.get(name, "")
    for pair in ({}, {"text_pair": ["a dog"]}):
        asked = server.infer("tiny-tokens", {"text": ["cat"], **pair}, parameters={"prompt_name": name})
        spelled = server.infer("tiny-tokens", {"text": [f"{prompt}cat"], **pair})
        np.testing.assert_array_equal(asked["pooled"], spelled["pooled"])
        np.testing.assert_array_equal(asked["lengths"], spelled["lengths"])
