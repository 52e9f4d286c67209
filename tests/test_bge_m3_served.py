"""The heads of BGE-M3, from its files to what is served: as FlagEmbedding's formulas in plain loops."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints import roberta_tokenizer, write_checkpoint
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import export_family, from_checkpoint
from polyhead_model import CheckpointError, load_checkpoint

QUERY = "who sat"
TEXTS = ["the cat sat.", "A dog dog dog", "", "a</s>b<unk>", "who<s>sat here, and <s>there", "<s>"]
SPECIAL = range(4)
"""`<s>`, `<pad>`, `</s>` and `<unk>`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as FlagEmbedding has it, with random weights; its head of tokens in 16 bits."""
    folder = tmp_path_factory.mktemp("m3")
    write_checkpoint(folder, "xlm-roberta", num_hidden_layers=1)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    random = torch.Generator().manual_seed(3)
    for name, width in (("sparse", 1), ("colbert", 16)):
        tensors = {
            "weight": torch.randn(width, 16, generator=random),
            "bias": torch.randn(width, generator=random),
        }
        torch.save({key: each.half() for key, each in tensors.items()}, folder / f"{name}_linear.pt")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    models = tmp_path_factory.mktemp("models")
    built = from_checkpoint(folder, "m3").build()
    assert built.left_out == ("scores are sums over the query's tokens, not their means",)
    export_family(built.encoder, "m3", models, graphs=["sparse", "maxsim"], tokenizer=built.tokenizer)
    with serving(quick_settings(models)) as server, Client(server.address) as client:
        yield client


def states(folder: Path, ids: list[int]) -> Any:
    """The output of transformers for one text, [T, 16]."""
    from transformers import AutoModel

    with torch.inference_mode():
        return AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]


def head(folder: Path, name: str) -> dict[str, Any]:
    return {key: each.float() for key, each in torch.load(folder / f"{name}_linear.pt").items()}


def lexical_weights(folder: Path, text: str) -> dict[int, float]:
    ids, linear = roberta_tokenizer().encode(text).ids, head(folder, "sparse")
    found: dict[int, float] = {}
    for number, state in zip(ids, states(folder, ids), strict=True):
        weight = float(torch.relu(linear["weight"] @ state + linear["bias"]))
        if number not in SPECIAL and weight > found.get(number, 0.0):
            found[number] = weight
    return found


def vectors(folder: Path, text: str) -> Any:
    """Those of all tokens but the first, [T - 1, 16]."""
    ids, linear = roberta_tokenizer().encode(text).ids, head(folder, "colbert")
    found = states(folder, ids)[1:] @ linear["weight"].T + linear["bias"]
    return torch.nn.functional.normalize(found, dim=-1).numpy()


def test_words_have_the_weight_of_their_tokens(client: Client, folder: Path) -> None:
    encoding: Any = client.encode(TEXTS, model="m3", sparse=True)
    alone: Any = client.encode(TEXTS[1], model="m3", sparse=True)

    for number, text in enumerate(TEXTS):
        expected = lexical_weights(folder, text)
        found = encoding.sequence(number).sparse.to_dict()
        assert found.keys() == expected.keys()
        np.testing.assert_allclose([found[word] for word in expected], list(expected.values()), atol=1e-5)
    np.testing.assert_allclose(alone.sparse.values, encoding.sequence(1).sparse.values, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(encoding.pooled, axis=1), 1, atol=1e-5)


def test_documents_are_compared_by_all_tokens_but_the_first(client: Client, folder: Path) -> None:
    query = vectors(folder, QUERY)
    expected = [(query @ vectors(folder, text).T).max(1).sum() for text in TEXTS]

    found = client.maxsim(QUERY, TEXTS, model="m3")
    encoding: Any = client.encode(TEXTS[0], model="m3", token_vectors=True)

    assert [each.index for each in found] == np.argsort(-np.array(expected)).tolist()
    np.testing.assert_allclose([each.score for each in found], sorted(expected, reverse=True), atol=1e-5)
    np.testing.assert_allclose(encoding.token_vectors[1:], vectors(folder, TEXTS[0]), atol=1e-5)
    assert not encoding.token_vectors[0].any()


class Code:
    """What a pickle must not run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("made"), "by a pickle"))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (Code(), "must hold tensors alone"),
        ([torch.zeros(1)], "must hold tensors by name"),
        ({"weight": torch.zeros(1, 16)}, "the weights must hold bias"),
        ({"weight": torch.zeros(2, 16), "bias": torch.zeros(1)}, r"weight must have the shape \[1, 16\]"),
    ],
)
def test_other_pickles_are_refused(
    contents: object, message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "sparse_linear.pt").unlink()
    torch.save(contents, tmp_path / "sparse_linear.pt", pickle_module=pickle)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)

    assert not (tmp_path / "made").exists()
