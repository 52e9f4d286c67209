"""What `EncoderConfig` can express, through export and a real server, against PyTorch without padding.

The encoder in PyTorch is held to other implementations in tests/model. Checkpoints are in
tests/test_checkpoints_served.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.encoders import seeded
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import export_family
from polyhead_model import Classifier, Dense, Encoder, EncoderConfig
from polyhead_model.config import Activation
from polyhead_model.task_heads import Pooling

POOLINGS: tuple[tuple[Pooling | None, ...], ...] = (
    (None, "mean", "cls", "max"),
    (None, "last", "weighted_mean", "mean_sqrt_len"),
    (None, "last", "mean", "max"),
)
"""By kind of layers."""
DENSE = (
    Dense(width=6, activation="mish", bias=False),
    Dense(width=9, activation="elu", norm=True, norm_epsilon=0.1),
)
CLASSIFIERS = [
    Classifier(
        labels=("no", "maybe", "yes"),
        pooling=pooling,
        dense=DENSE,
        bias=False,
        padding_id=5 if pooling == "last" else None,
    )
    for pooling in ("weighted_mean", None, "last")
]
"""By kind of layers."""
ACTIVATIONS = get_args(Activation)
LAYERS: tuple[dict[str, Any], ...] = (
    {"feed_forward": 24, "norm": "post"},
    {"feed_forward": 24, "norm": "pre", "final_norm": True, "final_norm_epsilon": 0.1},
    {},
)
"""Blocks that normalise after and before their sub-layers, and attention alone."""


def configurations() -> dict[str, EncoderConfig]:
    return {
        f"layers-{kind}-pooling-{row}": EncoderConfig(
            d_model=20,
            heads=3,
            head_width=8,
            layers=1,
            activation=ACTIVATIONS[(row + kind + 1) % len(ACTIVATIONS)],
            pooling=pooling,
            normalise=pooling is not None and (row + kind) % 2 == 1,
            dense=DENSE[: row - 1] if row > 1 else (),
            truncate_dim=4 if row == 3 else None,
            classifier=CLASSIFIERS[kind] if (row + kind) % 3 == 0 else None,
            bias=row % 2 == 0,
            fused=(row + kind) % 2 == 0,
            causal=row == kind,
            mask_input=row == kind + 1,
            **LAYERS[kind],
            vocabulary=40 if row % 2 else None,
            positions=60 if row % 2 else None,
            types=3 if row == 3 else 0,
            padding_id=7 if row == 1 else None,
        )
        for kind in range(len(LAYERS))
        for row, pooling in enumerate(POOLINGS[kind])
    }


def build(name: str, config: EncoderConfig) -> Encoder:
    return seeded(
        config,
        sum(name.encode()),
        change=lambda _, parameter: parameter.add_(torch.randn_like(parameter) * 0.05),
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, config in configurations().items():
        export_family(build(name, config), name, folder)
    return folder


@pytest.fixture(scope="module")
def client(models: Path, device: str) -> Iterator[Client]:
    with serving(quick_settings(models, device=device)) as server, Client(server.address) as one:
        yield one


@pytest.mark.parametrize(("name", "config"), configurations().items())
def test_served_as_in_pytorch(name: str, config: EncoderConfig, client: Client) -> None:
    random = torch.Generator().manual_seed(3)
    lengths = [9, 1, 17, 4]
    encoder = build(name, config)
    if config.vocabulary is None:
        inputs = [torch.randn(length, config.d_model, generator=random) for length in lengths]
    else:
        inputs = [torch.randint(config.vocabulary, (length,), generator=random) for length in lengths]
        inputs[0][-2:] = 5  # which a classifier may pass by

    encoding: Any = client.encode([one.numpy() for one in inputs], model=name, attention=True)

    assert (encoding.pooled is None) == (config.pooling is None)
    for index, one in enumerate(inputs):  # one at a time: there is no padding in the reference
        with torch.inference_mode():
            expected = encoder(one[None], need_weights=True)
        np.testing.assert_allclose(encoding.output[index], expected.output[0].numpy(), rtol=1e-5, atol=1e-5)
        for layer, theirs in enumerate(expected.attention):
            np.testing.assert_allclose(encoding.attention[layer][index], theirs[0].numpy(), atol=1e-5)
        assert (encoding.logits is None) == (expected.logits is None)
        if encoding.logits is not None:
            assert encoding.labels == CLASSIFIERS[0].labels
            np.testing.assert_allclose(
                encoding.logits[index], expected.logits[0].numpy(), rtol=1e-5, atol=1e-5
            )
        if encoding.pooled is not None:
            np.testing.assert_allclose(
                encoding.pooled[index], expected.pooled[0].numpy(), rtol=1e-5, atol=1e-5
            )
