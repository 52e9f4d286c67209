"""What a folder says about itself: config.json, modules.json and their neighbours."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import SIZES

from polyhead_model import CheckpointError, Dense, read_checkpoint_info
from polyhead_model.sentence_modules import check_lower_case

BERT = SIZES | {
    "model_type": "bert",
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A plain folder, without weights: nothing here reads them."""
    write(tmp_path / "config.json", BERT)
    return tmp_path


@pytest.fixture
def sentence(bert: Path) -> Path:
    """The same with the files of sentence-transformers."""
    write(bert / "modules.json", [TRANSFORMER, POOLING, NORMALIZE])
    write(bert / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write(bert / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    return bert


CARD = """---
tags:
- sentence-transformers
- loss:MatryoshkaLoss
---
Parameters of the loss:
```json
{
    "loss": "MultipleNegativesRankingLoss",
    "matryoshka_dims": [
        8,
        4
    ]
}
```
"""


def test_what_a_folder_says_of_cutting_its_vectors(sentence: Path) -> None:
    assert read_checkpoint_info(sentence).encoder.matryoshka is None

    (sentence / "README.md").write_text(CARD)
    assert read_checkpoint_info(sentence).encoder.matryoshka == (8, 4)
    (sentence / "README.md").write_text(CARD.partition("```")[0])
    assert read_checkpoint_info(sentence).encoder.matryoshka == ()
    (sentence / "README.md").write_text(CARD.replace("8,", f"{'9' * 5000}, 17, 16, 0,"))
    assert read_checkpoint_info(sentence).encoder.matryoshka == (16, 4)
    (sentence / "README.md").write_text(CARD.replace("8", "1024").replace("4", "512"))
    assert read_checkpoint_info(sentence).encoder.matryoshka is None  # it is another model's
    (sentence / "README.md").write_text("- loss:CoSENTLoss\nCompare it with loss:MatryoshkaLoss.")
    assert read_checkpoint_info(sentence).encoder.matryoshka is None
    write(sentence / "config.json", BERT | {"is_matryoshka": True})
    assert read_checkpoint_info(sentence).encoder.matryoshka == ()
    write(sentence / "config.json", BERT | {"matryoshka_dimensions": [2, 8]})
    assert read_checkpoint_info(sentence).encoder.matryoshka == (2, 8)
    for wrong, named in (
        ("8", "matryoshka_dimensions must be numbers"),
        ([99], "matryoshka must be at most 16"),
    ):
        write(sentence / "config.json", BERT | {"matryoshka_dimensions": wrong})
        with pytest.raises(CheckpointError, match=named):
            read_checkpoint_info(sentence)


def test_plain_folder(bert: Path) -> None:
    info = read_checkpoint_info(bert)

    assert (info.encoder.pooling, info.encoder.normalise) == (None, False)
    assert (info.tokenizer, info.max_tokens, info.folder) == (None, 20, bert)


@pytest.mark.parametrize(("limit", "expected"), [(15, 15), (10**30, 20), (float("inf"), 20)])
def test_tokenizers_own_limit_on_text(bert: Path, limit: float, expected: int) -> None:
    write(bert / "tokenizer_config.json", {"model_max_length": limit})

    assert read_checkpoint_info(bert).max_tokens == expected


@pytest.mark.parametrize("limit", [0, -1, float("-inf"), float("nan")])
def test_a_limit_that_leaves_no_text_is_refused(sentence: Path, limit: float) -> None:
    write(sentence / "tokenizer_config.json", {"model_max_length": limit})
    write(sentence / "sentence_bert_config.json", {})
    with pytest.raises(CheckpointError, match=f"model_max_length must be at least 1, was {limit}"):
        read_checkpoint_info(sentence)


def test_sentence_folder(sentence: Path) -> None:
    info = read_checkpoint_info(sentence)

    assert (info.encoder.pooling, info.encoder.normalise, info.max_tokens) == ("mean", True, 12)

    write(sentence / "sentence_bert_config.json", {"max_seq_length": 100})  # more than the positions
    assert read_checkpoint_info(sentence).max_tokens == 20
    write(sentence / "modules.json", [TRANSFORMER, POOLING])
    assert not read_checkpoint_info(sentence).encoder.normalise
    write(sentence / "modules.json", [TRANSFORMER])
    assert read_checkpoint_info(sentence).encoder.pooling is None


def test_transformer_in_a_folder_of_its_own(sentence: Path) -> None:
    inner = sentence / "0_Transformer"
    for name in ("config.json", "sentence_bert_config.json"):
        inner.mkdir(exist_ok=True)
        (sentence / name).rename(inner / name)
    write(inner / "tokenizer.json", {"normalizer": {"type": "BertNormalizer"}})
    write(sentence / "modules.json", [TRANSFORMER | {"path": "0_Transformer"}, POOLING])

    info = read_checkpoint_info(sentence)

    assert (info.folder, info.tokenizer, info.max_tokens) == (inner, inner / "tokenizer.json", 12)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"word_embedding_dimension": 16}, "mean"),  # sentence-transformers' own default
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "weightedmean"}, "weighted_mean"),
        ({"pooling_mode": ["mean_sqrt_len_tokens"]}, "mean_sqrt_len"),
    ],
)
def test_pooling_of_old_and_new_releases(sentence: Path, config: dict[str, Any], expected: str) -> None:
    write(sentence / "1_Pooling" / "config.json", config)

    assert read_checkpoint_info(sentence).encoder.pooling == expected


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "must be a list of modules"),
        ([], "modules must be Transformer, then (if wanted) Pooling, and after it any of Dense, LayerNorm, "),
        ([], "were none"),
        ([TRANSFORMER, NORMALIZE], "were Transformer, Normalize"),
        ([TRANSFORMER, POOLING, {"path": "2", "type": "x.LSTM"}], "were Transformer, Pooling, LSTM"),
        ([TRANSFORMER, POOLING, POOLING], "were Transformer, Pooling, Pooling"),
        (
            [TRANSFORMER, POOLING | {"path": "../other"}],
            "must name files inside its own folder, named '../other'",
        ),
        ([TRANSFORMER | {"path": "/etc"}], "must name files inside its own folder, named '/etc'"),
    ],
)
def test_other_modules_are_refused(sentence: Path, modules: object, message: str) -> None:
    write(sentence / "modules.json", modules)

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(sentence)


DENSE = {"path": "3_Dense", "type": "x.Dense"}
NORM = {"path": "4_LayerNorm", "type": "x.LayerNorm"}
SCORES = {"module_output_name": "scores"}


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        ([NORM, DENSE], {}, "4_LayerNorm: a LayerNorm must follow a Dense, does not"),
        ([DENSE, NORM, NORM], {}, "4_LayerNorm: a LayerNorm must follow a Dense, does not"),
        ([DENSE, NORM], SCORES, "3_Dense: a Dense that writes 'scores' must be the last module"),
        ([NORMALIZE, DENSE], SCORES, "'scores' must follow no Normalize, and have the activation Identity"),
        ([DENSE], SCORES | {"activation_function": "torch.nn.Tanh"}, "activation Identity, was Tanh"),
    ],
)
def test_modules_in_other_places_are_refused(
    sentence: Path, modules: list[Any], config: dict[str, Any], message: str
) -> None:
    write(sentence / "modules.json", [TRANSFORMER, POOLING, *modules])
    sizes = {"in_features": 16, "out_features": 16, "activation_function": "torch.nn.Identity"}
    write(sentence / "3_Dense" / "config.json", sizes | config)

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(sentence)


def test_lower_casing_is_the_tokenizers_business(sentence: Path) -> None:
    write(sentence / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    for normalizer in (
        {"type": "BertNormalizer", "lowercase": True},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    ):
        check_lower_case(sentence, {"normalizer": normalizer})

    with pytest.raises(CheckpointError, match="do_lower_case must be false, was true"):
        check_lower_case(sentence, {"normalizer": {"type": "BertNormalizer", "lowercase": False}})


ESM = {**BERT, "model_type": "esm", "pad_token_id": 1, "position_embedding_type": "rotary"}
ALBERT = {**BERT, "model_type": "albert", "embedding_size": 8}
MPNET = {**BERT, "model_type": "mpnet"}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 20,
    "activation_function": "gelu_new",
}
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}
MODERNBERT = {
    **BERT,
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "hidden_activation": "gelu",
    "global_attn_every_n_layers": 2,
}


_GROUPED = {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
QWEN3 = {"model_type": "qwen3", **_GROUPED}
EUROBERT = {"model_type": "eurobert", **_GROUPED}
GEMMA3 = {
    "model_type": "gemma3_text",
    **_GROUPED,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "use_bidirectional_attention": True,
}
NOMIC = {
    "model_type": "nomic_bert",
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "n_embd": 16,
    "n_head": 2,
    "n_layer": 3,
    "n_inner": 40,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-9,
    "activation_function": "swiglu",
    "rotary_emb_base": 500,
    "rotary_emb_fraction": 1.0,
    "prenorm": False,
}
"""As the folder is published, whose code has names of its own."""


def alternating(*kinds: str) -> dict[str, list[str]]:
    return {"layer_types": [f"{kind}_attention" for kind in kinds]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "t5"},
            "model_type must be one of albert, bert, camembert, deberta-v2, distilbert, electra, esm, ",
        ),
        ({"model_type": ["bert"]}, "was ['bert']"),
        (
            {"hidden_act": "mish"},
            "hidden_act must be one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish, was 'mish'",
        ),
        ({"hidden_act": {}}, "was {}"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type must be 'absolute', was 'relative_key'",
        ),
        ({"is_decoder": True}, "is_decoder must be false, was true"),
        (
            {"pruned_heads": {"2": [0]}},
            "pruned_heads must list heads from 0 to 3 for layers from 0 to 1, was",
        ),
        (
            {"auto_map": {"AutoModel": "modeling.Special"}},
            "auto_map must not name an AutoModel, was 'modeling.Special'",
        ),
        ({"embedding_size": 8}, "embedding_size must be 16, was 8: embeddings of another width"),
        ({"model_type": "electra"}, "embedding_size must be an integer, is missing"),
        ({"hidden_size": "16"}, "hidden_size must be an integer, was '16'"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_epsilon must be a number, was 'tiny'"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id must be an integer, was None"),
        ({"model_type": "roberta", "pad_token_id": 19}, "positions must be at least 1, was 0"),
        (ALBERT | {"num_hidden_groups": 2}, "num_hidden_groups must be 1, was 2: all layers must be one"),
        (ALBERT | {"inner_group_num": 3}, "inner_group_num must be 1, was 3"),
        (MPNET | {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets must be 32, was 64"),
        (ESM | {"is_folding_model": True}, "is_folding_model must be false, was true"),
        (
            ESM | {"position_embedding_type": "relative_key"},
            "must be 'rotary' or 'absolute', was 'relative_key'",
        ),
        (ESM | {"token_dropout": True}, "mask_token_id must be an integer, is missing"),
        (ESM | {"token_dropout": True, "mask_token_id": 50}, "token_dropout_id must be between 0 and"),
        (ESM | {"head_dim": 8}, "head_dim must be 4, was 8"),
        (GPT2 | {"scale_attn_weights": False}, "scale_attn_weights must be true, was false"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be false"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention must be false, was true"),
        (GPT2 | {"n_inner": "wide"}, "n_inner must be an integer, was 'wide'"),
        (MODERNBERT | {"mlp_bias": True}, "mlp_bias must be false, was true: attention and feed-forward"),
        (MODERNBERT | {"norm_bias": "no"}, "norm_bias must be true or false, was 'no'"),
        (
            MODERNBERT | {"global_attn_every_n_layers": 0},
            "global_attn_every_n_layers must be at least 1, was 0",
        ),
        (MODERNBERT | {"num_hidden_layers": 10**12}, "num_hidden_layers must be at most 10,000, was 1,000,"),
        (MODERNBERT | {"sliding_window": 5}, "sliding_window must be 64, was 5"),
        (
            MODERNBERT | {"rope_scaling": {"rope_type": "yarn"}},
            "rope_type must be 'default' and rope_scaling",
        ),
        (
            MODERNBERT | {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            "rope_type must be 'default'",
        ),
        (
            MODERNBERT | {"rope_parameters": {"rope_theta": 7.0}},
            "rope_parameters must be given by type of layer",
        ),
        (MODERNBERT | {"global_rope_theta": "x"}, "rope_theta of full_attention must be a number, was 'x'"),
        (
            MODERNBERT | alternating("sliding", "full", "sliding", "full"),
            "layer_types must be 'full_attention'",
        ),
        (MODERNBERT | {"layer_types": 3}, "layer_types must be 'full_attention' in layers 0, n, 2n"),
        (QWEN3 | {"num_key_value_heads": 3}, "kv_heads must divide heads (4)"),
        (QWEN3 | {"num_key_value_heads": "2"}, "num_key_value_heads must be an integer, was '2'"),
        (QWEN3 | {"head_dim": 3}, "rotary_base needs an even head width"),
        (QWEN3 | {"attention_bias": True}, "attention_bias must be false, was true"),
        (QWEN3 | {"use_sliding_window": True}, "use_sliding_window must be false, was true"),
        (QWEN3 | alternating("full", "sliding"), "layer_types must be ['full_attention', 'full_attention']"),
        (
            QWEN3 | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "rope_type must be 'default' and rope_scaling absent",
        ),
        (QWEN3 | {"rope_theta": "x"}, "rope_theta must be a number, was 'x'"),
        (QWEN3 | {"rope_parameters": [1]}, "rope_type must be 'default'"),
        (EUROBERT | {"attention_bias": True}, "attention_bias must be false, was true"),
        (
            EUROBERT | {"architectures": ["EuroBertForSequenceClassification"], "classifier_pooling": "max"},
            "classifier_pooling must be 'bos', 'mean' or 'late', was 'max'",
        ),
        (
            GEMMA3 | {"use_bidirectional_attention": False},
            "use_bidirectional_attention must be true, was fal",
        ),
        (GEMMA3 | {"query_pre_attn_scalar": 8}, "query_pre_attn_scalar must be 4, was 8"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be null, was 50.0"),
        (GEMMA3 | alternating("full", "sliding"), "in layers n - 1, 2n - 1, … and"),
        (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern must be at least 1, was 0"),
        (
            GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "rope_type must be 'default' and rope_scaling absent",
        ),
        (NOMIC | {"prenorm": True}, "prenorm must be false, was true"),
        (NOMIC | {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction must be 1.0, was 0.5"),
        (NOMIC | {"activation_function": "gelu"}, "hidden_act must be 'silu', or 'swiglu', was 'gelu'"),
        (NOMIC | {"moe_every_n_layers": 2}, "moe_every_n_layers must be 0, was 2"),
        (
            CLASSIFIER | {"id2label": {"0": "no", "2": "yes"}},
            "id2label must name the labels 0, 1, …, was {'0': 'no', ",
        ),
        (CLASSIFIER | {"num_labels": "3"}, "num_labels must be an integer, was '3'"),
    ],
)
def test_other_configurations_are_refused(bert: Path, changes: dict[str, Any], message: str) -> None:
    write(bert / "config.json", BERT | changes)

    with pytest.raises(CheckpointError, match=re.escape(message)) as raised:
        read_checkpoint_info(bert)
    assert str(raised.value).startswith(f"{bert / 'config.json'}: ")


def test_a_published_folder_may_have_names_of_its_own(bert: Path) -> None:
    write(bert / "config.json", {"vocab_size": 50, "type_vocab_size": 2, **NOMIC})

    encoder = read_checkpoint_info(bert).encoder
    assert (encoder.d_model, encoder.heads, encoder.layers, encoder.feed_forward) == (16, 2, 3, 40)
    assert (encoder.positions, encoder.rotary_base, encoder.layer_norm_epsilon) == (64, 500, 1e-9)
    assert (encoder.activation, encoder.gated, encoder.types) == ("silu", True, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 9}, (9, None)),  # no layer of two sees everything
        ({"sliding_window_pattern": 2, "sliding_window": 8}, (8, 2)),
        (alternating("sliding", "full") | {"sliding_window": 8}, (8, 2)),
    ],
)
def test_local_layers_of_gemma(bert: Path, changes: dict[str, Any], expected: tuple[int, int | None]) -> None:
    write(bert / "config.json", BERT | GEMMA3 | changes)

    encoder = read_checkpoint_info(bert).encoder
    assert encoder.local_window == expected[0]
    assert [encoder.is_local(layer) for layer in range(2)] == [True, expected[1] is None]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (128, 2, 10_000.0)),
        ({"global_attn_every_n_layers": 1}, (None, None, None)),
        (alternating("full", "full", "full", "full"), (None, None, None)),
        (alternating("full", "sliding", "sliding", "full"), (128, 3, 10_000.0)),
        (alternating("full", "sliding", "sliding", "sliding"), (128, 4, 10_000.0)),
        ({"local_attention": 8, "sliding_window": 4, "local_rope_theta": 9.0}, (8, 2, 9.0)),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}}, (128, 2, 7.0)),
    ],
)
def test_local_layers_of_modernbert(
    bert: Path, changes: dict[str, Any], expected: tuple[object, ...]
) -> None:
    write(bert / "config.json", MODERNBERT | changes)

    encoder = read_checkpoint_info(bert).encoder

    assert (encoder.local_window, encoder.global_every, encoder.local_rotary_base) == expected
    assert (encoder.rotary_base, encoder.positions) == (160_000.0, 20)


def test_adapters_are_refused(bert: Path) -> None:
    write(bert / "adapter_config.json", {})

    with pytest.raises(CheckpointError, match=r"adapter_config\.json: adapters are not supported: merge"):
        read_checkpoint_info(bert)


def test_robertas_padding_is_1_by_default(bert: Path) -> None:
    write(bert / "config.json", BERT | {"model_type": "roberta"})
    assert read_checkpoint_info(bert).encoder.padding_id == 1


def test_distilbert_has_its_own_epsilon(bert: Path) -> None:
    names = {"dim": 16, "n_heads": 4, "n_layers": 2, "hidden_dim": 24, "activation": "gelu"}
    write(bert / "config.json", BERT | names | {"model_type": "distilbert", "layer_norm_eps": 1e-5})

    assert read_checkpoint_info(bert).encoder.layer_norm_epsilon == 1e-12


PROMPTS = {"prompts": {"query": "query: ", "none": ""}}


def test_a_prompt_may_be_chosen(sentence: Path) -> None:
    path = sentence / "config_sentence_transformers.json"
    write(path, {"prompts": {"a": "A: ", "b": "B: ", "c": None}, "default_prompt_name": "a"})

    chosen = read_checkpoint_info(sentence, prompt_name="b").prompts

    assert (chosen.default, chosen.texts) == ("B: ", {"a": "A: ", "b": "B: ", "c": ""})
    with pytest.raises(
        CheckpointError, match=r"the prompt must be one of prompts \('a', 'b', 'c'\), was 'd'"
    ):
        read_checkpoint_info(sentence, prompt_name="d")
    write(sentence / "modules.json", [TRANSFORMER])  # prompts do not depend on the modules
    assert read_checkpoint_info(sentence).prompts.default == "A: "
    path.unlink()
    with pytest.raises(CheckpointError, match=r"the prompt must be one of prompts \(none\), was 'a'"):
        read_checkpoint_info(sentence, prompt_name="a")


def test_pooling_without_the_prompt_is_refused(sentence: Path) -> None:
    write(sentence / "1_Pooling" / "config.json", {"pooling_mode": "mean", "include_prompt": False})
    assert read_checkpoint_info(sentence).encoder.pooling == "mean"  # there is no prompt

    write(sentence / "config_sentence_transformers.json", PROMPTS | {"default_prompt_name": "query"})
    with pytest.raises(
        CheckpointError, match=r"include_prompt must be true .* \('query: '\), was false: .*--no-prompt"
    ):
        read_checkpoint_info(sentence)
    info = read_checkpoint_info(sentence, prompt_name="")
    assert info.prompts.texts == {"none": ""}
    assert info.left_out == (
        "the prompts query are not served: pooling would have to leave their tokens out",
    )


DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
TANH = "torch.nn.modules.activation.Tanh"


def test_modules_after_pooling(sentence: Path) -> None:
    dropout = {"path": "3_Dropout", "type": "sentence_transformers.models.Dropout"}
    write(sentence / "modules.json", [TRANSFORMER, POOLING, NORMALIZE, DENSE, dropout, DENSE, NORMALIZE])
    write(sentence / "2_Dense" / "config.json", {"in_features": 16, "out_features": 16})

    config = read_checkpoint_info(sentence).encoder

    assert config.dense == (
        Dense(width=16, activation="tanh", normalise=True),  # sentence-transformers' own defaults
        Dense(width=16, activation="tanh"),
    )
    assert config.normalise


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"out_features": 0}, "out_features: width must be at least 1, was 0"),
        ({"bias": "no"}, "bias must be true or false, was 'no'"),
        (
            {"activation_function": "torch.nn.modules.activation.Hardtanh"},
            "activation_function must be one of torch.nn's Identity, Tanh, ReLU, GELU, SiLU, Sigmoid, ELU, "
            "LeakyReLU, Mish, Softplus, was 'torch.nn.modules.activation.Hardtanh'",
        ),
        ({"activation_function": "mine.Tanh"}, "was 'mine.Tanh'"),
        ({"activation_function": 3}, "was 3"),
        ({"module_input_name": "token_embeddings"}, "only pooled vectors go through such modules"),
        ({"use_residual": True}, "use_residual must be false, was true"),
    ],
)
def test_other_dense_layers_are_refused(sentence: Path, config: dict[str, Any], message: str) -> None:
    write(sentence / "modules.json", [TRANSFORMER, POOLING, DENSE])
    default = {"in_features": 16, "out_features": 8, "bias": True, "activation_function": TANH}
    write(sentence / "2_Dense" / "config.json", default | config)

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(sentence)


def test_a_checkpoint_without_modules_may_be_pooled(bert: Path) -> None:
    encoder = read_checkpoint_info(bert, pooling="last", normalise=True).encoder
    assert (encoder.pooling, encoder.normalise) == ("last", True)

    with pytest.raises(CheckpointError, match="normalise needs a pooling, and the checkpoint has none"):
        read_checkpoint_info(bert, normalise=True)


def test_modules_say_how_to_pool(sentence: Path) -> None:
    assert read_checkpoint_info(sentence, pooling="mean", normalise=True).encoder.pooling == "mean"
    with pytest.raises(CheckpointError, match=r"modules\.json says how to pool \(mean, normalised\): leave"):
        read_checkpoint_info(sentence, pooling="cls")
    write(sentence / "modules.json", [TRANSFORMER, POOLING])
    with pytest.raises(CheckpointError, match=r"says how to pool \(mean, not normalised\)"):
        read_checkpoint_info(sentence, normalise=True)
    write(sentence / "modules.json", [TRANSFORMER])
    assert read_checkpoint_info(sentence, pooling="max").encoder.pooling == "max"


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, ("LABEL_0", "LABEL_1")),  # transformers leaves out what it takes by default
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"1": "yes", "0": "no"}}, ("no", "yes")),
        ({"id2label": {"0": 1, "1": 0}}, ("1", "0")),
        ({"id2label": {"0": "score"}, "problem_type": "multi_label_classification"}, ("score",)),
        ({"problem_type": "regression", "num_labels": 1}, ("LABEL_0",)),
        (
            {"architectures": ["BertForTokenClassification"], "num_labels": 3},
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
        ({"architectures": ["BertForMultipleChoice"]}, None),
        ({"architectures": [3]}, None),
    ],
)
def test_labels(bert: Path, config: dict[str, Any], labels: tuple[str, ...] | None) -> None:
    write(bert / "config.json", BERT | CLASSIFIER | config)

    classifier = read_checkpoint_info(bert).encoder.classifier

    assert (None if classifier is None else classifier.labels) == labels


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("config", "scores", "activation"),
    [
        ({}, "softmax", None),
        ({"num_labels": 1}, "sigmoid", "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid", None),
        ({"problem_type": "single_label_classification"}, "softmax", None),
        ({"problem_type": "regression", "num_labels": 1}, "identity", "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}, "num_labels": 1}, "sigmoid", "identity"),
        ({"sbert_ce_default_activation_function": IDENTITY, "num_labels": 1}, "sigmoid", "identity"),
        ({"sbert_ce_default_activation_function": SIGMOID}, "softmax", "sigmoid"),
        (
            {"sentence_transformers": {"activation_fn": "mine.Activation"}, "num_labels": 1},
            "sigmoid",
            "sigmoid",
        ),
    ],
)
def test_what_makes_scores_of_logits(
    bert: Path, config: dict[str, Any], scores: str, activation: str | None
) -> None:
    write(bert / "config.json", BERT | CLASSIFIER | config)

    classifier = read_checkpoint_info(bert).encoder.classifier

    assert classifier is not None
    assert (classifier.score_activation, classifier.activation) == (scores, activation)


def test_an_activation_of_scores_that_is_not_served_is_said(sentence: Path) -> None:
    write(sentence / "modules.json", [TRANSFORMER])
    write(sentence / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    write(sentence / "config.json", BERT | CLASSIFIER | {"num_labels": 1})
    write(sentence / SAID_OF_PROMPTS, {"activation_fn": "torch.nn.modules.activation.Tanh"})

    info = read_checkpoint_info(sentence)

    assert info.encoder.classifier is not None
    assert info.encoder.classifier.activation is None
    assert info.left_out == ("the activation of scores is not served (Tanh): see scores in metadata",)
    write(sentence / "config.json", BERT | CLASSIFIER | {"problem_type": "ranking"})
    with pytest.raises(CheckpointError, match="problem_type must be one of regression, single_label_"):
        read_checkpoint_info(sentence)


def test_vectors_may_be_cut(sentence: Path) -> None:
    write(sentence / "config.json", BERT | {"matryoshka_dimensions": [4, 8, 16]})
    for given, expected, trained in (
        (8, 8, (4, 8)),
        (16, None, (4, 8, 16)),
        (100, None, (4, 8, 16)),
        (2, 2, None),
    ):
        write(sentence / SAID_OF_PROMPTS, {"truncate_dim": given})
        encoder = read_checkpoint_info(sentence).encoder
        assert (encoder.truncate_dim, encoder.matryoshka) == (expected, trained)
    for wrong in (0, -1, "8"):
        write(sentence / SAID_OF_PROMPTS, {"truncate_dim": wrong})
        with pytest.raises(CheckpointError, match=f"truncate_dim must be .*, was {wrong!r}"):
            read_checkpoint_info(sentence)


def test_a_cross_encoder_has_a_classifier(sentence: Path) -> None:
    write(sentence / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    with pytest.raises(
        CheckpointError, match=r"a transformer with the task .* must be the only module, were "
    ):
        read_checkpoint_info(sentence)
    write(sentence / "modules.json", [TRANSFORMER])
    with pytest.raises(CheckpointError, match="architectures must name a …ForSequenceClassification, as "):
        read_checkpoint_info(sentence)
    write(sentence / "config.json", BERT | CLASSIFIER)
    assert read_checkpoint_info(sentence).encoder.classifier is not None
    # A sentence encoder made of a classifier has no use for its head.
    write(sentence / "sentence_bert_config.json", {})
    assert read_checkpoint_info(sentence).encoder.classifier is None


SAID_OF_PROMPTS = "config_sentence_transformers.json"
POOLINGS = "pooling must be one of cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken"


@pytest.mark.parametrize(
    ("file", "config", "message"),
    [
        (
            "2_Normalize/config.json",
            {"module_input_name": "token_embeddings"},
            "module_input_name and module_output_name must be 'sentence_embedding', were 'token_embeddings'",
        ),
        (
            "2_Normalize/config.json",
            {"module_output_name": "scores"},
            "must be 'sentence_embedding', were 'sentence_embedding' and 'scores'",
        ),
        (
            "sentence_bert_config.json",
            {"modality_config": {"message": {}}},
            "modality_config must be {'text': {'method': 'forward', 'method_output_name': ",
        ),
        (
            "sentence_bert_config.json",
            {"module_output_name": "sentence_embedding"},
            "module_output_name must be 'token_embeddings', was 'sentence_embedding'",
        ),
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            "a transformer with the task 'fill-mask' must be followed by SpladePooling alone",
        ),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"padding": "max_length"}}},
            "processing_kwargs must be empty, was {'text': {'padding': 'max_length'}}",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be at least 1, was 0"),
        *(
            ("1_Pooling/config.json", config, f"{POOLINGS}, was {found}")
            for config, found in (
                ({"pooling_mode": "median"}, "median"),
                ({"pooling_mode": 3}, "3"),
                ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls + mean"),
                ({"pooling_mode": ["cls", "max"]}, "cls + max"),
            )
        ),
        (
            SAID_OF_PROMPTS,
            PROMPTS | {"default_prompt_name": "passage"},
            "default_prompt_name must be one of prompts ('query', 'none'), was 'passage'",
        ),
        (SAID_OF_PROMPTS, {"default_prompt_name": "query"}, "must be one of prompts (none), was 'query'"),
        (SAID_OF_PROMPTS, {"prompts": {"": "a"}}, "a prompt's name must not be empty"),
    ],
)
def test_other_settings_of_modules_are_refused(
    sentence: Path, file: str, config: dict[str, Any], message: str
) -> None:
    write(sentence / file, config)

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(sentence)


@pytest.mark.parametrize("name", BERT)
def test_missing_fields_are_named(bert: Path, name: str) -> None:
    write(bert / "config.json", {key: value for key, value in BERT.items() if key != name})

    with pytest.raises(CheckpointError, match=name):
        read_checkpoint_info(bert)


def test_files_that_are_no_folder_or_no_json(bert: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must be a folder with config\.json .*nowhere does not exist"):
        read_checkpoint_info(bert / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json is a file"):
        read_checkpoint_info(bert / "config.json")

    (bert / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="must be a JSON object, was list"):
        read_checkpoint_info(bert)
    (bert / "config.json").write_bytes(b"{\xff")
    with pytest.raises(CheckpointError, match=r"must be JSON \("):
        read_checkpoint_info(bert)
    (bert / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"must be JSON \("):
        read_checkpoint_info(bert)
    shutil.rmtree(bert)
    bert.mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read \(No such file"):
        read_checkpoint_info(bert)
