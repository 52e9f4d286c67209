"""Checkpoints against the numbers of `transformers` and `sentence-transformers`, and refusals."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from tests import checkpoints
from tests.checkpoints import random_of, sentence_transformers, write_checkpoint
from tests.numerics import close
from tokenizers import Tokenizer

from polyhead_model import CheckpointError, load_checkpoint, masks

TOLERANCE = 1e-5
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
POSITIONS = "embeddings.position_embeddings.weight"
KEY = "encoder.layer.0.attention.self.key.weight"
DENSE = "encoder.layer.1.output.dense.weight"

SENTENCES = [
    "The cat that I saw yesterday sat on the mat.",
    "A kitten rested on a rug.",
    "Interest rates rose by a quarter of a point, to nobody's surprise.",
    "No.",
]


def compare(folder: Path, model: Any, *, pad: int = 0, types: bool = False) -> None:
    """Hold a folder, as we load it, to a model of `transformers`: outputs and every layer's attentions."""
    torch.manual_seed(11)
    encoder = load_checkpoint(folder).encoder
    longest = LONG if encoder.config.positions and encoder.config.positions >= LONG else 13
    lengths = torch.tensor([longest, 1, 6, 9])
    valid = masks.valid_tokens(lengths, longest)
    # Any id is a token where it is not padding: the padding's own, too.
    ids = torch.where(valid, torch.randint(0, model.config.vocab_size, valid.shape), pad)
    ids[0, [2, 3, 7]], ids[2, 0], ids[3, 8] = pad, pad, pad
    extra = {"token_type_ids": torch.where(valid, torch.randint(0, 2, valid.shape), 0)} if types else {}
    with torch.no_grad():
        theirs = model.eval()(
            input_ids=ids, attention_mask=valid.long(), output_attentions=True, return_dict=True, **extra
        )
        ours = encoder(ids, lengths, need_weights=True, **extra)

    for row, length in enumerate(lengths.tolist()):
        close(ours.output[row, :length], theirs.last_hidden_state[row, :length])
        for own, other in zip(ours.attention, theirs.attentions, strict=True):
            close(own[row, :, :length], other[row, :, :length], scale=1)


def test_sentence_embeddings_are_sentence_transformers_own(minilm_checkpoint: Path) -> None:
    checkpoint = load_checkpoint(minilm_checkpoint)
    assert checkpoint.tokenizer == minilm_checkpoint / "tokenizer.json"
    assert checkpoint.max_tokens == 256
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(SENTENCES)]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in encoded], batch_first=True)
    with torch.no_grad():
        ours = checkpoint.encoder(ids, torch.tensor([len(row) for row in encoded])).pooled

    theirs = (
        sentence_transformers()
        .SentenceTransformer(str(minilm_checkpoint), device="cpu")
        .encode(SENTENCES, convert_to_tensor=True)
    )

    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    similarity = ours @ ours.T
    assert similarity[0, 1] > 0.4 > similarity[0, 2]


OURS = {"vocab_size": 50, "max_position_embeddings": 20}
SIZES = checkpoints.SIZES | OURS | {"num_hidden_layers": 2}
DISTILBERT_SIZES = checkpoints.DISTILBERT_SIZES | OURS | {"n_layers": 2}
LONG = 150
ESM = {
    **SIZES,
    "vocab_size": 33,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "mask_token_id": 32,
    "layer_norm_eps": 1e-5,
}
GPT2_SIZES = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20}
MODERNBERT = {
    **SIZES,
    "num_hidden_layers": 5,
    "max_position_embeddings": LONG,
    "local_attention": 5,
    "pad_token_id": 0,
    "global_rope_theta": 500.0,
    "local_rope_theta": 20.0,
    **{f"{name}_token_id": None for name in ("eos", "bos", "cls", "sep")},
}
GROUPED = SIZES | {
    "num_key_value_heads": 2,
    "max_position_embeddings": LONG,
    "pad_token_id": 0,
    **{f"{name}_token_id": None for name in ("eos", "bos")},
}
GEMMA = GROUPED | {
    "num_hidden_layers": 5,
    "head_dim": 6,
    "query_pre_attn_scalar": 6,
    "sliding_window": 5,
    "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}
# Positions beyond all buckets, as in the published ones.
DEBERTA = SIZES | {
    "max_position_embeddings": LONG,
    "relative_attention": True,
    "position_buckets": 8,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
DEBERTA_BIASED = SIZES | {
    "max_position_embeddings": LONG,
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "bert, one token type": ("Bert", SIZES | {"type_vocab_size": 1}),
    "bert, relu": ("Bert", SIZES | {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "bert, gelu_new": ("Bert", SIZES | {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", SIZES | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", SIZES | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "camembert": ("Camembert", SIZES | {"type_vocab_size": 1}),
    "distilbert": ("DistilBert", DISTILBERT_SIZES),
    "electra": ("Electra", SIZES | {"embedding_size": 16}),
    "electra, narrow embeddings": ("Electra", SIZES | {"embedding_size": 6}),
    "albert": ("Albert", SIZES | {"embedding_size": 6, "num_hidden_layers": 3}),
    "albert, embeddings as wide as the encoder": (
        "Albert",
        SIZES | {"embedding_size": 16, "num_hidden_layers": 1, "type_vocab_size": 1},
    ),
    # More positions than it takes to fill every bucket of relative ones.
    "mpnet": ("MPNet", SIZES | {"max_position_embeddings": LONG + 2}),
    "esm": ("Esm", ESM | {"position_embedding_type": "rotary", "token_dropout": True}),
    "esm, another base": ("Esm", ESM | {"position_embedding_type": "rotary", "rope_theta": 77.0}),
    "esm, learned positions": ("Esm", ESM | {"emb_layer_norm_before": True, "token_dropout": True}),
    "gpt2": ("GPT2", GPT2_SIZES),
    "gpt2, own feed-forward width": ("GPT2", GPT2_SIZES | {"n_inner": 20, "layer_norm_epsilon": 1e-3}),
    # Layers 0, 3: everything; the others: two tokens to each side.
    "modernbert": ("ModernBert", MODERNBERT),
    "modernbert, biases": (
        "ModernBert",
        MODERNBERT
        | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_attn_every_n_layers": 2},
    ),
    "eurobert": ("EuroBert", GROUPED | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    "eurobert, biases": ("EuroBert", GROUPED | {"attention_bias": True, "mlp_bias": True}),
    "eurobert, first token": ("EuroBert", GROUPED),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 6}),
    "qwen3, multi-query": ("Qwen3", GROUPED | {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}),
    # Layers 1, 3: everything; the others: two tokens to each side.
    "gemma3_text": ("Gemma3Text", GEMMA),
    "nomic_bert": ("NomicBert", SIZES | {"max_position_embeddings": LONG, "pad_token_id": 0}),
    "nomic_bert, one token type": ("NomicBert", SIZES | {"pad_token_id": 0, "type_vocab_size": 1}),
    "gte": ("Gte", SIZES | {"max_position_embeddings": LONG, "type_vocab_size": 2}),
    "gte, one token type": ("Gte", SIZES | {"hidden_act": "silu"}),
    "esmc": ("Esmc", SIZES | {"max_position_embeddings": LONG, "hidden_size": 24}),
    "esmc, biases": ("Esmc", SIZES | {"num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True}),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", SIZES | {"max_position_embeddings": LONG}),
    "jina_embeddings_v3, two token types": ("JinaEmbeddingsV3", SIZES | {"type_vocab_size": 2}),
    "gte, no token types": ("Gte", SIZES | {"type_vocab_size": 0}),
    "deberta-v2": ("DebertaV2", DEBERTA),
    "deberta-v2, projections of its own": (
        "DebertaV2",
        DEBERTA_BIASED | {"pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "type_vocab_size": 2},
    ),
    "deberta-v2, content to position": (
        "DebertaV2",
        DEBERTA | {"pos_att_type": "c2p", "position_buckets": -1, "max_relative_positions": 12},
    ),
    "deberta-v2, position to content": (
        "DebertaV2",
        DEBERTA_BIASED | {"pos_att_type": "p2c", "norm_rel_ebd": "layer_norm", "embedding_size": 6},
    ),
    "deberta-v2, no relative positions": (
        "DebertaV2",
        SIZES | {"norm_rel_ebd": "layer_norm", "type_vocab_size": 1},
    ),
    "deberta-v2, nothing of relative positions": (
        "DebertaV2",
        DEBERTA | {"pos_att_type": None, "type_vocab_size": 1},
    ),
    "deberta-v2, convolution": (
        "DebertaV2",
        DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 4},
    ),
    "deberta-v2, convolution in groups": (
        "DebertaV2",
        DEBERTA_BIASED
        | {"conv_kernel_size": 5, "conv_act": "sigmoid", "conv_groups": 2, "num_hidden_layers": 1},
    ),
    "modernbert, no window": ("ModernBert", MODERNBERT | {"global_attn_every_n_layers": 1}),
}


def make(name: str, head: str, **changes: Any) -> Any:
    """A random model of `transformers`."""
    kind, sizes = FAMILIES[name]
    return random_of(kind, head, **sizes, **changes)


LANGUAGE_MODELS = {"gpt2": "LMHeadModel", "qwen3": "ForCausalLM"}


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"], ids=["bare", "inside a task model"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_transformers_own(name: str, head: str, tmp_path: Path) -> None:
    if name == "gemma3_text" and head != "Model":
        pytest.skip("its language model is of another class than its configuration")
    own = next((each for kind, each in LANGUAGE_MODELS.items() if name.startswith(kind)), head)
    model = make(name, own if head != "Model" else head)
    model.save_pretrained(tmp_path)
    names = sorted(read(tmp_path / WEIGHTS))
    prefixed = any(key.startswith(model.base_model_prefix + ".") for key in names)
    assert prefixed == (head != "Model")

    base = model.base_model
    types = getattr(base.config, "type_vocab_size", 0) > 1
    compare(tmp_path, base, pad=base.config.pad_token_id or 0, types=types)
    left_out = load_checkpoint(tmp_path).left_out[:-1]
    heads = [key for key in names if not key.startswith(model.base_model_prefix + ".")]
    if head == "Model" or not heads:  # GPT-2's head is its token embeddings
        assert left_out == ()
    else:
        assert left_out[0].startswith(f"the task head is not served ({', '.join(heads[:3])}")


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "eurobert": {},  # pools logits of tokens
    "eurobert, biases": {"classifier_pooling": "mean"},
    "eurobert, first token": {"classifier_pooling": "bos"},
    "gpt2": {"pad_token_id": 49},
    "modernbert, biases": {"classifier_pooling": "mean", "classifier_bias": True, "num_labels": 1},
    "deberta-v2": {"pooler_hidden_act": "tanh"},
    "deberta-v2, convolution in groups": {},
}
"""What classifiers have beyond `FAMILIES`."""


@pytest.mark.parametrize("of", ["Sequence", "Token"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name in CLASSIFIERS or "," not in name])
def test_every_classifier_is_transformers_own(name: str, of: str, tmp_path: Path) -> None:
    if (name, of) == ("gemma3_text", "Token"):
        pytest.skip("transformers has no such model")
    changes = {"num_labels": 3, **CLASSIFIERS.get(name, {})}
    model = make(name, f"For{of}Classification", **changes)
    model.save_pretrained(tmp_path)
    torch.manual_seed(11)
    lengths = torch.tensor([9, 1, 5])
    valid = masks.valid_tokens(lengths, 9)
    ids = torch.where(valid, torch.randint(0, 30, (3, 9)), model.config.pad_token_id)
    ids[1, 0], ids[2, [2, 4]] = model.config.pad_token_id, model.config.pad_token_id  # GPT-2 passes them by

    checkpoint = load_checkpoint(tmp_path)

    types = {}
    if checkpoint.encoder.config.types:
        types = {"token_type_ids": torch.where(valid, torch.randint(0, 2, (3, 9)), 0)}
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=valid.long(), **types).logits
        ours = checkpoint.encoder(ids, lengths, **types)
    if of == "Token":
        theirs[~valid] = 0
    torch.testing.assert_close(ours.logits, theirs, rtol=0, atol=TOLERANCE)
    assert ours.pooled is None
    if checkpoint.encoder.config.pooled_position is not None:
        with torch.no_grad():
            alone = checkpoint.encoder(ids, lengths, **types, pack=True, pooled_only=True)
        torch.testing.assert_close(alone.logits, theirs, rtol=0, atol=TOLERANCE)
    assert len(checkpoint.left_out) == 1  # the tokenizer


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"id2label": {"0": "a", "1": "b"}},
            "config.json has 2 labels (id2label), but classifier.weight is for 3",
        ),
        (
            {"architectures": ["BertForSequenceClassification"], "hidden_size": 24},
            "must have the shape",
        ),
    ],
)
def test_a_configuration_of_another_classifier_is_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make("bert", "ForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | config))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(tmp_path)


def test_a_classifier_without_its_head_is_refused(folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(said | {"architectures": ["BertForSequenceClassification"]})
    )

    with pytest.raises(
        CheckpointError, match=r"the weights must hold classifier\.weight, classifier\.bias, "
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("in_features", "tensors", "message"),
    [
        (16, {"linear.weight": (4, 16), "linear.bias": (4,)}, None),
        (12, {}, "in_features must be 16, the width of what it gets, was 12"),
        (
            16,
            {"linear.weight": (16, 4), "linear.bias": (4,)},
            "linear.weight must have the shape [4, 16], was ",
        ),
    ],
)
def test_dense_layers_fit(
    in_features: int, tensors: dict[str, tuple[int, ...]], message: str | None, folder: Path
) -> None:
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps([*modules, {"path": "2", "type": "x.Dense"}]))
    for name, config in (("1", {}), ("2", {"in_features": in_features, "out_features": 4})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file({name: torch.ones(shape) for name, shape in tensors.items()}, folder / "2" / WEIGHTS)

    if message is None:
        assert load_checkpoint(folder).encoder.config.pooled_size == 4
        return
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(folder)


def test_text_needs_a_tokenizer_of_one_file(folder: Path) -> None:
    import transformers

    (left_out,) = load_checkpoint(folder).left_out
    assert left_out == "text is not served, only token ids: there is no tokenizer.json"

    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (left_out,) = load_checkpoint(folder).left_out
    assert "transformers makes one of vocab.txt: AutoTokenizer" in left_out

    (folder / "spm.model").touch()  # DeBERTa's
    assert "makes one of vocab.txt, spm.model: " in load_checkpoint(folder).left_out[0]
    (folder / "spm.model").unlink()

    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # as the message says
    assert load_checkpoint(folder).left_out == ()
    assert load_checkpoint(folder).tokenizer == folder / "tokenizer.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, as `transformers` saves it. Do not change it: `folder` is a copy."""
    path = tmp_path_factory.mktemp("bert")
    make("bert", "Model").save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "bert")


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read tensors without mapping the file, which tests then overwrite."""
    return load(path.read_bytes())


def test_shards_are_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    make("bert", "Model").save_pretrained(sharded, max_shard_size="10KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2

    one, other = load_checkpoint(folder).encoder.state_dict(), load_checkpoint(sharded).encoder.state_dict()

    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)

    min(sharded.glob("model-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-of-\d+\.safetensors: is missing"):
        load_checkpoint(sharded)


@pytest.mark.parametrize("name", ["../bert/model.safetensors", "/etc/passwd", 7])
def test_an_index_names_files_of_its_own_folder_only(folder: Path, name: object) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"embeddings.LayerNorm.bias": name}}))

    with pytest.raises(CheckpointError, match=rf"must name files inside its own folder, named {name!r}"):
        load_checkpoint(folder)


def test_first_generation_names_of_norms(folder: Path) -> None:
    before = load_checkpoint(folder).encoder.state_dict()
    tensors = read(folder / WEIGHTS)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file(renamed, folder / WEIGHTS)

    after = load_checkpoint(folder).encoder.state_dict()

    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def set_frequencies(folder: Path, *layers: float) -> None:
    """Store other angles in each layer, as the checkpoints of ESM-2 did."""
    tensors = read(folder / WEIGHTS)
    (name,) = [name for name in tensors if name.endswith("inv_freq")]
    frequencies = tensors.pop(name)
    for layer, factor in enumerate(layers):
        key = f"encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"
        tensors[key] = frequencies * factor
    tensors[POSITIONS] = torch.zeros(40, 16)  # unused, but there
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def test_rotations_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    import transformers

    make("esm", "Model").save_pretrained(tmp_path)
    assert load_checkpoint(tmp_path).encoder.config.rotary_frequencies is None
    set_frequencies(tmp_path, 0.9, 0.9)

    model = transformers.EsmModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert model.get_buffer("rotary_embeddings.inv_freq").tolist() == pytest.approx([0.9, 0.009])
    compare(tmp_path, model, pad=1)
    encoder = load_checkpoint(tmp_path).encoder
    assert encoder.fuse().config.rotary_frequencies == pytest.approx((0.9, 0.009))


def test_rotations_that_differ_between_layers_are_refused(tmp_path: Path) -> None:
    make("esm", "Model").save_pretrained(tmp_path)
    set_frequencies(tmp_path, 0.9, 0.8)

    with pytest.raises(CheckpointError, match="inv_freq must be the same numbers in every layer"):
        load_checkpoint(tmp_path)


def test_buffers_of_gpt2s_first_releases_are_not_weights(tmp_path: Path) -> None:
    model = make("gpt2", "Model")
    model.save_pretrained(tmp_path)
    tensors = read(tmp_path / WEIGHTS)
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 20, 20), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors, tmp_path / WEIGHTS)

    compare(tmp_path, model)


def test_half_precision_weights_become_single(folder: Path) -> None:
    save_file({name: t.half() for name, t in read(folder / WEIGHTS).items()}, folder / WEIGHTS)

    encoder = load_checkpoint(folder).encoder

    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert not encoder.training


def test_a_loaded_encoder_does_not_depend_on_the_file_any_more(folder: Path) -> None:
    encoder = load_checkpoint(folder).encoder
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    size = (folder / WEIGHTS).stat().st_size
    with (folder / WEIGHTS).open("r+b") as file:  # in place, where a mapping would see it
        file.write(bytes(size))

    assert all(torch.equal(encoder.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_pickles_are_refused(folder: Path, name: str) -> None:
    torch.save(read(folder / WEIGHTS), folder / name)
    load_checkpoint(folder)  # beside safetensors they do not matter: they are not opened
    (folder / WEIGHTS).unlink()

    with pytest.raises(
        CheckpointError, match=rf"must be safetensors, were {name}: unpickling a file can run any"
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize("kept", [0, 5, 1000, None])
def test_a_truncated_file_and_a_pickle_by_another_name_are_refused(folder: Path, kept: int | None) -> None:
    if kept is None:
        torch.save(read(folder / WEIGHTS), folder / WEIGHTS)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:kept])

    with pytest.raises(CheckpointError, match=r"model\.safetensors: must be a safetensors file \("):
        load_checkpoint(folder)


def drop(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        if "layer.1.attention" in name:
            del tensors[name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            drop,
            "the weights must hold encoder.layer.1.attention.self.query.weight, "
            "encoder.layer.1.attention.self.query.bias, encoder.layer.1.attention.self.key.weight "
            "and 7 more, which are missing",
        ),
        (
            lambda tensors: tensors.update({"encoder.layer.2.output.dense.weight": torch.zeros(1)}),
            "the weights hold encoder.layer.2.output.dense.weight, for which this encoder has no place",
        ),
        (
            lambda tensors: tensors.update({KEY: torch.zeros(16, 8)}),
            "encoder.layer.0.attention.self.key.weight must have the shape [16, 16], was [16, 8]",
        ),
        (
            lambda tensors: tensors.update({POSITIONS: tensors[POSITIONS][:10].clone()}),
            "embeddings.position_embeddings.weight must have the shape [20, 16], was [10, 16]",
        ),
        (
            lambda tensors: tensors.update({DENSE: tensors[DENSE].to(torch.int8)}),
            "encoder.layer.1.output.dense.weight must be floating point, was torch.int8",
        ),
    ],
)
def test_weights_must_be_those_of_the_encoder(
    folder: Path, damage: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    tensors = read(folder / WEIGHTS)
    damage(tensors)
    save_file(tensors, folder / WEIGHTS)

    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "sizes", [{"num_hidden_layers": 10_000}, {"vocab_size": 2**62}, {"max_position_embeddings": 2**62}]
)
def test_sizes_far_from_the_weights_are_refused_before_anything_is_made(
    folder: Path, sizes: dict[str, int]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | sizes))

    with pytest.raises(CheckpointError, match=r"config\.json describes an encoder of [\d,]+ parameters, but"):
        load_checkpoint(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors or model\.safetensors\.index\.json must be there"
    ):
        load_checkpoint(folder)

    (folder / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map must be an object, was None"):
        load_checkpoint(folder)


def test_heads_that_transformers_pruned_stay_pruned(tmp_path: Path) -> None:
    import transformers

    write_checkpoint(tmp_path, "bert", num_hidden_layers=2)
    pruned = {"0": [1], "1": [0, 3]}
    reference = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    heads = reference.config.num_attention_heads
    tensors = load((tmp_path / WEIGHTS).read_bytes())
    for layer, numbers in pruned.items():
        kept = [head for head in range(heads) if head not in numbers]
        attention = f"encoder.layer.{layer}.attention"
        for part in ("query", "key", "value"):
            for kind in ("weight", "bias"):
                name = f"{attention}.self.{part}.{kind}"
                tensors[name] = torch.cat([tensors[name].chunk(heads)[head] for head in kept])
        name = f"{attention}.output.dense.weight"
        tensors[name] = torch.cat([tensors[name].chunk(heads, 1)[head] for head in kept], 1)
        # Such heads add nothing.
        silenced = reference.encoder.layer[int(layer)].attention.output.dense.weight.data
        silenced.view(len(silenced), heads, -1)[:, numbers] = 0
    save_file(tensors, tmp_path / WEIGHTS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pruned_heads": pruned}))

    encoder = load_checkpoint(tmp_path).encoder

    ids = torch.randint(0, config["vocab_size"], (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(
            encoder(ids).output, reference(ids).last_hidden_state, rtol=0, atol=TOLERANCE
        )
    (tmp_path / "config.json").write_text(json.dumps(config | {"pruned_heads": {"0": [1]}}))
    with pytest.raises(CheckpointError, match=r"layer\.1\..* must have the shape"):
        load_checkpoint(tmp_path)
