"""What is asked of the server for each part of the page, and what the page is given of it."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.numerics import close
from tests.view.explorer.fake import NAMES, FakeClient
from tests.view.explorer.test_frames import unpack

from polyhead_view.explorer.app import create_page
from polyhead_view.explorer.explorer import Explorer, cosine
from polyhead_view.inputs import SequenceFiles

ASKED = {"model": "words", "text": "the cat sat"}
TOKENS = ["[CLS]", "the", "cat", "sat", "[SEP]"]


def ask(page: TestClient, path: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = page.post(f"/api/{path}", json=ASKED | more)
    assert answer.status_code == 200, answer.text
    return unpack(answer.content)


def test_families_are_described_with_what_is_missing(page: TestClient, words: FakeClient) -> None:
    served = page.get("/api/server").json()

    assert served["address"] == "host:1"

    words.graphs["words"] = ["attention"]
    words.graphs["vectors"] = ["rows"]
    words.head_mask = False
    first, second = sorted(page.get("/api/server").json()["families"], key=lambda one: str(one["name"]))
    assert [line for line in second["missing"] if "--graphs insight" in line]
    assert [line for line in second["missing"] if "--head-mask" in line]
    assert "vectors gives no attention" in first["refused"]


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
    assert [score["name"] for score in header["scores"]] == list(NAMES)
    assert header["scores"][0]["title"] == "previous token"
    assert all(score["meaning"] and score["formula"] for score in header["scores"])
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
    refused = page.post("/api/map", json=ASKED | {"whole": "rollout"})
    assert refused.status_code == 400
    assert "--graphs insight" in refused.json()["message"]


@pytest.mark.parametrize("graphs", [["attention", "insight"], ["attention"]])
def test_masked_cells_are_told(page: TestClient, words: FakeClient, graphs: list[str]) -> None:
    words.graphs["words"] = graphs
    assert "masked" not in ask(page, "overview")[1] | ask(page, "map", layer=1, head=0)[1]
    words.causal = True

    _, arrays = ask(page, "overview")
    _, one = ask(page, "map", layer=1, head=0)

    ahead = np.triu(np.ones((5, 5)), 1)
    for small in arrays["masked"].reshape(-1, 32, 32):
        np.testing.assert_array_equal(small[:5, :5], ahead)
    assert arrays["masked"].shape[0] == 2
    assert arrays["masked"].shape[1] in {1, 3}
    np.testing.assert_array_equal(one["masked"], ahead)


@pytest.mark.parametrize("weighted", [False, True])
def test_only_the_open_head_is_fetched(page: TestClient, words: FakeClient, weighted: bool) -> None:
    header, arrays = ask(page, "map", layer=1, head=2, weighted=weighted)

    assert header["tokens"] == header["columns"] == TOKENS
    sums = (arrays["map"] * header["scale"]).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-4)
    (call,) = words.calls
    assert (call["attention"], call["heads"], call["dtype"]) == ([1], [2], "FP16")
    assert call.get("weighted", False) is weighted
    assert not any(call[name] for name in ("output", "pooled"))


def test_a_pair_is_sent_as_one_and_says_where_its_second_text_begins(
    page: TestClient, words: FakeClient
) -> None:
    words.ranks = True
    for path in ("overview", "map", "change"):
        header, _ = ask(page, path, pair="a dog")

        assert header["tokens"] == [*TOKENS, "a", "dog", "[SEP]"]
        assert header["second"] == 5
        assert header["score"] == pytest.approx(1 / (1 + np.exp(-0.8)))
        assert (words.calls[-1]["inputs"], words.calls[-1]["text_pair"]) == ("the cat sat", "a dog")
    assert ask(page, "overview")[0]["second"] is None
    described = page.get("/api/server").json()["families"]
    assert [(one["pairs"], one["ranks"], one["splits"]) for one in described] == [
        (False, True, False),
        (True, True, False),
    ]
    header, _ = ask(page, "code", pair="it's a dog", layer=1, head=2)
    assert 'text_pair="it\'s a dog"' in header["python"]
    body = json.loads(shlex.split(header["curl"].replace("\\\n", " "))[-1])
    assert [(one["name"], one["data"]) for one in body["inputs"]] == [
        ("text", ["the cat sat"]),
        ("text_pair", ["it's a dog"]),
    ]


def test_a_map_that_the_family_does_not_have_is_refused(page: TestClient) -> None:
    for whole, message in (("contacts", "--graphs contacts"), ("all", "one of rollout, contacts, was 'all'")):
        refused = page.post("/api/map", json=ASKED | {"whole": whole})
        assert refused.status_code == 400
        assert message in refused.json()["message"]


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


@pytest.mark.parametrize("path", ["trace", "patch"])
def test_a_trace_needs_two_texts_a_stream_graph_and_all_heads(
    page: TestClient, words: FakeClient, path: str
) -> None:
    def refused(**more: Any) -> str:
        answer = page.post(f"/api/{path}", json=ASKED | more)
        assert answer.status_code == 400
        return str(answer.json()["message"])

    assert "--graphs stream" in refused(other="the dog sat")
    words.graphs["words"].append("stream")
    assert "another to compare with" in refused()
    assert "silenced must be empty" in refused(other="the dog sat", silenced=[[0, 1]])
    assert not words.calls


@pytest.mark.parametrize("path", ["overview", "map", "change"])
def test_a_text_without_tokens_is_refused(page: TestClient, path: str) -> None:
    """A tokeniser that adds none of its own finds none in spaces."""
    answer = page.post(f"/api/{path}", json=ASKED | {"text": " "})

    assert answer.status_code == 400
    assert "must have tokens" in answer.json()["message"]


def test_attention_to_a_memory_is_shown_apart(words: FakeClient, tmp_path: Path) -> None:
    words.memory = True
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float32))
    np.save(tmp_path / "memory.npy", np.ones((1, 3, 8), np.float32))
    files = SequenceFiles(input=tmp_path / "x.npy", memory=tmp_path / "memory.npy")
    page = TestClient(
        create_page(Explorer(words.as_client, address="host:1", files=files)), base_url="http://127.0.0.1"
    )
    asked = {"model": "vectors", "text": ""}

    served = page.get("/api/server").json()
    assert served["input"] == "x.npy"
    assert {one["name"]: one["cross"] for one in served["families"]} == {"words": False, "vectors": True}
    header, arrays = ask(page, "overview", **asked, cross=True)
    assert header["shape"] == [4, 3]
    assert not arrays["thumbnails"][..., 3:].any()
    header, arrays = ask(page, "map", **asked, cross=True)
    assert (header["tokens"], header["columns"]) == (list("0123"), list("012"))
    assert arrays["map"].shape == (4, 3)
    assert ask(page, "map", **asked)[1]["map"].shape == (4, 4)


def test_requests_as_code(page: TestClient, words: FakeClient) -> None:
    words.head_mask = True
    text = 'it\'s "the" cat'

    header, _ = ask(page, "code", text=text, layer=1, head=2, silenced=[[0, 1]], truncate=True)

    compile(header["python"], "python", "exec")
    for line in (
        '"it\'s \\"the\\" cat"',
        "attention=[1]",
        "heads=[2]",
        "head_mask[0, 1] = 0",
        "truncate=True",
    ):
        assert line in header["python"]
    command = shlex.split(header["curl"].replace("\\\n", " "))
    assert command[1] == "http://host:8002/v2/models/words.attention/infer"
    body = json.loads(command[-1])
    assert body["inputs"][0]["data"] == [text]
    assert body["inputs"][1]["data"] == [1, 0, 1, 1, 1, 1]
    assert body["outputs"] == [{"name": "tokens"}, {"name": "attention.1", "parameters": {"heads": "2"}}]
    header, _ = ask(page, "code", model="vectors", text="", length=7)
    assert header["curl"] == ""
    assert "standard_normal((7, 8), np.float32)" in header["python"]


def test_a_page_of_too_many_weights_is_refused(words: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_view.explorer.saved.MOST_BYTES", 2 << 20)
    words.layers, words.heads = 4, 16
    page = TestClient(create_page(Explorer(words.as_client, address="host:1")), base_url="http://127.0.0.1")

    answer = page.post("/api/page", json=ASKED | {"text": "word " * 180})

    assert answer.status_code == 400
    assert "at most 2 MiB of weights, was 4 MiB: shorten the sentence" in answer.json()["message"]
