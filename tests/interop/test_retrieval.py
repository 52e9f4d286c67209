"""Clients of other APIs than ours, unmodified, in an environment of their own."""

import json
import os
from typing import Any

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


def got_by(script: str, web: OverHttp) -> Any:
    """What a script gets for the query and the texts."""
    # huggingface_hub refuses every call, also to this machine, while it is offline; haystack reports its use.
    env = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    answer = call(
        CLIENTS_PYTHON,
        script,
        f"http://127.0.0.1:{web.port}",
        TOKEN,
        given=json.dumps([QUERY, *TEXTS]),
        env=env | {"HAYSTACK_TELEMETRY_ENABLED": "False"},
    )
    return json.loads(answer)


@needs_clients
def test_their_rerankers_and_embedders_get_what_grpc_gives(web: OverHttp) -> None:
    with Client(web.running.address, token=TOKEN) as client:
        vectors = client.encode([QUERY, *TEXTS], model="tiny-tokens", truncate=True).pooled
        prompted = client.encode(SHORT, model="tiny-tokens", prompt_name="query").pooled
        ((label,),) = client.classify([QUERY], model="reranker")
        ranked = client.rerank(QUERY, TEXTS, model="reranker", truncate=True)

    got = got_by("retrieval_calls.py", web)

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


@needs_clients
def test_clients_of_vendors_get_what_grpc_gives(web: OverHttp) -> None:
    """Their scores are probabilities, but for NIM's."""
    with Client(web.running.address, token=TOKEN) as client:
        plain = client.encode([QUERY, *SHORT], model="tiny-tokens").pooled
        query = client.encode([QUERY], model="tiny-tokens", prompt_name="query").pooled
        passages = client.encode(TEXTS, model="tiny-tokens", prompt_name="passage", truncate=True).pooled
        ranked = {
            raw_scores: client.rerank(QUERY, TEXTS, model="reranker", truncate=True, raw_scores=raw_scores)[
                :2
            ]
            for raw_scores in (False, True)
        }
    assert plain is not None
    assert query is not None
    assert passages is not None

    got = got_by("vendor_calls.py", web)

    assert (len(got["vectors"]), len(got["prompted"]), len(got["ranks"]), len(got["logits"])) == (3, 3, 6, 2)
    for vectors in got["vectors"].values():
        close(np.array(vectors, np.float32), plain)
    for vectors in got["prompted"].values():
        close(np.array(vectors, np.float32), np.concatenate([query, passages]))
    for best, found_by in ((ranked[False], got["ranks"]), (ranked[True], got["logits"])):
        for name, found in found_by.items():
            assert [text for text, _ in found] == [one.text for one in best], name
            np.testing.assert_allclose([score for _, score in found], [one.score for one in best], atol=1e-6)
