"""A small random checkpoint of every model type that loads, made from the tables of names themselves.

What tests export of each is said here, too. `tests/export/test_model_types.py` does it, docs/encoders.md
shows it, and `python -m tests.model_types` writes it there.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.pages import ROOT

from polyhead_export import Built, from_checkpoint
from polyhead_export.kinds import ALWAYS, KINDS, kinds_of, undefined
from polyhead_export.precision import Precision
from polyhead_model import Encoder, EncoderConfig, read_checkpoint_info
from polyhead_model.bge_m3 import LEXICAL, VECTORS
from polyhead_model.hf_tensors import convert
from polyhead_model.huggingface import CheckpointInfo
from polyhead_model.model_types import model_types, small_config

WIDTH = 16
"""D of them all."""

TASKS: Mapping[str, Any] = {"architectures": ["SomeForSequenceClassification"], "num_labels": 3}
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "esm": {"position_embedding_type": "rotary", "token_dropout": True},
}
"""What makes a type what it is, and need not be given."""


def write(folder: Path, model_type: str) -> None:
    """Write a checkpoint: an encoder, a classifier, and the heads of BGE-M3, which any encoder may have.

    Types that differ in their names alone have the same weights, so that exports of one are those of others.
    """
    folder.mkdir(exist_ok=True)
    torch.save(_linear(1), folder / LEXICAL)
    torch.save(_linear(WIDTH), folder / VECTORS)
    for layers in (2, 1):  # two where layers differ, or are shared
        config = {**small_config(model_type, layers=layers), **TASKS, **SPECIAL.get(model_type, {})}
        (folder / "config.json").write_text(json.dumps(config))
        info = read_checkpoint_info(folder)
        if info.encoder.local_window or info.encoder.shared_layers:
            break
    save_file(random_tensors(info), folder / "model.safetensors")


def _linear(width: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(width)
    return {name: _draw(name, [width, WIDTH][: 2 - (name == "bias")], random) for name in ("weight", "bias")}


def random_tensors(info: CheckpointInfo) -> dict[str, torch.Tensor]:
    """Weights under the names of a type, drawn in the order of ours."""
    random = torch.Generator().manual_seed(5)
    tensors = {name: _draw(name, shape, random) for name, shape in shapes_of(info).items()}
    norms = {name for name, tensor in tensors.items() if tensor.ndim == 1 and name.endswith("weight")}
    tensors |= {name: tensors[name] - info.dialect.norm_offset for name in norms}
    if (contacts := info.dialect.contact_head) is not None:
        heads = info.encoder.layers * info.encoder.heads
        tensors |= {f"{contacts}.weight": _draw("", [1, heads], random), f"{contacts}.bias": torch.ones(1)}
    return tensors


def _draw(name: str, shape: Sequence[int], random: torch.Generator) -> torch.Tensor:
    is_norm = len(shape) == 1 and name.endswith("weight")
    return torch.randn(*shape, generator=random) * 0.2 + float(is_norm)


def shapes_of(info: CheckpointInfo) -> Mapping[str, torch.Size]:
    """The tensors that a checkpoint must have, in the order of ours."""
    found: dict[str, torch.Size] = {}

    def note(_: Path, expected: Mapping[str, torch.Size], *__: Any, **___: Any) -> None:
        found.update(expected)
        raise StopIteration

    with pytest.MonkeyPatch.context() as patch, suppress(StopIteration), torch.device("meta"):
        patch.setattr("polyhead_model.hf_tensors.check_tensors", note)
        convert(info, Encoder(info.encoder), {})
    return found


def build(folder: Path) -> Built:
    """The encoder of a checkpoint, pooled as its classifier is: then one token may be all that is needed."""
    classifier = read_checkpoint_info(folder).encoder.classifier
    pooling = None if classifier is None else classifier.pooling
    return from_checkpoint(folder, "small", pooling=pooling or "cls").build()


IN_ALL = "POLYHEAD_TEST_PRECISIONS" in os.environ
"""Whether each kind is exported in each precision of each type: `make test-precisions`."""

MARKS = {4: "●", 3: "◕", 2: "◐", 1: "○", 0: "·"}
"""What the page shows of a kind that is defined, by the number of precisions in which a test exports it."""

SHARES: Mapping[str, Sequence[tuple[Precision, str]]] = {
    "albert": [("int8", "rows"), ("fp16", "pooled")],
    "bert": [("int8", "maxsim"), ("bf16", "sparse")],
    "deberta-v2": [("int8", "pooled"), ("bf16", "rows")],
    "esm": [("int8", "contacts"), ("fp16", "contacts"), ("bf16", "contacts")],
    "esmc": [("fp16", "insight")],
    "eurobert": [("fp16", "maxsim")],
    "gemma3_text": [("int8", "sparse"), ("bf16", "insight")],
    "gpt2": [("fp16", "stream")],
    "gte": [("bf16", "maxsim")],
    "jina_embeddings_v3": [("int8", "insight"), ("bf16", "fast")],
    "modernbert": [("fp16", "rows")],
    "mpnet": [("int8", "stream"), ("fp16", "fast")],
    "neobert": [("bf16", "stream")],
    "nomic_bert": [("fp16", "sparse")],
    "qwen3": [("bf16", "pooled")],
}
"""What each type adds to what is exported of all: with it, each kind is exported in each precision.

Of 16 bits, it also says in which a type is exported at all: each is traced anew.
"""


def exports_of(model_type: str, config: EncoderConfig) -> Mapping[Precision, Sequence[str]]:
    """The kinds of graphs that tests export of a type, by precision.

    In fp32 all; in int8, and in the 16 bits of its share, what every family has, and the share. Of a type
    whose layers are those of an earlier one, what every family has, in fp32. `make test-precisions` exports
    all in all.
    """
    known = model_types()
    (this,) = (each for each in known if each.name == model_type)
    first = next(each for each in known if (each.positions, each.layers) == (this.positions, this.layers))
    if this != first:
        return {"fp32": ALWAYS}
    every = [kind.name for kind in kinds_of(config, ["all"])]
    if IN_ALL:
        return {"fp32": every, "int8": every, "fp16": every, "bf16": every}
    share = SHARES.get(model_type, ())
    exported: dict[Precision, Sequence[str]] = {"fp32": every}
    for precision in ("int8", *(precision for precision, _ in share)):
        exported[precision] = [kind for kind in every if kind in ALWAYS or (precision, kind) in share]
    return exported


PAGE = ROOT / "docs" / "encoders.md"
BEGIN, END = "<!-- made by python -m tests.model_types -->\n", "<!-- to here -->\n"


def table() -> str:
    """The table of types, kinds and precisions, for the page."""
    lines = [["`model_type`", "positions", "layers beyond BERT's", "heads for", *KINDS]]
    lines.append(["---"] * len(lines[0]))
    for each in model_types():
        with TemporaryDirectory() as folder:
            write(Path(folder), each.name)
            config = build(Path(folder)).encoder.config
        words = (", ".join(every) for every in (each.positions, each.layers, each.heads))
        exported, without = exports_of(each.name, config).values(), undefined(config)
        marks = ("" if kind in without else MARKS[sum(kind in kinds for kinds in exported)] for kind in KINDS)
        lines.append([f"`{each.name}`", *words, *marks])
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|\n" for line in lines)


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
