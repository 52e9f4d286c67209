"""What BertViz's neuron view gets."""

from typing import Any

import numpy as np
import pytest
from tests.view.encodings import encoding

QUERIES, KEYS = (np.random.default_rng(seed).normal(size=(2, 4, 9)).astype(np.float32) for seed in (0, 1))
TOKENS = ["a", "cat", "a", "sat"]


@pytest.mark.parametrize("causal", [False, True])
def test_a_model_and_a_tokenizer_say_what_was_recorded(causal: bool) -> None:
    visible = np.broadcast_to(np.tri(4, dtype=bool) if causal else np.ones((4, 4), bool), (2, 4, 4))
    given: Any = encoding(2, TOKENS, visible={5: visible}, query_vectors={5: QUERIES}, key_vectors={5: KEYS})

    found = given.to_bertviz(neurons=True)

    # What BertViz does with them, in `neuron_view.get_attention`.
    tokenizer = found["tokenizer"]
    tokens = tokenizer.tokenize(found["sentence_a"])
    if not causal:
        tokens = [tokenizer.cls_token, *tokens, tokenizer.sep_token]
    assert found["model_type"] == ("gpt2" if causal else "bert")
    assert [token.replace(tokenizer.cls_token, "[CLS]") for token in tokens] == TOKENS
    assert len(tokenizer.convert_tokens_to_ids(tokens)) == 4
    found["model"].eval()
    (layer,) = found["model"](None)[-1]
    np.testing.assert_array_equal(layer["attn"][0], given.attention[5])
    np.testing.assert_allclose(layer["queries"][0], QUERIES * 3, rtol=1e-6)
    np.testing.assert_array_equal(layer["keys"][0], KEYS)


def test_a_server_s_encoding_has_no_neurons() -> None:
    with pytest.raises(ValueError, match="neuron view needs the vectors of queries and keys"):
        encoding(2, TOKENS).to_bertviz(neurons=True)
