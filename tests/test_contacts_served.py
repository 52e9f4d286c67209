"""Contacts in proteins, from a checkpoint of ESM to what is served: as transformers predicts them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest, strongest_contacts
from polyhead_client.command import main
from polyhead_export import ExportError, export_family
from polyhead_model import Encoder, EncoderConfig, load_checkpoint, prune_heads
from polyhead_model.task_heads import ContactHead
from polyhead_view import draw_contacts

START, PADDING, END = 0, 1, 2
SIZES = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 24}
LENGTHS = (14, 5, 3, 2)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An encoder of ESM with random weights, and the folder of its checkpoint."""
    from transformers import EsmConfig, EsmModel

    torch.manual_seed(3)
    config = EsmConfig(
        vocab_size=24,
        max_position_embeddings=64,
        pad_token_id=PADDING,
        eos_token_id=END,
        mask_token_id=23,
        position_embedding_type="rotary",
        attn_implementation="eager",
        **SIZES,
    )
    model = EsmModel(config, add_pooling_layer=False).eval()
    for parameter in model.parameters():  # sharp enough that maps differ
        torch.nn.init.normal_(parameter, std=0.4)
    torch.nn.init.normal_(model.contact_head.regression.weight, std=3)
    folder = tmp_path_factory.mktemp("esm")
    model.save_pretrained(folder)
    config_file = folder / "config.json"
    settings = json.loads(config_file.read_text())
    del settings["eos_token_id"]  # which published checkpoints do not have
    config_file.write_text(json.dumps(settings))
    return model, folder


@pytest.fixture(scope="module")
def proteins() -> tuple[list[list[int]], Any, Any]:
    """Sequences with a start and an end, and the same padded with their mask."""
    random = np.random.default_rng(5)
    ids = [[START, *random.integers(4, 23, length - 2).tolist(), END] for length in LENGTHS]
    padded = torch.tensor([row + [PADDING] * (max(LENGTHS) - len(row)) for row in ids])
    return ids, padded, (padded != PADDING).long()


@pytest.fixture(scope="module")
def client(theirs: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    models = tmp_path_factory.mktemp("models")
    export_family(load_checkpoint(theirs[1]).encoder, "esm", models, graphs=["contacts"])
    with serving(quick_settings(models)) as server, Client(server.address) as client:
        yield client


def test_contacts_are_those_of_transformers(
    client: Client, theirs: tuple[Any, Path], proteins: tuple[list[list[int]], Any, Any]
) -> None:
    ids, padded, mask = proteins
    with torch.inference_mode():
        expected = theirs[0].predict_contacts(padded, mask).numpy()

    contacts: Any = client.encode(ids, model="esm", contacts=True, output=False).contacts

    for length, ours, whole in zip(LENGTHS, contacts, expected, strict=True):
        assert ours.shape == (length, length)
        inner = slice(1, length - 1)
        np.testing.assert_allclose(ours[inner, inner], whole[: length - 2, : length - 2], atol=1e-5)
        assert ours[0].max() == ours[-1].max() == ours[:, 0].max() == ours[:, -1].max() == 0
    assert np.ptp(contacts[0][1:-1, 1:-1]) > 0.1  # there is something to compare


def test_a_protein_alone_has_the_contacts_that_it_has_in_a_batch(
    client: Client, proteins: tuple[list[list[int]], Any, Any]
) -> None:
    together: Any = client.encode(proteins[0], model="esm", contacts=True).contacts
    alone = client.encode(proteins[0][1], model="esm", contacts=True)

    np.testing.assert_allclose(np.asarray(alone.contacts), together[1], atol=1e-6)
    assert "Contacts" in alone._repr_html_()
    assert len(draw_contacts(alone).axes) == 2
    with pytest.raises(ValueError, match="must have contacts"):
        draw_contacts(client.encode(proteins[0][1], model="esm"))


@pytest.mark.parametrize(("dtype", "error"), [("FP16", 2**-11), ("UINT8", 0.5001 / 255)])
def test_contacts_come_in_fewer_bytes(
    client: Client, proteins: tuple[list[list[int]], Any, Any], dtype: Any, error: float
) -> None:
    exact: Any = client.encode(proteins[0], model="esm", contacts=True).contacts
    fewer: Any = client.encode(proteins[0], model="esm", contacts=True, dtype=dtype).contacts

    for one, other in zip(exact, fewer, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, one, atol=error)
    assert any((one != other).any() for one, other in zip(exact, fewer, strict=True))


def test_the_strongest_contacts_are_far_apart_along_the_chain(
    client: Client, proteins: tuple[list[list[int]], Any, Any]
) -> None:
    contacts: Any = client.encode(proteins[0][0], model="esm", contacts=True).contacts
    pairs = [(i, j) for i in range(1, 13) for j in range(i + 6, 13)]
    expected = sorted(pairs, key=lambda pair: (-contacts[pair], pair))

    found = strongest_contacts(contacts)

    assert [(one.i, one.j) for one in found] == expected
    assert [one.probability for one in found] == [contacts[pair] for pair in expected]
    assert strongest_contacts(contacts, top=3) == found[:3]
    assert {one.j - one.i for one in strongest_contacts(contacts, separation=11)} == {11}
    assert strongest_contacts(contacts[:3, :3]) == []
    for wrong in ({"top": 0}, {"separation": 0}):
        with pytest.raises(ValueError, match="must be"):
            strongest_contacts(contacts, **wrong)
    with pytest.raises(ValueError, match=r"contacts must be numbers \[T, T\]"):
        strongest_contacts(contacts[:2])


def test_the_command_draws_them(
    client: Client, proteins: tuple[list[list[int]], Any, Any], tmp_path: Path
) -> None:
    np.save(tmp_path / "protein.npy", np.array(proteins[0][0]))
    out = tmp_path / "contacts.png"

    command = ["view", "--contacts", "--input", str(tmp_path / "protein.npy"), "--out", str(out)]
    assert main([*command, "--model", "esm", "--address", client._target]) == 0

    height, width, _ = imread(out).shape
    assert width > height > 100


def test_heads_that_were_pruned_add_nothing(
    theirs: tuple[Any, Path], proteins: tuple[list[list[int]], Any, Any], tmp_path: Path
) -> None:
    encoder: Any = load_checkpoint(theirs[1]).encoder
    pruned = prune_heads(encoder, [(0, 1), (2, 0), (2, 3)])
    export_family(pruned, "pruned", tmp_path, graphs=["contacts"])
    with serving(quick_settings(tmp_path)) as server, Client(server.address) as client:
        contacts: Any = client.encode(proteins[0][0], contacts=True).contacts
        attention: Any = client.encode(proteins[0][0], attention=True).attention

    head = encoder.config.contacts
    logits = np.full((LENGTHS[0] - 2,) * 2, head.bias)
    for layer, weights in attention.items():
        for number, each in enumerate(np.asarray(weights, np.float64)[:, 1:-1, 1:-1]):
            symmetric = each + each.T
            common = np.outer(symmetric.sum(1), symmetric.sum(0)) / max(symmetric.sum(), 1e-30)
            logits = logits + head.weights[layer * 4 + number] * (symmetric - common)
    np.testing.assert_allclose(np.asarray(contacts)[1:-1, 1:-1], 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_a_family_without_a_contact_head_says_so(client: Client, tmp_path: Path) -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=20)
    with pytest.raises(ExportError, match="this encoder has no regression that predicts them"):
        export_family(Encoder(config), "other", tmp_path, graphs=["contacts"])
    with pytest.raises(InvalidRequest, match="contacts must be True or False"):
        client.encode([0, 4, 2], model="esm", contacts="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"weights": (0.5,) * 3}, "a weight for each of 1 layers' 2 heads, had 3"),
        ({"end_id": 20}, r"contacts: end_id must be between 0 and vocabulary - 1 \(19\), was 20"),
        ({"weights": (0.5, float("nan"))}, r"weights\[1\] must be finite in fp32, was nan"),
    ],
)
def test_a_contact_head_fits_its_encoder(fields: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"weights": (0.5, 0.5), "bias": 0.0, "end_id": 2} | fields

    with pytest.raises(ValueError, match=named):
        EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=20, contacts=ContactHead(**given))
