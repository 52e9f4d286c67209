"""What `encode` reads and edits, causal tracing and directions, against plain loops over a real server."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.client.conftest import Connect
from tests.conftest import TEXT_MAX_TOKENS, write_tokenizer
from tests.encoders import seeded
from tests.numerics import close
from tests.pages import block
from tests.servers import quick_settings, serving

from polyhead_client import Client, Direction, Edit, InvalidRequest, Place
from polyhead_export import TokenizerFile, export_family
from polyhead_model import Classifier, EncoderConfig

L, H, D, K = 2, 2, 16, 8
CLEAN, CORRUPTED = "the cat sat on the mat", "the dog sat on the sofa"
TEXTS = [CLEAN, "a dog", "i saw that small house"]
CONFIG = EncoderConfig(
    d_model=D,
    heads=H,
    layers=L,
    feed_forward=24,
    norm="pre",
    vocabulary=32,
    positions=32,
    pooling="mean",
    classifier=Classifier(labels=("no", "yes")),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a family, `open`, whose stream is open; three sequences a request."""
    folder = tmp_path_factory.mktemp("open")
    write_tokenizer(folder / "tokenizer.json")
    tokenizer = TokenizerFile(path=folder / "tokenizer.json", max_tokens=TEXT_MAX_TOKENS)
    export_family(seeded(CONFIG, 4), "open", folder / "models", graphs=["stream"], tokenizer=tokenizer)
    with serving(quick_settings(folder / "models", max_batch_size=3)) as server:
        yield server.address


@pytest.fixture
def client(connect: Connect, address: str) -> Client:
    return connect(address)


def test_what_is_read_is_what_is_put_there(client: Client) -> None:
    whole: Any = client.encode(CLEAN, read=[(L, 3), (0, 1, 1), (0, 3)])
    assert whole.model == "open.stream"
    assert np.shape(whole.stream) == (2, D)
    assert np.shape(whole.head_outputs) == (1, K)
    close(whole.pooled, client.encode(CLEAN, model="open").pooled)
    vector = np.arange(D)
    edited = client.encode(
        CLEAN,
        read=[Place(1, 3), Place(1, 2), Place(1, 2, 0)],
        edits=[Edit(1, 3, vector, mode="replace"), Edit(1, 2, np.ones(K), mode="replace", head=0)],
    )
    assert (np.asarray(edited.stream)[0] == vector).all()
    assert (np.asarray(edited.head_outputs) == 1).all()
    assert (np.asarray(edited.pooled) != np.asarray(whole.pooled)).any()


def test_each_sequence_of_a_batch_has_places_of_its_own(client: Client) -> None:
    places: Any = [[(0, 0), (1, 4)], [(2, 1)], []] * 2
    edits: Any = [
        [Edit(1, 4, np.ones(D))],
        [],
        [Edit(0, None, np.ones(D)), Edit(1, 2, np.ones(K), head=1)],
    ] * 2
    texts = TEXTS * 2  # of which the server takes three at once

    together = client.encode(texts, read=places, edits=edits)

    assert isinstance(together.stream, list)
    assert [len(each) for each in together.stream] == [2, 1, 0] * 2
    for row, text in enumerate(TEXTS):
        alone = client.encode(
            text, read=places[row] or [(0, 0)], edits=edits[row] or [Edit(0, 0, np.zeros(D))]
        )
        close(np.asarray(together.pooled)[row], alone.pooled)
        if places[row]:
            close(together.stream[row], alone.stream)
        assert (np.asarray(together.sequence(row).stream) == together.stream[row]).all()


def test_vectors_are_scaled_and_projected_out(client: Client) -> None:
    vector = np.random.default_rng(3).standard_normal(D)
    unit = vector / np.linalg.norm(vector)
    before = np.asarray(client.encode(CLEAN, read=[(1, 2)]).stream)[0]
    scaled = client.encode(CLEAN, read=[(1, 2)], edits=[Edit(1, 2, vector, scale=-2)])
    projected = client.encode(CLEAN, read=[(1, 2)], edits=[Edit(1, 2, vector, mode="project_out")])

    close(np.asarray(scaled.stream)[0], (before - 2 * vector).astype(np.float32))
    close(np.asarray(projected.stream)[0], (before - before @ unit * unit).astype(np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"read": [(3, 0)]}, r"read\[0\]: layer must be 0 to 2, was 3"),
        ({"read": [(0, 0), (2, 0, 0)]}, r"read\[1\]: layer must be 0 to 1, was 2"),
        ({"read": [(0, 0, 2)]}, r"read\[0\]: head must be 0 to 1, was 2"),
        ({"read": [(0, 0), (0, 1, 1), (0, 8)]}, r"read\[2\]: token must be between 0 and T-1 \(7\), was 8"),
        ({"read": [(0, -1)]}, r"read\[0\]: token must be between 0 and"),
        ({"read": [(0,)]}, r"read\[0\] must be \(layer, token\) or \(layer, token, head\), was \(0,\)"),
        ({"read": [(0, 2**70)]}, r"read\[0\] must be \(layer, token\)"),
        ({"edits": [Edit(0, 2**70, np.ones(D))]}, r"edits\[0\]: token must be an integer of 64 bits"),
        ({"read": []}, "read must be a list of one or more places, was"),
        ({"edits": [Edit(0, 9, np.ones(D))]}, r"edits\[0\]: token must be between 0 and T-1 \(7\), was 9"),
        (
            {"edits": [Edit(0, 0, np.ones(3))]},
            r"edits\[0\]: vector must be D \(16\) finite numbers, was float64",
        ),
        ({"edits": [Edit(0, 0, np.full(D, np.nan))]}, r"edits\[0\]: vector must be D .*, some not finite"),
        ({"edits": [Edit(0, 0, np.ones(D), head=1)]}, r"edits\[0\]: vector must be K \(8\) finite"),
        (
            {"edits": [Edit(0, 0, np.ones(D), mode="replace", scale=2)]},
            r"edits\[0\]: scale goes with mode add",
        ),
        (
            {"edits": [Edit(0, 0, np.ones(D), mode=cast(Any, []))]},
            r"edits\[0\]: mode must be one of .*, was \[\]",
        ),
        *(
            (
                {"edits": [Edit(0, 0, np.ones(D), scale=scale)]},
                r"edits\[0\]: scale must be a finite number, was",
            )
            for scale in cast(Any, ([1, 2], [1.0] * D, np.ones(D), "2", True, None, math.nan, 10**400))
        ),
        ({"edits": [Edit(0, 0, np.zeros(D), mode="project_out")]}, r"edits\[0\]: vector must not be zero"),
        ({"edits": [Edit(0, 0, np.ones(D), scale=1e39)]}, r"edits\[0\]: vector times scale must be finite"),
        (
            {"edits": [Edit(0, None, np.ones(D)), Edit(0, 2, np.ones(D))]},
            r"edits\[1\] must be of another place than edits\[0\]",
        ),
        ({"edits": ["x"]}, r"edits\[0\] must be an Edit, was 'x'"),
        ({"read": [(0, 0)], "attention": True}, "no graph of open gives all that was asked for"),
    ],
)
def test_places_that_are_not_there_are_named(client: Client, options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.encode(CLEAN, **options)


def test_places_behind_the_end_of_one_text_of_a_batch(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"read\[0\]: token must be 0 to 3, was 5"):
        client.encode(TEXTS, read=[(0, 5)])
    with pytest.raises(InvalidRequest, match=r"edits\[1\]\[0\]: token must be 0 to 1, was 2"):
        client.encode([[5, 6, 7], [5, 6]], edits=[[], [Edit(0, 2, np.ones(D))]])
    with pytest.raises(InvalidRequest, match="read must be a list for each of 3 sequences"):
        client.encode(TEXTS, read=[[(0, 0)]])


def cosine(a: Any, b: Any) -> Any:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("by", ["token", "head"])
def test_a_trace_is_a_loop_of_patched_runs(client: Client, by: Any) -> None:
    steps: list[tuple[int, int]] = []
    trace = client.trace(CLEAN, CORRUPTED, by=by, progress=lambda done, of: steps.append((done, of)))

    target = np.asarray(client.encode(CLEAN).pooled)
    clean, corrupted = (cosine(client.encode(text).pooled, target) for text in (CLEAN, CORRUPTED))
    np.testing.assert_allclose((trace.clean, trace.corrupted), (clean, corrupted), atol=1e-5)
    count = len(trace.tokens[0])
    assert trace.shares.shape == ((L + 1, count) if by == "token" else (L, H))
    for (layer, place), share in np.ndenumerate(trace.shares):
        places = [(layer, place)] if by == "token" else [(layer, token, place) for token in range(count)]
        found = client.encode(CLEAN, read=places)
        vectors = np.asarray(found.stream if by == "token" else found.head_outputs)
        edits = [
            Edit(each[0], each[1], vector, mode="replace", head=place if by == "head" else None)
            for each, vector in zip(places, vectors, strict=True)
        ]
        patched = cosine(client.encode(CORRUPTED, edits=edits).pooled, target)
        np.testing.assert_allclose(share, (patched - corrupted) / (clean - corrupted), atol=1e-3)
    assert steps[-1] == (trace.shares.size, trace.shares.size)
    strongest = next(trace.strongest())
    assert strongest[2] == trace.shares[strongest[:2]] == trace.shares.max()


def test_metrics_of_a_trace(client: Client) -> None:
    logit = client.trace(CLEAN, CORRUPTED, metric="yes")
    own = client.trace(CLEAN, CORRUPTED, metric=lambda found: np.asarray(found.logits)[1])
    ids = client.trace([5, 6, 7], [5, 8, 7], metric=np.ones(D))

    np.testing.assert_allclose(own.shares, logit.shares, atol=1e-4)
    assert np.isclose(logit.clean, np.asarray(client.encode(CLEAN).logits)[1], atol=1e-5)
    assert ids.shares.shape == (L + 1, 3)
    assert not ids.shares[0, [0, 2]].any()  # these tokens are the same in both
    for options, message in (
        (
            {"metric": "maybe"},
            "metric must be one of the 2 labels of open.stream, such as no, yes, was 'maybe'",
        ),
        ({"metric": np.ones(3)}, "metric must be a label, a function or 16 numbers"),
        ({"by": "layer"}, "by must be one of token, head, was 'layer'"),
        ({"corrupted": "a dog"}, "must have as many tokens, one or more, had 8 and 4"),
        ({"corrupted": CLEAN}, "clean and corrupted must differ in the metric, had 1 and 1"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            client.trace(CLEAN, **{"corrupted": CORRUPTED} | options)


def test_a_direction_is_a_difference_of_means(client: Client, tmp_path: Path) -> None:
    positive, negative = TEXTS[:2], TEXTS[2:]
    direction = client.direction(positive, negative, layer=1)

    def mean(text: str) -> Any:
        count = int(client.encode(text).lengths)
        return np.mean(np.asarray(client.encode(text, read=[(1, at) for at in range(count)]).stream), axis=0)

    expected = np.mean([mean(text) for text in positive], axis=0) - mean(negative[0])
    np.testing.assert_allclose(direction.vector, expected, atol=1e-5)
    direction.save(tmp_path / "direction.npz")
    loaded = Direction.load(tmp_path / "direction.npz")
    assert (loaded.model, loaded.layer) == ("open.stream", 1)
    assert (loaded.vector == direction.vector).all()
    client.encode(CLEAN).save(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="must be a direction of format 1"):
        Direction.load(tmp_path / "other.npz")

    read = [(1, at) for at in range(8)]
    before = np.asarray(client.encode(CLEAN, read=read).stream)
    added = client.encode(CLEAN, read=read, edits=[loaded.add(3)])
    removed = client.encode(CLEAN, read=read, edits=[loaded.project_out()])
    close(added.stream, before + 3 * loaded.vector)
    assert (
        np.abs(np.asarray(removed.stream) @ loaded.vector).max() < 1e-5 < np.abs(before @ loaded.vector).max()
    )
    first = client.direction(positive, negative, layer=L, token=0)
    assert first.vector.shape == (D,)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"layer": 9}, "^layer must be 0 to 2, was 9"),
        ({"layer": -1, "token": 0}, "^layer must be 0 to 2, was -1"),
        ({"layer": 1.0}, "^layer must be an integer, was 1.0"),
        ({"layer": 0, "token": "a"}, "^token must be an integer, was 'a'"),
        ({"layer": 0, "token": 6}, "^token must be 0 to 3, was 6"),
        ({"layer": 0, "token": 30}, "^token must be between 0 and "),
    ],
)
def test_what_is_wrong_with_a_direction_has_the_caller_s_name(
    client: Client, places: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.direction(TEXTS[:2], TEXTS[2:], **places)


def test_the_page_traces(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    code = block("docs/attention.md", "client.trace")

    exec(code.replace("127.0.0.1:8001", address).replace("minilm", "open"), names)

    *strongest, left = capsys.readouterr().out.splitlines()
    assert len(strongest) == 3
    assert abs(float(left)) < 1e-5
    assert np.abs(names["steered"].pooled - names["silent"].pooled).max() > 0
    assert Direction.load("direction.npz").layer == 1
