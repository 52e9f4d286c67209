"""The page's questions, answered by polyhead's own server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.servers import quick_settings, serving
from tests.view.explorer.test_frames import unpack

from polyhead_client import AsyncClient
from polyhead_view.explorer.app import create_page
from polyhead_view.explorer.explorer import Explorer

ASKED = {"model": "tiny-tokens", "text": "the cat sat on the mat"}
T = 8

Open = Callable[..., TestClient]


@pytest.fixture
def open_page() -> Iterator[Open]:
    """Opens the page of a server. One event loop lives as long as the page, as in uvicorn."""
    opened = []

    def page(address: str) -> TestClient:
        explorer = Explorer(lambda: AsyncClient(address, timeout=60), address=address)
        opened.append(TestClient(create_page(explorer), base_url="http://127.0.0.1"))
        return opened[-1].__enter__()

    yield page
    for one in opened:
        one.__exit__(None, None, None)


def ask(page: TestClient, path: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = page.post(f"/api/{path}", json=ASKED | more)
    assert answer.status_code == 200, answer.text
    return unpack(answer.content)


def test_maps_are_those_of_the_server(open_page: Open, repository: Path) -> None:
    with serving(quick_settings(repository)) as server:
        page = open_page(server.address)
        header, overview = ask(page, "overview")
        head, arrays = ask(page, "map", layer=1, head=1)
        similarity, pairs = ask(page, "similarity", other="a big dog")
        too_long = page.post("/api/overview", json=ASKED | {"text": "the " * 30})
        cut = ask(page, "overview", text="the " * 30, truncate=True)[0]

    assert header["tokens"] == ["[CLS]", *ASKED["text"].split(), "[SEP]"]
    weights = arrays["map"] * head["scale"]
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=2e-3)
    small = overview["thumbnails"][1, 1, :T, :T]
    np.testing.assert_allclose(small / 255, weights / weights.max(), atol=0.03)
    assert pairs["map"].shape == (T, 5)
    assert similarity["cosine"] == pytest.approx(float((pairs["map"] * similarity["scale"]).sum()), abs=1e-2)
    assert too_long.status_code == 400
    assert "has 32 tokens, 16 more than the 16 tokens that tiny-tokens takes" in too_long.json()["message"]
    assert (len(cut["tokens"]), cut["left_out"]) == (16, 16)


def test_patches_recover_what_the_trace_says(open_page: Open, probed_models: Path) -> None:
    with serving(quick_settings(probed_models)) as server:
        page = open_page(server.address)
        two = {"model": "probed", "text": "the cat sat", "other": "the dog sat"}
        header, trace = ask(page, "trace", **two)
        whole, moved = ask(page, "patch", **two, layer=0, token=2)
        last, at_last = ask(page, "patch", **two, layer=len(header["tokens"]) - 1, token=2)
        for place in ({"layer": 9}, {"token": 5}, {"layer": -1}, {"token": 2**70}):
            assert page.post("/api/patch", json=ASKED | two | place).status_code == 400

    shares = trace["map"] * header["scale"]
    assert header["columns"][2] == "cat ← dog"
    np.testing.assert_allclose(shares[0], [0, 0, 1, 0, 0], atol=1e-3)  # the token alone is what differs
    assert (moved["cosines"] < 1 - 1e-6).sum() > 1, "the patch reaches other tokens through attention"
    np.testing.assert_allclose(np.delete(at_last["cosines"], 2), 1, atol=1e-6)
    assert whole["cosine"] == pytest.approx(header["corrupted"], abs=1e-4)
    assert last["cosine"] > whole["cosine"]


def test_texts_that_no_server_can_take_are_refused(open_page: Open, repository: Path) -> None:
    with serving(quick_settings(repository)) as server:
        page = open_page(server.address)
        for body in ('{"model": "tiny-tokens", "text": "\\ud800"}', '{"model": "absent", "text": "a"}'):
            answer = page.post("/api/map", content=body, headers={"content-type": "application/json"})
            assert answer.status_code in {400, 404}, answer.text
        for place in ({"layer": 7}, {"head": 9}, {"layer": -3}, {"head": -1}, {"layer": 2**70}):
            answer = page.post("/api/map", json=ASKED | place)
            assert answer.status_code == 400, answer.text
