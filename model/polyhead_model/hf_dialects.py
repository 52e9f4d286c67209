"""The dialects of Hugging Face checkpoints: how each `model_type` names sizes and tensors."""

from collections.abc import Mapping
from dataclasses import replace

from polyhead_model import hf_fields, hf_grouped
from polyhead_model.hf_deberta import DEBERTA
from polyhead_model.hf_esmc import ESMC
from polyhead_model.hf_gte import GTE, NEW
from polyhead_model.hf_jina import FLASH, JINA_V3
from polyhead_model.hf_layout import (
    BERT_EMBEDDINGS,
    BERT_FEED_FORWARD,
    BERT_LAYER,
    BERT_MASKED_LM,
    DENSE_AND_OUT,
    GROUPED_LAYER,
    QKV,
    ClassifierDialect,
    Dialect,
    MaskedLMDialect,
    fused,
)
from polyhead_model.hf_neobert import NEOBERT

_Q, _K, _V = QKV


_ROBERTA = Dialect(
    prefix="roberta.", layer_modules=BERT_LAYER, fields=hf_fields.roberta, classifier=DENSE_AND_OUT
)

_LAST_TOKEN = ClassifierDialect(dense=None, out="score", bias=False, pooling="last")

_EUROBERT = Dialect(
    prefix="model.",
    layer_norm_epsilon="rms_norm_eps",
    default_epsilon=1e-5,
    types=False,
    fields=hf_grouped.eurobert,
    modules={"embeddings.tokens": "embed_tokens", "final_norm": "norm"},
    layer_prefix="layers.",
    layer_modules=GROUPED_LAYER,
    classifier=ClassifierDialect(
        dense="dense", activation="gelu", out="classifier", fields=hf_grouped.eurobert_classifier
    ),
    follows_code=True,
    renamed={"clf_pooling": "classifier_pooling"},
)

DIALECTS: Mapping[str, Dialect] = {
    "albert": Dialect(
        prefix="albert.",
        fields=hf_fields.albert,
        modules={**BERT_EMBEDDINGS, "embeddings.projection": "encoder.embedding_hidden_mapping_in"},
        layer_prefix="encoder.albert_layer_groups.0.albert_layers.",
        layer_modules={
            _Q: "attention.query",
            _K: "attention.key",
            _V: "attention.value",
            "attention.w_o": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "feed_forward.up": "ffn",
            "feed_forward.down": "ffn_output",
            "feed_forward_norm": "full_layer_layer_norm",
        },
        classifier=ClassifierDialect(dense="pooler", out="classifier"),
    ),
    "bert": Dialect(
        prefix="bert.",
        layer_modules=BERT_LAYER,
        classifier=ClassifierDialect(dense="pooler.dense", out="classifier"),
        masked_lm=BERT_MASKED_LM,
    ),
    "camembert": _ROBERTA,
    "deberta-v2": DEBERTA,
    "distilbert": Dialect(
        prefix="distilbert.",
        d_model="dim",
        heads="n_heads",
        layers="n_layers",
        feed_forward="hidden_dim",
        activation="activation",
        layer_norm_epsilon=None,
        types=False,
        layer_prefix="transformer.layer.",
        layer_modules={
            _Q: "attention.q_lin",
            _K: "attention.k_lin",
            _V: "attention.v_lin",
            "attention.w_o": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "feed_forward.up": "ffn.lin1",
            "feed_forward.down": "ffn.lin2",
            "feed_forward_norm": "output_layer_norm",
        },
        classifier=ClassifierDialect(dense="pre_classifier", activation="relu", out="classifier"),
        masked_lm=MaskedLMDialect(
            linear="vocab_transform",
            norm="vocab_layer_norm",
            bias="vocab_projector",
            decoder="vocab_projector",
        ),
    ),
    "electra": Dialect(
        prefix="electra.",
        fields=hf_fields.electra,
        modules={**BERT_EMBEDDINGS, "embeddings.projection": "embeddings_project"},
        layer_modules=BERT_LAYER,
        classifier=ClassifierDialect(dense="classifier.dense", activation="gelu", out="classifier.out_proj"),
    ),
    "esm": Dialect(
        prefix="esm.",
        activation=None,
        types=False,
        fields=hf_fields.esm,
        modules={
            "embeddings.tokens": "embeddings.word_embeddings",
            "embeddings.positions": "embeddings.position_embeddings",
            "embeddings.norm": "embeddings.layer_norm",
            "final_norm": "encoder.emb_layer_norm_after",
        },
        layer_modules={
            **BERT_LAYER,
            "attention_norm": "attention.LayerNorm",
            "feed_forward_norm": "LayerNorm",
        },
        classifier=DENSE_AND_OUT,
        frequencies="rotary_embeddings.inv_freq",
        contact_head="contact_head.regression",
        # Checkpoints with rotations may have a position table nevertheless.
        unused=(r"contact_head\.", r"embeddings\.position_embeddings\.weight", r".*\.inv_freq"),
    ),
    "esmc": ESMC,
    "eurobert": _EUROBERT,
    "gemma3_text": replace(
        _EUROBERT,
        activation="hidden_activation",
        default_epsilon=1e-6,
        fields=hf_grouped.gemma3,
        layer_modules={
            **GROUPED_LAYER,
            "attention_output_norm": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "feed_forward_output_norm": "post_feedforward_layernorm",
        },
        classifier=_LAST_TOKEN,
        norm_offset=1.0,
        scales_embeddings=True,
        follows_code=False,
    ),
    "gpt2": Dialect(
        prefix="transformer.",
        d_model="n_embd",
        heads="n_head",
        layers="n_layer",
        feed_forward=None,
        activation="activation_function",
        layer_norm_epsilon="layer_norm_epsilon",
        default_epsilon=1e-5,
        positions="n_positions",
        types=False,
        fields=hf_fields.gpt2,
        modules={"embeddings.tokens": "wte", "embeddings.positions": "wpe", "final_norm": "ln_f"},
        layer_prefix="h.",
        layer_modules={
            **fused("attn.c_attn", *QKV),
            "attention.w_o": "attn.c_proj",
            "attention_norm": "ln_1",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
            "feed_forward_norm": "ln_2",
        },
        classifier=_LAST_TOKEN,
        transposed=True,
        unused=(r"h\.\d+\.attn\.(masked_)?bias",),
    ),
    "gte": GTE,
    "jina_embeddings_v3": JINA_V3,
    "modernbert": Dialect(
        prefix="model.",
        activation="hidden_activation",
        layer_norm_epsilon="norm_eps",
        default_epsilon=1e-5,
        types=False,
        fields=hf_fields.modernbert,
        modules={
            "embeddings.tokens": "embeddings.tok_embeddings",
            "embeddings.norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        layer_prefix="layers.",
        layer_modules={
            **fused("attn.Wqkv", *QKV),
            "attention.w_o": "attn.Wo",
            "attention_norm": "attn_norm",
            **fused("mlp.Wi", "feed_forward.gate", "feed_forward.up"),
            "feed_forward.down": "mlp.Wo",
            "feed_forward_norm": "mlp_norm",
        },
        classifier=ClassifierDialect(
            dense="head.dense", norm="head.norm", out="classifier", fields=hf_fields.modernbert_classifier
        ),
        token_classifier=ClassifierDialect(
            dense="head.dense",
            norm="head.norm",
            out="classifier",
            pooling=None,
            fields=hf_fields.modernbert_head,
        ),
    ),
    "mpnet": Dialect(
        prefix="mpnet.",
        types=False,
        fields=hf_fields.mpnet,
        modules={**BERT_EMBEDDINGS, "relative_bias.table": "encoder.relative_attention_bias"},
        layer_modules={
            _Q: "attention.attn.q",
            _K: "attention.attn.k",
            _V: "attention.attn.v",
            "attention.w_o": "attention.attn.o",
            "attention_norm": "attention.LayerNorm",
            **BERT_FEED_FORWARD,
        },
        classifier=DENSE_AND_OUT,
    ),
    "neobert": NEOBERT,
    "new": NEW,
    "nomic_bert": Dialect(
        prefix="nomic_bert.",
        activation=None,
        fields=hf_fields.nomic_bert,
        modules={**BERT_EMBEDDINGS, "embeddings.norm": "emb_ln"},
        layer_prefix="encoder.layers.",
        layer_modules={
            **fused("attn.Wqkv", *QKV),
            "attention.w_o": "attn.out_proj",
            "attention_norm": "norm1",
            "feed_forward.up": "mlp.fc11",
            "feed_forward.gate": "mlp.fc12",
            "feed_forward.down": "mlp.fc2",
            "feed_forward_norm": "norm2",
        },
        classifier=ClassifierDialect(dense="pooler.dense", out="classifier"),
        follows_code=True,
        renamed={
            "n_embd": "hidden_size",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "activation_function": "hidden_act",
            "rotary_emb_base": "rope_theta",
        },
    ),
    "qwen3": replace(
        _EUROBERT,
        default_epsilon=1e-6,
        fields=hf_grouped.qwen3,
        classifier=_LAST_TOKEN,
        token_classifier=ClassifierDialect(dense=None, out="score", pooling=None),
        language_model="lm_head",
        follows_code=False,
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": replace(_ROBERTA, published={"XLMRobertaLoRA": FLASH}),
}
"""The supported model types. Tests compare each with transformers, or formulas of what that does not have."""
