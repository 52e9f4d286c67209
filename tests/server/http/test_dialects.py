"""What clients of other APIs send: their fields, their paths, and how they choose a family."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.http.conftest import Answered, OverHttp, over_http
from tests.server.http.test_scoring import QUERY, TEXTS

LONG = "the cat sat on the mat " * 5
EMBED = {"model": "tiny-tokens", "input": "the cat sat on the mat"}
RANK = {"model": "reranker", "query": QUERY, "documents": TEXTS}
IDS = [2, 5, 6, 8, 10, 5, 11, 3]


def ask(web: OverHttp, path: str, body: dict[str, Any]) -> Any:
    """What is answered, without what differs from call to call."""
    answered = web.post(path, body)
    assert answered.status == 200, answered.body
    found = answered.json
    return {name: of for name, of in found.items() if name != "id"} if isinstance(found, dict) else found


def refused(answered: Answered, message: str) -> bool:
    return answered.status == 400 and message in answered.error


# ---- Fields ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"input_type": "search_query"}, {"prompt_name": "query"}),
        ({"task": "retrieval.query"}, {"prompt_name": "query"}),
        ({"input": LONG, "truncation": True}, {"input": LONG, "truncate": True}),
        ({"input": LONG, "truncate": "END"}, {"input": LONG, "truncate": True}),
        ({"truncate": "NONE", "truncation_direction": "right"}, {"truncate": False}),
        ({"embedding_type": "base64"}, {"encoding_format": "base64"}),
        ({"output_dimension": 16, "normalized": True}, {"dimensions": 16, "normalize": True}),
        ({"encoding_type": "float"}, {}),
        ({"encoding_type": "ubinary"}, {"output_dtype": "ubinary"}),
    ],
)
def test_others_words_for_our_fields(web: OverHttp, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert ask(web, "/v1/embeddings", EMBED | theirs) == ask(web, "/embeddings", EMBED | ours)


def test_voyages_words_for_ranks(scoring: OverHttp) -> None:
    ranked = ask(scoring, "/v1/rerank", {**RANK, "top_k": 2, "truncation": True})

    assert ranked["data"] == ranked["results"] == ask(scoring, "/v1/rerank", RANK | {"top_n": 2})["results"]


def test_nims_ranking(scoring: OverHttp) -> None:
    """Its clients take as many as they want themselves, and divide what is too much for a call."""
    body = {"model": "reranker", "query": {"text": QUERY}, "passages": [{"text": text} for text in TEXTS]}
    logits = ask(scoring, "/v1/rerank", RANK | {"raw_scores": True})

    ranked = ask(scoring, "/v1/ranking", {**body, "truncate": "END"})

    found = [{"index": one["index"], "logit": one["relevance_score"]} for one in logits["results"]]
    assert ranked == {"rankings": found, "usage": logits["usage"]}
    assert ask(scoring, "/v1/ranking", body) == ranked
    long = {**body, "passages": [*body["passages"], {"text": LONG}]}
    assert refused(
        scoring.post("/v1/ranking", long), f"passages[{len(TEXTS)}].text must be at most 16 tokens"
    )
    assert ask(scoring, "/v1/ranking", {**long, "truncate": "END"})
    image = {**body, "passages": [{"text": "", "image": "data:,"}]}
    assert refused(scoring.post("/v1/ranking", image), "field 'image' of passages[0] is not known")
    ignored = scoring.post("/v1/ranking", {**body, "user": "me"}).headers
    assert ignored["x-polyhead-ignored"] == "user"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"user": "me", "priority": 5, "modality": ["text"], "late_chunking": False}),
        ("/v1/embeddings", {"input_type": "clustering"}),  # for which this family has no prompt
        ("/v2/rerank", {"priority": 5, "max_tokens_per_doc": 4096}),
        ("/v1/rerank", {"max_chunks_per_doc": 10, "rank_fields": ["text"]}),
    ],
)
def test_what_changes_nothing_is_named_in_the_reply(
    web: OverHttp, scoring: OverHttp, path: str, fields: dict[str, Any]
) -> None:
    server, body = (web, EMBED) if path == "/v1/embeddings" else (scoring, RANK)

    answered = server.post(path, body | fields)

    assert answered.status == 200, answered.body
    assert set(answered.headers["x-polyhead-ignored"].split(", ")) == fields.keys()
    assert ask(server, path, body | fields) == ask(server, path, body)
    assert "x-polyhead-ignored" not in server.post(path, {**body, "user": None}).headers


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/embeddings", {"late_chunking": True}, "late_chunking must be false, was true"),
        (
            "/v1/embeddings",
            {"truncate": "START"},
            "truncate must be 'END' or 'NONE', was 'START'",
        ),
        ("/v1/embeddings", {"input_type": "image"}, "input_type must be 'query', 'search_query'"),
        (
            "/v1/embeddings",
            {"embedding_type": "int8"},
            "embedding_type must be 'float' or 'base64', was 'int8'",
        ),
        ("/v1/embeddings", {"output_dimension": 17}, "dimensions must be from 1 to 16"),
        (
            "/v1/embeddings",
            {"truncate": True, "truncation": True},
            "truncation must be left out beside truncate",
        ),
        (
            "/v1/embeddings",
            {"prompt_name": "query", "task": "clustering"},
            "task must be left out beside prompt",
        ),
        ("/v2/rerank", {"rank_fields": ["title"]}, "rank_fields[0] must be 'text', was 'title'"),
        ("/rerank", {"texts": TEXTS}, "the request must have the field texts or documents, had both"),
        ("/rerank", {"documents": None}, "documents must be an array, was null"),
    ],
)
def test_what_would_change_the_result_is_refused(
    web: OverHttp, scoring: OverHttp, path: str, fields: dict[str, Any], message: str
) -> None:
    answered = web.post(path, EMBED | fields) if "embed" in path else scoring.post(path, RANK | fields)

    assert answered.status == 400
    assert message in answered.error


@pytest.mark.parametrize("fields", [{"truncate": "END"}, {"truncation_direction": "Right"}])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/rerank"])
def test_a_family_that_cuts_on_the_left_cuts_no_end(
    web: OverHttp, scoring: OverHttp, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, body = (web, EMBED) if path == "/v1/embeddings" else (scoring, RANK)
    tokeniser = server.running.runtime.registry.find(str(body["model"])).tokeniser
    monkeypatch.setattr(tokeniser, "side", "left")

    assert refused(server.post(path, body | fields), "cuts texts on the left")
    # Voyage's word names no side.
    assert ask(server, path, body | {"truncation": True}) == ask(server, path, body | {"truncate": True})


# ---- Paths -------------------------------------------------------------------------------------


def test_one_path_of_two_apis(scoring: OverHttp) -> None:
    texts = {"model": "sentiment", "inputs": [[text] for text in TEXTS]}

    labelled = ask(scoring, "/classify", {"model": "sentiment", "input": TEXTS})
    tei = ask(scoring, "/rerank", {"model": "reranker", "query": QUERY, "texts": TEXTS, "top_n": 2})

    assert labelled["data"] == ask(scoring, "/classify", texts) == ask(scoring, "/predict", texts)
    assert (labelled["object"], labelled["model"]) == ("classify", "sentiment")
    assert labelled["usage"]["total_tokens"] > len(TEXTS)
    infinity = ask(scoring, "/rerank", RANK | {"raw_scores": False, "top_n": 2})
    assert infinity["results"] == ask(scoring, "/v2/rerank", RANK | {"top_n": 2})["results"]
    assert tei == [{"index": one["index"], "score": one["relevance_score"]} for one in infinity["results"]]


def test_the_root_does_what_the_family_is_for(web: OverHttp, scoring: OverHttp) -> None:
    texts, ranked = {"inputs": TEXTS[:1]}, {"query": QUERY, "texts": TEXTS}

    assert ask(web, "/", {"inputs": TEXTS, "normalize": False}) == ask(
        web, "/embed", {"inputs": TEXTS, "normalize": False}
    )
    assert ask(scoring, "/?model=sentiment", texts) == ask(scoring, "/predict?model=sentiment", texts)
    assert ask(scoring, "/", ranked) == ask(scoring, "/rerank", ranked)
    assert refused(
        web.post("/", {**texts, "raw_scores": True}), "field 'raw_scores' of the request is not known"
    )


def test_hugging_faces_parameters(scoring: OverHttp) -> None:
    """Its client reads the labels of one text from a list of one."""
    body = {"model": "sentiment", "inputs": TEXTS[0]}

    assert ask(scoring, "/predict", {**body, "parameters": {}}) == [ask(scoring, "/predict", body)]
    raw = ask(scoring, "/predict", {**body, "parameters": {"top_k": 1, "function_to_apply": "none"}})
    assert raw == [ask(scoring, "/predict", {**body, "raw_scores": True})[:1]]
    (own,) = ask(scoring, "/predict", {**body, "parameters": {"function_to_apply": "sigmoid"}})
    logits = np.array([each["score"] for each in ask(scoring, "/predict", {**body, "raw_scores": True})])
    np.testing.assert_allclose([each["score"] for each in own], 1 / (1 + np.exp(-logits)), rtol=1e-6)


def test_similarity_is_the_cosine(web: OverHttp) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    source, *others = np.array(ask(web, "/embed", {"inputs": TEXTS, "prompt_name": "query"}))

    found = ask(web, "/similarity", {"inputs": inputs, "parameters": {"prompt_name": "query"}})

    np.testing.assert_allclose(found, others @ source, atol=1e-6)
    long = web.post("/similarity", {"inputs": {**inputs, "sentences": ["a", LONG]}, "parameters": {}})
    assert refused(long, "inputs.sentences[1] must be at most 16 tokens")


def test_texts_become_tokens_and_text_again(web: OverHttp) -> None:
    (tokens,) = ask(web, "/tokenize", {"inputs": EMBED["input"]})
    long, short = ask(web, "/tokenize", {"inputs": [LONG, "a dog"], "add_special_tokens": False})

    assert [one["id"] for one in tokens] == IDS
    assert [one["special"] for one in tokens] == [True, *[False] * 6, True]
    assert tokens[0]["start"] is None
    assert [one["text"] for one in tokens[1:-1]] == EMBED["input"].split()
    assert all(one["text"] == LONG[one["start"] : one["stop"]] for one in long)
    assert (len(long), len(short)) == (30, 2)
    assert ask(web, "/decode", {"ids": [IDS[1:-1], IDS[1:2]]}) == [EMBED["input"], "the"]
    assert ask(web, "/decode", {"ids": IDS, "skip_special_tokens": False}) == [
        f"[CLS] {EMBED['input']} [SEP]"
    ]
    assert refused(
        web.post("/tokenize", {"inputs": ["a", "b" * 2**18]}), "inputs[1] must have at most 131072"
    )
    assert web.post("/tokenize", {"inputs": ["a " * 2**14, "a " * 2**15]}).status == 413


def test_families_are_described(web: OverHttp, scoring: OverHttp) -> None:
    embedder, reranker = web.get("/info").json, scoring.get("/info?model=reranker").json

    assert (embedder["model_id"], embedder["max_input_length"]) == ("tiny-tokens", 16)
    assert embedder["model_type"] == {"embedding": {"pooling": "mean"}}
    assert reranker["model_type"]["reranker"]["id2label"] == {"0": "relevance"}
    assert scoring.get("/info").json == reranker
    listed = {one["id"]: one["capabilities"] for one in scoring.get("/v1/models").json["data"]}
    assert listed == {"reranker": ["rerank", "classify", "tokenize"], "sentiment": ["classify", "tokenize"]}


def test_replies_to_inferences_alone_are_compressed(web: OverHttp) -> None:
    """As Triton's are; `tritonclient.http.aio` reads no others."""
    accepted = {"Accept-Encoding": "gzip, deflate"}
    plain = web.ask("GET", "/v2/models/tiny-tokens", headers=accepted)
    small = web.ask("POST", "/embed", {"inputs": TEXTS * 20}, accepted)

    assert len(plain.body) > 1024
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert len(gzip.decompress(small.body)) > len(small.body)


# ---- Families ----------------------------------------------------------------------------------


def test_a_family_may_be_named_outside_of_the_body(scoring: OverHttp) -> None:
    expected = ask(scoring, "/predict", {"inputs": "a", "model": "sentiment"})
    for path, headers, body in (
        ("/predict?model=sentiment", {"x-polyhead-model": "reranker"}, {"inputs": "a"}),
        ("/predict", {"x-polyhead-model": "sentiment"}, {"inputs": "a"}),
        ("/predict?model=reranker", {}, {"inputs": "a", "model": "sentiment"}),
    ):
        assert scoring.post(path, body, headers).json == expected
    assert scoring.post("/predict?model=nothing", {"inputs": "a"}).status == 404


def test_a_task_has_a_default(scorers: Path) -> None:
    with over_http(scorers, default=("classify=sentiment", "tokenize=sentiment", "rerank=none")) as web:
        assert ask(web, "/predict", {"inputs": "a"}) == ask(web, "/predict?model=sentiment", {"inputs": "a"})
        assert ask(web, "/tokenize", {"inputs": "a"})
        assert "none" in web.post("/rerank", {"query": "a", "texts": ["b"]}).error
