"""The pooled graph gives what the fast graph gives for each sequence, and computes no other token at last."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from tests import encoders
from tests.encoders import draw_norms_and_biases, seeded
from tests.exports import run, session_of
from tests.numerics import close

from polyhead_export import ExportError, export_family
from polyhead_export.comparison import check_parity
from polyhead_export.errors import ParityError
from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS, kinds_of
from polyhead_export.kinds.pooled import PooledGraph
from polyhead_export.parity import Reference, reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention_config import Disentangled
from polyhead_model.task_heads import Classifier, Dense

KIND = PooledGraph()
BERT = dataclasses.replace(
    encoders.BERT,
    classifier=Classifier(labels=("no", "yes"), dense=(Dense(width=16, activation="tanh"),)),
)
MODERN = dataclasses.replace(
    encoders.MODERN, layers=3, pooling="cls", classifier=Classifier(labels=("score",))
)
ENCODERS = {
    "BERT": BERT,
    "ModernBERT": MODERN,
    "ModernBERT whose last layer is local": dataclasses.replace(
        MODERN, global_every=3, pooling="last", classifier=None
    ),
    "GPT-2": dataclasses.replace(
        BERT,
        types=0,
        norm="pre",
        causal=True,
        final_norm=True,
        pooling=None,
        classifier=Classifier(labels=("a", "b"), pooling="last", padding_id=3),
    ),
    "MPNet, head masks": dataclasses.replace(
        BERT, relative_buckets=8, relative_distance=6, head_mask_input=True, pooling="cls", normalise=True
    ),
    "DeBERTa": dataclasses.replace(
        BERT,
        types=0,
        position_embeddings=False,
        disentangled=Disentangled(terms=("c2p", "p2c"), span=4, distance=9, shared=True),
        pooling="last",
        classifier=None,
    ),
    "masks": dataclasses.replace(BERT, mask_input=True),
}


def build(config: EncoderConfig) -> Encoder:
    return seeded(config, 71, change=draw_norms_and_biases)


@pytest.mark.parametrize("name", ENCODERS)
def test_the_graph_gives_what_pytorch_gives(name: str) -> None:
    encoder = build(ENCODERS[name])
    session = session_of(build_graph(encoder, KIND, pack=True))

    for seed, size in enumerate([(1, 1), (1, 40), (5, 23), (3, 150)]):
        inputs = sample_inputs(encoder.config, KIND, *size, seed=seed)
        expected = reference_outputs(encoder, KIND, inputs)
        found = run(session, inputs)
        assert list(found) == list(expected)
        assert "output" not in found
        for output, got in found.items():
            close(got, expected[output])


def test_the_last_layer_computes_one_token_of_each_sequence() -> None:
    encoder = build(BERT)
    model = build_graph(encoder, KIND, pack=True)
    proto = ir.to_proto(model)
    inside = [node.outputs[0] for node in model.graph if node.op_type == "Gelu"]
    proto.graph.output.extend(map(ir.to_proto, inside))
    hidden = [str(value.name) for value in inside]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = sample_inputs(BERT, KIND, 3, 9, seed=0) | {"lengths": torch.tensor([4, 9, 2], dtype=torch.int32)}

    values = session.run(hidden, {name: value.numpy() for name, value in inputs.items()})

    assert [int(np.prod(each.shape[:-1])) for each in values] == [4 + 9 + 2, 3]


def test_another_token_in_the_place_of_the_first_is_found(tmp_path: Path) -> None:
    first = build(dataclasses.replace(BERT, pooling="cls", classifier=None))
    last = Encoder(dataclasses.replace(first.config, pooling="last")).eval()
    last.load_state_dict(first.state_dict())
    for encoder in (last, first):
        model = build_graph(encoder, KIND, pack=True)
        share_weights([model], tmp_path, names_of(encoder))
        ir.save(model, tmp_path / KIND.file)
        compared = Reference(first).compare(tmp_path / KIND.file, KIND, model)
        if encoder is last:
            with pytest.raises(ParityError, match="'pooled'"):
                check_parity(compared, KIND.file)
        else:
            check_parity(compared, KIND.file)


@pytest.mark.parametrize(
    ("encoder", "precision"),
    [
        (lambda: build(BERT), "int8"),
        (lambda: build(ENCODERS["GPT-2"]).fuse(), "int8"),
        (lambda: build(MODERN), "fp16"),
    ],
    ids=["BERT", "GPT-2, one W_qkv", "ModernBERT"],
)
def test_it_is_exported_in_other_precisions(
    encoder: Callable[[], Encoder], precision: Any, tmp_path: Path
) -> None:
    """The export itself compares it with PyTorch."""
    exported = export_family(encoder(), "small", tmp_path, graphs=["pooled"], precision=precision)

    assert "pooled" in exported.parity.outputs


def test_a_family_has_it_where_it_is_defined(tmp_path: Path) -> None:
    mean = dataclasses.replace(BERT, classifier=None, pooling="mean")

    assert [kind.name for kind in kinds_of(BERT)] == ["fast", "attention"]
    others = {"contacts", "sparse", "maxsim"}  # of encoders with heads of their own
    assert [kind.name for kind in kinds_of(BERT, ["all"])] == [name for name in KINDS if name not in others]
    assert "pooled" not in {kind.name for kind in kinds_of(mean, ["all"])}
    with pytest.raises(ExportError, match="graphs must not have pooled, which computes one token"):
        export_family(Encoder(mean), "small", tmp_path, graphs=["pooled"])
