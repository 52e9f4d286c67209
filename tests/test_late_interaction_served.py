"""Late interaction, from a checkpoint to scores, compared with a plain loop over transformers' model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.late_checkpoints import (
    DOCUMENT_LENGTH,
    QUERY_LENGTH,
    WIDTH,
    late_model,
    late_tokenizer,
    scored,
    token_ids,
    vectors,
    write_pylate,
)
from tests.pages import block
from tests.server.graphs import OpenGraph, manifest_of
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest
from polyhead_client.command import main
from polyhead_export import export_family
from polyhead_export.sources import from_checkpoint
from polyhead_server.serving.drift import measure_drift
from polyhead_server.serving.tokeniser import open_tokeniser
from polyhead_view import explain_similarity

QUERY = "who sat"
DOCUMENTS = ["the cat sat.", "A dog", "[so] it: rains", "e", "who sat here"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any, Path]:
    """The model, its projection, its tokenizer, and the folder of all of them."""
    tokenizer = late_tokenizer()
    model, weight = late_model(tokenizer)
    folder = tmp_path_factory.mktemp("pylate")
    write_pylate(folder, model, weight, tokenizer)
    return model, weight, tokenizer, folder


@pytest.fixture(scope="module")
def models(theirs: tuple[Any, Any, Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with the family; texts are documents by default."""
    models = tmp_path_factory.mktemp("models")
    built = from_checkpoint(theirs[3], "colbert", prompt_name="document").build()
    export_family(built.encoder, "colbert", models, graphs=["maxsim"], tokenizer=built.tokenizer)
    return models


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[Client]:
    with serving(quick_settings(models, max_batch_size=2)) as server, Client(server.address) as client:
        yield client


def expected(theirs: tuple[Any, Any, Any, Path], query: str, document: str) -> tuple[Any, list[int]]:
    """The cosines [S, T of those that are compared], and which these are."""
    model, weight, tokenizer, _ = theirs
    q = vectors(model, weight, *token_ids(tokenizer, query, "query"))
    ids, attended = token_ids(tokenizer, document, "document")
    at = scored(tokenizer, ids)
    return (q @ vectors(model, weight, ids, attended)[at].T).double().numpy(), at


@pytest.mark.parametrize("kind", ["query", "document"])
def test_token_vectors_are_those_of_the_loop(
    client: Client, theirs: tuple[Any, Any, Any, Path], kind: str
) -> None:
    model, weight, tokenizer, _ = theirs
    encoding: Any = client.encode(
        DOCUMENTS, prompt_name=kind, token_vectors=True, output=False, truncate=True
    )
    alone = client.encode(DOCUMENTS[0], prompt_name=kind, token_vectors=True, truncate=True)

    for text, ours in zip(DOCUMENTS, encoding.token_vectors, strict=True):
        ids, attended = token_ids(tokenizer, text, kind)
        assert ours.shape == (QUERY_LENGTH if kind == "query" else len(ids), WIDTH)
        np.testing.assert_allclose(ours, vectors(model, weight, ids, attended).numpy(), atol=2e-5)
    np.testing.assert_allclose(np.asarray(alone.token_vectors), encoding.token_vectors[0], atol=2e-6)
    # The library shows added tokens as it normalises them.
    assert (alone.tokens or [])[:2] == ["[CLS]", "[q] " if kind == "query" else "[d] "]


def test_documents_are_sorted_by_maxsim(client: Client, theirs: tuple[Any, Any, Any, Path]) -> None:
    """In several requests."""
    scores = [expected(theirs, QUERY, document)[0].max(1).sum() for document in DOCUMENTS]
    seen: list[tuple[int, int]] = []

    found = client.maxsim(QUERY, DOCUMENTS, progress=lambda *done: seen.append(done))

    assert [each.index for each in found] == np.argsort(-np.array(scores), kind="stable").tolist()
    assert [each.text for each in found] == [DOCUMENTS[each.index] for each in found]
    np.testing.assert_allclose([each.score for each in found], sorted(scores, reverse=True), atol=1e-4)
    assert np.ptp(scores) > 0.1  # there is something to sort
    assert seen[-1] == (5, 5)
    assert client.maxsim(QUERY, DOCUMENTS, top=2) == found[:2]
    assert client.maxsim(QUERY, []) == []


def test_matches_add_up_to_the_score(client: Client, theirs: tuple[Any, Any, Any, Path]) -> None:
    found = client.maxsim(QUERY, DOCUMENTS, matches=True)

    for each in found:
        cosines, at = expected(theirs, QUERY, each.text)
        assert each.matches is not None
        assert sum(match.similarity for match in each.matches) == pytest.approx(each.score, abs=1e-12)
        assert [match.query_index for match in each.matches] == list(range(QUERY_LENGTH))
        assert [match.index for match in each.matches] == [at[best] for best in cosines.argmax(1)]
        np.testing.assert_allclose([m.similarity for m in each.matches], cosines.max(1), atol=2e-5)
        assert not {match.token for match in each.matches} & set(".[]:")  # they are not compared
    assert [match.query_token for match in found[0].matches or ()][:4] == ["[CLS]", "[q] ", "w", "##h"]


def test_the_encodings_that_are_sorted_by(client: Client) -> None:
    query, documents = client.compare(QUERY, DOCUMENTS)

    scores = {each.index: each.score for each in client.maxsim(QUERY, DOCUMENTS)}
    largest = np.asarray(documents.max_similarities)
    np.testing.assert_allclose(largest.sum(1), [scores[at] for at in range(len(DOCUMENTS))], atol=1e-5)
    assert np.asarray(query.token_vectors).shape == (QUERY_LENGTH, WIDTH)
    assert documents.similarities is None
    with pytest.raises(InvalidRequest, match="documents must be a list of texts"):
        client.compare(QUERY, DOCUMENTS[0])


def test_the_page_shows_what_works(client: Client) -> None:
    code = block("docs/encoders.md", "client.maxsim").replace("127.0.0.1:8001", client._target)
    names: dict[str, Any] = {}

    exec(code, names)

    best = names["found"][0]
    assert sum(match.similarity for match in best.matches) == pytest.approx(best.score)


def test_the_similarity_is_split_and_drawn(
    client: Client, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = client.statistics("colbert")[0].inference_count
    explained = explain_similarity(client, QUERY, DOCUMENTS[0])
    assert client.statistics("colbert")[0].inference_count == before + 1  # the query alone
    (found,) = client.maxsim(QUERY, DOCUMENTS[:1], matches=True)

    assert explained.measure == "MaxSim"
    assert explained.value == pytest.approx(found.score, abs=1e-12)
    assert explained.contributions.sum() == pytest.approx(found.score, abs=1e-12)
    assert [len(tokens) for tokens in explained.tokens] == list(explained.contributions.shape)
    for match in found.matches or ():
        assert explained.contributions[match.query_index, match.index] == match.similarity
    command = ["similarity", QUERY, DOCUMENTS[0], "--out", str(tmp_path / "maxsim.svg")]
    assert main([*command, "--address", client._target]) == 0
    assert capsys.readouterr().out.startswith(f"MaxSim {found.score:.4f}, the sum over ")
    assert "MaxSim" in (tmp_path / "maxsim.svg").read_text()


def test_queries_and_documents_have_lengths_of_their_own(client: Client) -> None:
    long = "who sat on the mat and why"  # each letter is a token
    for kind, most in (("query", QUERY_LENGTH), ("document", DOCUMENT_LENGTH)):
        with pytest.raises(InvalidRequest, match=rf"must be at most {most} tokens, was 2\d"):
            client.encode(long, prompt_name=kind)
        cut = client.encode(long, prompt_name=kind, truncate=True)
        assert cut.lengths == most
        assert (cut.tokens or [])[-1] == "[SEP]"
    assert client.encode(long, prompt_name="").lengths == 22  # without prefix
    assert client.encode(long, truncate=True).lengths == DOCUMENT_LENGTH  # the default


def test_drift_is_measured_on_vectors_of_queries(models: Path) -> None:
    graph = OpenGraph(models, "colbert", "maxsim")

    class Twice:
        def run(self, feeds: Any, outputs: Any) -> Any:
            return {name: 2 * value for name, value in graph.engine.run(feeds, outputs).items()}

        def stop(self) -> None: ...

        def close(self) -> None: ...

    drift = measure_drift(
        Twice(),
        graph.engine,
        graph.signature,
        open_tokeniser(models / "colbert" / "1", manifest_of(models, "colbert")),
    )

    assert drift["deviations"]["max_similarities"] > 0.1
    assert drift["cosines"]["token_vectors"]["least"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"documents": "text"}, "documents must be a list of texts"),
        ({"matches": "yes"}, "matches must be True or False"),
    ],
)
def test_arguments_are_checked(client: Client, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        client.maxsim(**{"query": QUERY, "documents": DOCUMENTS} | arguments)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"query_vectors": np.zeros((0, WIDTH))}, rf"query_vectors must be floats \[S, {WIDTH}\]"),
        ({"query_vectors": np.zeros((3, 2))}, r"was float64 \[3, 2\]"),
        ({"query_vectors": np.full((3, WIDTH), np.nan)}, "must be finite"),
        ({"similarities": True}, "similarities goes with query_vectors"),
    ],
)
def test_vectors_of_a_query_are_checked(client: Client, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        client.encode(DOCUMENTS, **options)
