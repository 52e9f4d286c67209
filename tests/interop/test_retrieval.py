"""Clients of LangChain, LlamaIndex, Cohere and Hugging Face, unmodified, in an environment of their own."""

import json
import os

import numpy as np
import pytest
from tests.interop.conftest import CLIENTS_PYTHON, TOKEN, call, needs_clients
from tests.numerics import close
from tests.server.http.conftest import OverHttp

from polyhead_client import Client
from polyhead_proto.outputs.pooled import normalised

QUERY = "the cat"
SHORT = ["a dog sat on the mat", "i saw that", "the big cat"]
TEXTS = [*SHORT, "the cat sat on the mat " * 5]


@needs_clients
def test_their_rerankers_and_embedders_get_what_grpc_gives(web: OverHttp) -> None:
    with Client(web.running.address, token=TOKEN) as client:
        vectors = client.encode([QUERY, *TEXTS], model="tiny-tokens", truncate=True).pooled
        prompted = client.encode(SHORT, model="tiny-tokens", prompt_name="query").pooled
        ((label,),) = client.classify([QUERY], model="reranker")
        ranked = client.rerank(QUERY, TEXTS, model="reranker", truncate=True)
    # huggingface_hub refuses every call, also to this machine, while it is offline.
    env = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}

    answer = call(
        CLIENTS_PYTHON,
        "retrieval_calls.py",
        f"http://127.0.0.1:{web.port}",
        TOKEN,
        given=json.dumps([QUERY, *TEXTS]),
        env=env,
    )

    got = json.loads(answer)
    assert vectors is not None
    assert got["embeds"].keys() == {"hub", "openai", "llama index"}
    for ways in got["embeds"].values():
        for way in ways:
            close(np.array(way, np.float32), vectors)
    assert prompted is not None
    close(np.array(got["hub"]["root"], np.float32), normalised(prompted))
    query, *texts = normalised(vectors)[:-1]
    np.testing.assert_allclose(got["hub"]["similar"], texts @ query, atol=1e-5)
    assert got["hub"]["label"] == [label.label, pytest.approx(label.score, abs=1e-6)]
    best = [(one.text, one.score) for one in ranked]
    assert len(best) == len(TEXTS)
    wanted = {**got["ranks"], "short": got["short"]}
    for name, found in wanted.items():
        expected = [one for one in best if one[0] in SHORT] if name == "short" else best
        assert [text for text, _ in found] == [text for text, _ in expected[:2]], name
        np.testing.assert_allclose(
            [score for _, score in found], [score for _, score in expected[:2]], atol=1e-6
        )
