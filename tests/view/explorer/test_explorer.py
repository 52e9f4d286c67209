"""What is asked of the server for each part of the page, and what the page is given of it."""

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.numerics import close
from tests.view.explorer.fake import NAMES, FakeClient
from tests.view.explorer.test_frames import unpack

from polyhead_view.explorer.explorer import cosine

ASKED = {"model": "words", "text": "the cat sat"}
TOKENS = ["[CLS]", "the", "cat", "sat", "[SEP]"]


def ask(page: TestClient, path: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = page.post(f"/api/{path}", json=ASKED | more)
    assert answer.status_code == 200, answer.text
    return unpack(answer.content)


def test_families_are_described_with_what_is_missing(page: TestClient, words: FakeClient) -> None:
    served = page.get("/api/server").json()

    assert served["address"] == "host:1"
    first, second = sorted(served["families"], key=lambda one: str(one["name"]))
    assert first["name"] == "vectors"
    assert "takes no texts" in first["refused"]
    assert second == {
        "name": "words",
        "layers": 2,
        "heads": 3,
        "insight": True,
        "head_mask": True,
        "missing": [],
    }

    words.graphs["words"] = ["attention"]
    words.head_mask = False
    *_, second = sorted(page.get("/api/server").json()["families"], key=lambda one: str(one["name"]))
    assert [line for line in second["missing"] if "--graphs insight" in line]
    assert [line for line in second["missing"] if "--head-mask" in line]


def test_a_family_that_is_not_ready_is_refused_with_its_state(page: TestClient, words: FakeClient) -> None:
    words.state = "LOADING"

    assert {one["refused"] for one in page.get("/api/server").json()["families"]} == {
        "words is not ready: it is LOADING.",
        "vectors is not ready: it is LOADING.",
    }


def test_an_overview_is_scores_and_thumbnails_and_nothing_else(page: TestClient, words: FakeClient) -> None:
    header, arrays = ask(page, "overview")

    assert header["tokens"] == TOKENS
    assert header["layers"] == [0, 1]
    assert header["scores"] == list(NAMES)
    assert arrays["raw"].shape == arrays["weighted"].shape == (2, 3, len(NAMES))
    assert arrays["raw"].dtype == np.float32
    assert arrays["thumbnails"].shape == (2, 3, 32, 32)
    assert arrays["thumbnails"].dtype == np.uint8
    (call,) = words.calls
    assert call["scores"] is call["thumbnails"] is True
    assert not any(call.get(name) for name in ("output", "pooled", "attention"))


def test_without_an_insight_graph_thumbnails_come_from_attention(page: TestClient, words: FakeClient) -> None:
    _, expected = ask(page, "overview")
    words.graphs["words"] = ["attention"]

    header, arrays = ask(page, "overview")

    assert header["scores"] == []
    assert header["layers"] == [0, 1]
    np.testing.assert_array_equal(arrays["thumbnails"], expected["thumbnails"])
    assert words.calls[-1]["dtype"] == "UINT8"
    refused = page.post("/api/rollout", json=ASKED)
    assert refused.status_code == 400
    assert "--graphs insight" in refused.json()["message"]


@pytest.mark.parametrize("weighted", [False, True])
def test_only_the_open_head_is_fetched(page: TestClient, words: FakeClient, weighted: bool) -> None:
    header, arrays = ask(page, "head", layer=1, head=2, weighted=weighted)

    assert header["tokens"] == header["columns"] == TOKENS
    sums = (arrays["map"] * header["scale"]).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-4)
    (call,) = words.calls
    assert (call["attention"], call["heads"], call["dtype"]) == ([1], [2], "FP16")
    assert call["weighted"] is weighted
    assert not any(call[name] for name in ("output", "pooled"))


def test_rollout_is_one_map(page: TestClient, words: FakeClient) -> None:
    header, arrays = ask(page, "rollout")

    assert arrays["map"].shape == (5, 5)
    assert header["columns"] == TOKENS
    assert words.calls[0]["rollout"] is True


@pytest.mark.parametrize("path", ["overview", "head", "rollout", "similarity"])
def test_silenced_heads_are_zeros_of_the_mask(page: TestClient, words: FakeClient, path: str) -> None:
    ask(page, path, silenced=[[0, 1], [1, 2]], other="a dog")

    for call in words.calls:
        np.testing.assert_array_equal(call["head_mask"], [[1, 0, 1], [1, 1, 0]])


def test_a_change_compares_with_and_without_the_silenced_heads(page: TestClient, words: FakeClient) -> None:
    header, arrays = ask(page, "change", silenced=[[0, 0], [0, 1], [0, 2]])

    assert ["head_mask" in call for call in words.calls] == [False, True]
    before, after = ([[len(token) + d * kept for d in range(8)] for token in TOKENS] for kept in (1.0, 0.5))
    expected = cosine(np.array(before), np.array(after))
    close(arrays["cosines"], expected)
    assert header["cosine"] == pytest.approx(float(cosine(np.mean(before, 0), np.mean(after, 0))))
    assert header["cosine"] < 1


def test_a_family_without_a_head_mask_refuses_silenced_heads(page: TestClient, words: FakeClient) -> None:
    words.head_mask = False

    answer = page.post("/api/change", json=ASKED | {"silenced": [[0, 0]]})

    assert answer.status_code == 400
    assert "takes no head mask" in answer.json()["message"]


def test_the_split_of_a_similarity_sums_to_the_cosine(page: TestClient) -> None:
    header, arrays = ask(page, "similarity", other="a small dog ran")

    assert header["tokens"] == TOKENS
    assert header["columns"] == ["[CLS]", "a", "small", "dog", "ran", "[SEP]"]
    assert arrays["map"].shape == (5, 6)
    assert (arrays["map"] * header["scale"]).sum() == pytest.approx(header["cosine"], abs=1e-3)


@pytest.mark.parametrize("path", ["overview", "head", "rollout", "change"])
def test_a_text_without_tokens_is_refused(page: TestClient, path: str) -> None:
    """A tokeniser that adds none of its own finds none in spaces."""
    answer = page.post(f"/api/{path}", json=ASKED | {"text": " "})

    assert answer.status_code == 400
    assert "must have tokens" in answer.json()["message"]


def test_what_is_too_long_is_refused_or_truncated(page: TestClient, words: FakeClient) -> None:
    words.max_tokens = 4

    answer = page.post("/api/overview", json=ASKED)

    assert answer.status_code == 400
    assert "5 tokens, more than 4" in answer.json()["message"]
    assert ask(page, "overview", truncate=True)[0]["tokens"] == TOKENS[:4]
