"""Results that are kept, looked at in a notebook, and turned into tables."""

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.conftest import ALL_INSIGHT, SIDE, TEXTS, D
from tests.client.encodings import assert_same
from tests.metadata import SCORES

from polyhead_client import Client, Encoding
from polyhead_client.layers import FetchedLayers

pytestmark = pytest.mark.usefixtures("all_graphs")


@pytest.mark.parametrize(
    "inputs", [TEXTS[0], TEXTS, np.ones((2, 3, D), np.float32)], ids=["one", "list", "array"]
)
@pytest.mark.parametrize(
    "wanted", [{"attention": True, "queries": [0, 2]}, ALL_INSIGHT], ids=["attention", "insight"]
)
def test_what_is_saved_is_loaded(client: Client, tmp_path: Path, inputs: Any, wanted: dict[str, Any]) -> None:
    model = "vectors" if isinstance(inputs, np.ndarray) else "words"
    encoding = client.encode(inputs, model=model, **wanted)

    encoding.save(tmp_path / "one.npz")

    loaded = Encoding.load(tmp_path / "one.npz")
    assert_same(loaded, encoding)
    assert loaded.timings == encoding.timings


def test_what_is_no_saved_encoding_is_refused(sentence: Encoding, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must be a file that ends with \.npz, was .*one\.npy"):
        sentence.save(tmp_path / "one.npy")
    np.savez(tmp_path / "other.npz", output=np.zeros(3))
    (tmp_path / "text.npz").write_text("the cat")
    (tmp_path / "empty.npz").write_text("")
    for name in ("other", "text", "empty"):
        with pytest.raises(ValueError, match=r"must be an \.npz file that polyhead wrote"):
            Encoding.load(tmp_path / f"{name}.npz")
    with pytest.raises(FileNotFoundError):
        Encoding.load(tmp_path / "absent.npz")


def test_a_result_is_one_short_line(client: Client, sentence: Encoding) -> None:
    assert repr(sentence) == (
        "<Encoding of words.attention, version 1: 5 tokens; "
        "output [5, 4], pooled [4], attention [3, 5, 5] of layer 1>"
    )
    batch = client.encode(TEXTS, model="words", **ALL_INSIGHT)
    assert repr(batch) == (
        "<Encoding of words.insight, version 1: 2 sequences of 5, 3 tokens; "
        "output 2 × [3–5, 4], pooled [2, 4], value_norms 2 × [3, 3–5] of layers 0, 1, "
        "scores [2, 2, 3, 3], rollout 2 × [3–5, 3–5], mixed 2 × [3–5, 3–5], "
        f"top 2 × [2, 3, 3–5, 4], thumbnails [2, 2, 3, {SIDE}, {SIDE}]>"
    )
    assert repr(batch.scores) == f"<HeadScores [2, 2, 3, 3]: {', '.join(SCORES)}>"
    assert repr(batch.top) == "<TopKeys 2 × [2, 3, 3–5, 4]>"


def test_a_notebook_shows_the_tokens_and_the_first_head(client: Client, sentence: Encoding) -> None:
    html = sentence._repr_html_()

    assert "Layer 1, head 0: attention." in html
    assert html.count("<tr>") == 6
    weight = sentence.attention[1][0, 1, 2]
    assert f'title="the → &lt;b&gt;cat&lt;/b&gt;: {weight:.3f}"' in html
    assert "<b>" not in html
    assert "<script" not in html
    chosen = client.encode(TEXTS[0], model="words", attention=[0], heads=[2], queries=[1, 3])
    assert "Layer 0, head 2: attention." in chosen._repr_html_()
    assert chosen._repr_html_().count("<tr>") == 3
    assert "Rollout." in client.encode(TEXTS[0], model="words", **ALL_INSIGHT)._repr_html_()


def test_html_is_well_formed_and_small_whatever_was_asked_for(client: Client) -> None:
    for inputs, layers in (("cat " * 500, [0]), (TEXTS, [0]), ("cat", None)):
        html = client.encode(inputs, model="words", attention=layers)._repr_html_()
        opened: list[str] = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, _, stack=opened: stack.append(tag)  # type: ignore[method-assign, misc]
        parser.handle_endtag = lambda tag, stack=opened: stack.remove(tag)  # type: ignore[method-assign, misc]
        parser.feed(html)
        assert opened == []
        assert len(html) < 250_000


def test_a_sequence_of_a_batch_is_a_result_of_its_own(client: Client) -> None:
    for wanted in ({"attention": True}, ALL_INSIGHT):
        batch = client.encode(TEXTS, model="words", **wanted)
        alone = client.encode(TEXTS[1], model="words", **wanted)

        one = batch.sequence(1)

        assert (one.tokens, one.lengths) == (["[CLS]", "dog", "[SEP]"], 3)
        assert repr(one) == repr(alone)
        np.testing.assert_equal(one.rollout, alone.rollout)
        if one.scores is not None and alone.scores is not None:
            np.testing.assert_equal(one.scores.weighted["entropy"], alone.scores.weighted["entropy"])  # type: ignore[index]
    with pytest.raises(IndexError, match=r"index must be less than B \(2\), was 2"):
        batch.sequence(2)
    with pytest.raises(ValueError, match="this is one sequence"):
        one.sequence(0)


def test_batches_and_results_without_weights_are_refused_with_what_to_do(client: Client) -> None:
    batch = client.encode(TEXTS, model="words", attention=[0])
    with pytest.raises(ValueError, match=r"this is a batch: choose one, sequence\(0\)\.show\(\)"):
        batch.show()
    for inputs in (TEXTS, TEXTS[0]):
        with pytest.raises(ValueError, match="to_frame needs attention"):
            client.encode(inputs, model="words").to_frame()


def test_memories_have_positions(client: Client, sentence: Encoding) -> None:
    """Where keys are tokens of a memory, the sequence's own tokens do not name them."""
    from dataclasses import replace

    both = replace(sentence, cross_attention={1: np.full((3, 5, 2), 0.5, np.float32)})

    assert both.to_xarray().cross_attention.sizes == {"layer": 1, "head": 3, "query": 5, "memory": 2}
    assert both.to_xarray().memory_token.values.tolist() == ["0", "1"]
    batch = client.encode(TEXTS, model="words", attention=[1])
    of_memory = {1: [np.full((3, rows, 2), 0.5, np.float32) for rows in (5, 3)]}
    dataset = replace(batch, cross_attention=of_memory).to_xarray()
    assert dataset.cross_attention.sizes == {"layer": 1, "head": 3, "memory_edge": 5 * 2 + 3 * 2}
    assert dataset.memory_key_token.values[-2:].tolist() == ["0", "1"]
    assert "→ 1: 0.500" in replace(both, attention=FetchedLayers({}))._repr_html_()


@pytest.mark.parametrize(
    ("tokens", "second"),
    [
        (["[CLS]", "a", "cat", "[SEP]", "dogs", "[SEP]"], 4),
        (["<s>", "a", "</s>", "</s>", "dogs", "</s>"], 4),
        (["[CLS]", "a", "cat", "saw", "dogs", "[SEP]"], None),
    ],
)
def test_bertviz_gets_where_the_second_text_begins(
    sentence: Encoding, tokens: list[str], second: int | None
) -> None:
    encoding = dataclasses.replace(sentence, tokens=tokens)

    assert encoding.to_bertviz()["sentence_b_start"] == encoding.second_text_start == second


def test_spans_tell_where_the_second_text_begins_though_nothing_parts_the_texts(client: Client) -> None:
    pair = client.encode("the cat", model="words", attention=[0])
    starts = np.array([-1, 0, 4, 0, -1])
    spans = np.stack([starts, np.where(starts < 0, -1, starts + 3), starts], 1)

    tokens = ["[CLS]", "the", "cat", "dog", "[SEP]"]
    assert dataclasses.replace(pair, tokens=tokens).second_text_start is None
    assert dataclasses.replace(pair, tokens=tokens, spans=spans).second_text_start == 3
    assert dataclasses.replace(pair, tokens=tokens, spans=spans[[0, 1, 2, 4]]).second_text_start is None
    assert client.encode(TEXTS, model="words").second_text_start is None


def test_a_layer_that_was_not_asked_for_says_how_to_ask(
    client: Client, sentence: Encoding, tmp_path: Path
) -> None:
    without = client.encode(TEXTS[0], model="words")
    assert not without.attention
    with pytest.raises(KeyError) as none:
        without.attention[5]
    assert str(none.value) == "attention must have been asked for, none was: encode(…, attention=[5])"
    with pytest.raises(KeyError, match=r"there are layers 1: encode\(…, attention=\[0\]\)"):
        client.encode(TEXTS, model="words", attention=[1]).sequence(0).attention[0]
    with pytest.raises(KeyError, match=r"encode\(…, cross_attention=\[0\]\)"):
        sentence.cross_attention[0]
    without.save(tmp_path / "without.npz")
    with pytest.raises(KeyError, match="none was"):
        Encoding.load(tmp_path / "without.npz").attention[5]
