"""What is said of a model type is what its checkpoints are."""

import json
from pathlib import Path

import pytest

from polyhead_model import CheckpointError, read_checkpoint_info
from polyhead_model.hf_dialects import DIALECTS
from polyhead_model.model_types import ModelType, model_types, small_config


def test_every_type_that_loads_is_there_and_has_positions() -> None:
    found = model_types()

    assert [each.name for each in found] == sorted(DIALECTS)
    assert all(each.positions for each in found)
    assert {each.name for each in found if "words" in each.heads} == {
        name for name, dialect in DIALECTS.items() if dialect.masked_lm
    }


@pytest.mark.parametrize("one", model_types(), ids=lambda one: one.name)
@pytest.mark.parametrize("positions", [None, "absolute", "rotary", "rope"])
def test_words_are_those_of_a_checkpoint(one: ModelType, positions: str | None, tmp_path: Path) -> None:
    config = small_config(one.name) | ({} if positions is None else {"position_embedding_type": positions})
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        encoder = read_checkpoint_info(tmp_path).encoder
    except CheckpointError:
        assert positions is not None
        return

    kinds = {
        "rotations": encoder.rotary_base,
        "learned": encoder.position_rows,
        "relative": encoder.relative_buckets or getattr(encoder, "disentangled", None),
    }
    found = {kind for kind, given in kinds.items() if given}
    assert found
    assert found <= {*one.positions}
    assert one.layers == tuple(
        word
        for word, holds in {
            "causal": encoder.causal,
            "windows": encoder.local_window,
            "K/V groups": encoder.groups < encoder.heads,
            "Q/K norms": encoder.qk_norm or encoder.qk_layer_norm,
            "norm first": encoder.norm == "pre",
            "norms around": encoder.norm == "both",
            "RMS norms": encoder.norm_type == "rms",
            "gated": encoder.gated,
            "shared layers": encoder.shared_layers,
        }.items()
        if holds
    )
