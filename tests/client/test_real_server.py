"""The client against polyhead's own server, over both transports."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.client.conftest import Connect, vectors
from tests.conftest import PROMPTS
from tests.numerics import close

from polyhead_client import Client, InvalidRequest, NotFound

TEXTS = ["the cat sat on the mat", "a dog", "i saw that small red house yesterday."]


@pytest.fixture
def client(connect: Connect, real_server: str) -> Client:
    client = connect(real_server)
    client.wait_until_ready(timeout=240)
    return client


def test_the_server_tells_of_itself(client: Client) -> None:
    assert client.live()
    assert client.ready()
    assert client.ready("tiny.attention")
    assert not client.ready("nothing")
    with pytest.raises(NotFound, match="has no model nothing; it has tiny, "):
        client.wait_until_ready("nothing")
    assert client.metadata().name == "polyhead"
    assert {"tiny", "tiny.attention", "tiny-tokens"} <= {model.name for model in client.models()}
    info: Any = client.model("tiny-tokens.attention")
    assert (info.layers, info.heads, info.d_model) == (2, 2, 16)
    assert info.attention_layers == (0, 1)
    assert info.takes_text
    assert info.max_request_bytes == 64 << 20
    assert info.parameters > 1000


def test_pairs_and_prompts_in_one_request_in_several_and_in_joined_ones(client: Client) -> None:
    first = [TEXTS[index % 3] for index in range(300)]
    second = [TEXTS[(index // 3) % 3] for index in range(300)]
    options: dict[str, Any] = {"model": "tiny-tokens", "truncate": True}
    expected: dict[tuple[str, str], Any] = {
        (a, b): client.encode(a, text_pair=b, prompt_name="passage", **options) for a in TEXTS for b in TEXTS
    }
    plain: Any = client.encode(TEXTS[0], text_pair=TEXTS[1], **options)
    assert np.abs(plain.pooled - expected[TEXTS[0], TEXTS[1]].pooled).max() > 1e-3
    assert expected[TEXTS[0], TEXTS[1]].tokens == [
        "[CLS]",
        "a",
        *TEXTS[0].split(),
        "[SEP]",
        "a",
        "dog",
        "[SEP]",
    ]

    together: Any = client.encode(first, text_pair=second, prompt_name="passage", **options)  # more than 256
    with ThreadPoolExecutor(8) as pool:
        joined: list[Any] = list(
            pool.map(
                lambda a, b: client.encode(a, text_pair=b, prompt_name="passage", **options), first, second
            )
        )

    for index, pair in enumerate(zip(first, second, strict=True)):
        assert together.tokens[index] == joined[index].tokens == expected[pair].tokens
        close(together.pooled[index], expected[pair].pooled)
        close(joined[index].pooled, expected[pair].pooled)


def test_prompts_are_listed_and_unknown_ones_refused(client: Client) -> None:
    assert client.model("tiny-tokens").prompts == PROMPTS
    assert client.model("tiny").prompts == {}
    with pytest.raises(InvalidRequest, match="prompt_name of the request must be one of passage, query; or "):
        client.encode("a cat", prompt_name="qery", model="tiny-tokens")
    with pytest.raises(InvalidRequest, match=r"prompt_name goes with texts; put a prompt's tokens before "):
        client.encode([1, 2], prompt_name="", model="tiny-tokens")
    with pytest.raises(InvalidRequest, match="prompt_name must be a name, such as 'query', or None, was 3"):
        client.encode("a", prompt_name=3, model="tiny-tokens")  # type: ignore[arg-type]


def test_tokens_of_ids_can_be_had(client: Client) -> None:
    assert client.encode([2, 6, 3], model="tiny-tokens", tokens=True).tokens == ["[CLS]", "cat", "[SEP]"]


@pytest.mark.parametrize(("dtype", "error"), [("FP16", 2**-12), ("UINT8", 0.5 / 255)])
def test_heads_queries_and_datatype_are_chosen_on_the_server(
    client: Client, dtype: Any, error: float
) -> None:
    x = vectors(2, 8, 16)
    whole: Any = client.encode(x, model="tiny", attention=True)

    part: Any = client.encode(x, model="tiny", attention=[1], heads=[3, 0], queries=slice(2, 5), dtype=dtype)

    assert part.attention[1].dtype == np.float32
    close(part.attention[1], whole.attention[1][:, [3, 0], 2:5], scale=1, extra=error)


def test_the_servers_refusals_arrive_as_they_are_said(client: Client) -> None:
    with pytest.raises(NotFound, match="nothing"):
        client.encode("a", model="nothing")
    with pytest.raises(NotFound, match="7"):
        client.encode("a", model="tiny-tokens", version=7)
    with pytest.raises(InvalidRequest, match="abc"):
        client.encode("a", model="tiny-tokens", version="abc")
    with pytest.raises(InvalidRequest, match="input_ids"):
        client.encode([1, 99], model="tiny-tokens")
    with pytest.raises(InvalidRequest, match="heads"):
        client.encode(vectors(1, 2, 16), model="tiny", attention=True, heads=4)
    with pytest.raises(InvalidRequest, match="x"):
        client.encode(vectors(1, 2, 8), model="tiny")
    with pytest.raises(InvalidRequest, match="model must be one of tiny, tiny-masked, was not given"):
        client.encode(vectors(1, 2, 16))

    assert client.encode("a", model="tiny-tokens").lengths == 3


@pytest.mark.parametrize("tokens", range(1, 9))
def test_arrays_are_views_of_the_reply(client: Client, tokens: int) -> None:
    """Whatever their sizes: the server begins each where an array may begin."""
    encoding: Any = client.encode(vectors(1, tokens, 16), model="tiny", attention=True)

    for array in (encoding.output, *encoding.attention.values()):
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0
