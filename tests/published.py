"""Folders with the files and settings of encoders that are published, but of small sizes and random weights.

Sizes apart, settings are those of Qwen/Qwen3-Embedding-0.6B, google/embeddinggemma-300m,
nomic-ai/nomic-embed-text-v1.5 and EuroBERT/EuroBERT-210m.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints import (
    END_OF_TEXT,
    bert_tokenizer,
    gemma_tokenizer,
    qwen_tokenizer,
    random_dense,
    random_of,
    sentence_transformers,
)
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

Content = Mapping[str, Any] | list[Any]

_VERSIONS = {"sentence_transformers": "5.1.0", "transformers": "4.57.0.dev0", "pytorch": "2.8.0+cu128"}
_POOLING_FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
WIDTH, WIDE = 24, 72
"""D, and the width of EmbeddingGemma's first dense layer."""


TEXTS = [
    "The cat sat on the mat.",
    "no",
    "日本 12,123 cafe\u0301 👩\u200d👩\u200d👧\n\n a  b\tc <|im_end|> <eos> <bos> [SEP]",
    "a cat, " * 40,
    " ",
]
"""Short and longer than any limit, with what tokenizers differ in."""


def sentence_transformer(folder: Path) -> Any:
    """What sentence-transformers loads from a folder, in fp32."""
    return sentence_transformers().SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )


def cross_encoder(folder: Path) -> Any:
    """Likewise, of a reranker; scores are logits."""
    return sentence_transformers().CrossEncoder(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}, activation_fn=torch.nn.Identity()
    )


def _modules(*kinds: str) -> list[Any]:
    """A modules.json of the releases that published it."""
    return [
        {
            "idx": number,
            "name": str(number),
            "path": "" if number == 0 else f"{number}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]


def _pooling(mode: str) -> dict[str, Any]:
    flags = {f"pooling_mode_{name}": name == mode for name in (*_POOLING_FLAGS, "lasttoken")}
    return {"word_embedding_dimension": WIDTH, **flags, "include_prompt": True}


def _added(tokenizer: Tokenizer) -> dict[str, Any]:
    """An added_tokens_decoder."""
    return {
        str(number): {
            "content": token.content,
            **{name: getattr(token, name) for name in ("lstrip", "normalized", "rstrip", "single_word")},
            "special": token.special,
        }
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }


def _write(folder: Path, files: Mapping[str, Content], tokenizer: Tokenizer) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_weights(model: Any, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write weights in a precision, as transformers names them."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def _qwen3(tokenizer: Tokenizer) -> dict[str, Any]:
    """The settings of Qwen3, which its embedder and its reranker share."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 276,
        "eos_token_id": 276,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "max_window_layers": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": tokenizer.get_vocab_size(),
    }


def _qwen3_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Its tokenizer_config.json."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": "{%- for message in messages %}{{ message.content }}{% endfor %}",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def write_qwen3_embedding(folder: Path) -> None:
    """Write Qwen3-Embedding: a causal language model's weights in bfloat16, without its head."""
    tokenizer = qwen_tokenizer()
    config = _qwen3(tokenizer)
    _write_weights(random_of("Qwen3", "Model", **config), folder, torch.bfloat16)
    prompt = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
    files: dict[str, Content] = {
        "1_Pooling/config.json": _pooling("lasttoken"),
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **config,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.51.3",
        },
        "config_sentence_transformers.json": {
            "prompts": {"query": prompt, "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "generation_config.json": {"bos_token_id": 276, "eos_token_id": 276, "max_new_tokens": 2048},
        "modules.json": _modules("Transformer", "Pooling", "Normalize"),
        "tokenizer_config.json": _qwen3_tokenizer(tokenizer),
    }
    _write(folder, files, tokenizer)


RERANKER_TEMPLATE = """\
{%- set task = messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Given a web search query, retrieve passages") -%}
{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
<|im_start|>system
Judge whether the Document meets the requirements. The answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ task }}
<Query>: {{ query }}
<Document>: {{ document }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
"""The form of Qwen3-Reranker's."""

RERANKERS = ("language model", "untied", "one token", "classifier")


def write_qwen3_reranker(
    folder: Path, kind: str = "language model", *, max_tokens: int | None = None
) -> None:
    """Write Qwen3-Reranker, as sentence-transformers stores it.

    A language model, tied or not, whose logits of two tokens or of one are scores, or a classifier made of
    it: one of `RERANKERS`.
    """
    tokenizer = qwen_tokenizer()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    classifies = kind == "classifier"
    config = _qwen3(tokenizer) | {"tie_word_embeddings": kind != "untied", "pad_token_id": 269}
    if classifies:
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    head = "ForSequenceClassification" if classifies else "ForCausalLM"
    _write_weights(random_of("Qwen3", head, **config), folder, torch.bfloat16)
    output = {"method": "forward", "method_output_name": "logits"}
    module = "sentence_transformers.base.modules.transformer.Transformer"
    modules = [{"idx": 0, "name": "0", "path": "", "type": module}]
    files: dict[str, Content] = {
        "config.json": {"architectures": [f"Qwen3{head}"], "model_type": "qwen3", **config},
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "__version__": _VERSIONS,
            "prompts": {"web": "Given a question, find answers", "other": "Rank"},
            "default_prompt_name": None,
            "activation_fn": "torch.nn.modules.linear.Identity",
        },
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification" if classifies else "text-generation",
            "modality_config": {"text": output, "message": output | {"format": "flat"}},
            "module_output_name": "scores" if classifies else "causal_logits",
            "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
            **({} if max_tokens is None else {"max_seq_length": max_tokens}),
        },
        "tokenizer_config.json": _qwen3_tokenizer(tokenizer),
    }
    if not classifies:
        kind_of = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
        modules.append({"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind_of})
        no = None if kind == "one token" else tokenizer.token_to_id("no")
        files["1_LogitScore/config.json"] = {
            "true_token_id": tokenizer.token_to_id("yes"),
            "false_token_id": no,
        }
    _write(folder, files | {"modules.json": modules}, tokenizer)
    (folder / "chat_template.jinja").write_text(RERANKER_TEMPLATE)


def write_embeddinggemma(folder: Path) -> None:
    """Write EmbeddingGemma, with two dense layers behind its mean."""
    tokenizer = gemma_tokenizer()
    embeddings = tokenizer.get_vocab_size()
    # There are no embeddings for this one.
    tokenizer.add_special_tokens([AddedToken("<image_soft_token>", normalized=False)])
    config: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": 40,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 128,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 12,
        "rms_norm_eps": 1e-06,
        "sliding_window": 8,
        "use_bidirectional_attention": True,
        "use_cache": True,
        "vocab_size": embeddings,
    }
    rotations = {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    }
    _write_weights(random_of("Gemma3Text", "Model", **config, **rotations), folder)
    task = "task: {} | query: ".format
    prompts = {
        "query": task("search result"),
        "document": "title: none | text: ",
        "BitextMining": task("search result"),
        "Clustering": task("clustering"),
        "Retrieval-document": "title: none | text: ",
        "STS": task("sentence similarity"),
    }
    dense = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    widths = (WIDTH, WIDE, WIDTH)
    files: dict[str, Content] = {
        "1_Pooling/config.json": _pooling("mean_tokens"),
        **{
            f"{number + 2}_Dense/config.json": {"in_features": width, "out_features": out, **dense}
            for number, (width, out) in enumerate(itertools.pairwise(widths))
        },
        "added_tokens.json": {"<image_soft_token>": embeddings},
        "config.json": {
            "_sliding_window_pattern": 2,
            "architectures": ["Gemma3TextModel"],
            "model_type": "gemma3_text",
            **config,
            "dtype": "float32",
            "rope_local_base_freq": 10000.0,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "transformers_version": "4.57.0.dev0",
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "__version__": _VERSIONS,
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "modules.json": _modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
        "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
        "special_tokens_map.json": {
            "boi_token": "<start_of_turn>",
            **{
                f"{name}_token": {"content": f"<{name}>", "lstrip": False, "normalized": False}
                for name in ("bos", "eos", "pad", "unk")
            },
            "image_token": "<image_soft_token>",
        },
        "tokenizer_config.json": {
            "add_bos_token": True,
            "add_eos_token": True,
            "added_tokens_decoder": _added(tokenizer),
            "boi_token": "<start_of_turn>",
            "bos_token": "<bos>",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<eos>",
            "extra_special_tokens": {
                "boi_token": "<start_of_turn>",
                "image_token": "<image_soft_token>",
            },
            "image_token": "<image_soft_token>",
            "model_max_length": 128,
            "pad_token": "<pad>",
            "padding_side": "right",
            "sp_model_kwargs": None,
            "spaces_between_special_tokens": False,
            "tokenizer_class": "GemmaTokenizer",
            "unk_token": "<unk>",
            "use_default_system_prompt": False,
        },
    }
    _write(folder, files, tokenizer)
    for number, (width, out) in enumerate(itertools.pairwise(widths)):
        weight = random_dense(width, out, torch.nn.Identity(), bias=False).linear.weight.detach()
        save_file({"linear.weight": weight}, folder / f"{number + 2}_Dense" / "model.safetensors")


NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
"""What the published configuration calls sizes that transformers has other names for."""


def write_nomic_embed_text(folder: Path, *, renamed: bool = False) -> None:
    """Write nomic-embed-text v1.5, whose configuration is that of its own code.

    `renamed` has transformers' names instead, which does not read the others.
    """
    tokenizer = bert_tokenizer()
    sizes = {"n_embd": WIDTH, "n_head": 4, "n_inner": 48, "n_layer": 2, "n_positions": 128}
    theirs = {NOMIC_NAMES[name]: size for name, size in sizes.items()}
    padded = -(-tokenizer.get_vocab_size() // 64) * 64
    _write_weights(random_of("NomicBert", "Model", vocab_size=padded, **theirs), folder)
    code = "nomic-ai/nomic-bert-2048--"
    config: dict[str, Any] = {
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": {
            "AutoConfig": f"{code}configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": f"{code}modeling_hf_nomic_bert.NomicBertModel",
            "AutoModelForMaskedLM": f"{code}modeling_hf_nomic_bert.NomicBertForPreTraining",
        },
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        **sizes,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "torch_dtype": "float32",
        "transformers_version": "4.37.2",
        "type_vocab_size": 2,
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": padded,
    }
    if renamed:
        config = {NOMIC_NAMES.get(name, name): value for name, value in config.items() if name != "auto_map"}
    prompts = {"query": "search_query: ", "document": "search_document: ", "Clustering": "clustering: "}
    files: dict[str, Content] = {
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "config.json": config,
        "config_sentence_transformers.json": {
            "__version__": _VERSIONS,
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "modules.json": _modules("Transformer", "Pooling"),
        "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
        "special_tokens_map.json": {
            name: f"[{name[:-6].upper()}]"
            for name in ("cls_token", "mask_token", "pad_token", "sep_token", "unk_token")
        },
        "tokenizer_config.json": {
            "added_tokens_decoder": _added(tokenizer),
            "clean_up_tokenization_spaces": True,
            "cls_token": "[CLS]",
            "do_lower_case": True,
            "mask_token": "[MASK]",
            "model_max_length": 8192,
            "pad_token": "[PAD]",
            "sep_token": "[SEP]",
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
            "unk_token": "[UNK]",
        },
    }
    _write(folder, files, tokenizer)


def eurobert_tokenizer() -> Tokenizer:
    """A byte-level BPE that begins texts, as EuroBERT has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "a"), ("Ġ", "c"), ("1", "2"), ("Ġ", "Ġ")]
    vocabulary = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(vocabulary)}, merges, ignore_merges=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    begin = "<|begin_of_text|>"
    tokenizer.add_special_tokens(
        [AddedToken(each, normalized=False) for each in (begin, "<|end_of_text|>", "<|mask|>")]
    )
    number = len(vocabulary)
    template = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0", pair=f"{begin}:0 $A:0 {begin}:1 $B:1", special_tokens=[(begin, number)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def write_eurobert(folder: Path, head: str = "ForMaskedLM", **changes: Any) -> None:
    """Write EuroBERT, a masked language model that names code of its own; or a classifier made of it."""
    tokenizer = eurobert_tokenizer()
    begin = tokenizer.get_vocab()["<|begin_of_text|>"]
    config: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": begin,
        "eos_token_id": begin + 1,
        "pad_token_id": begin + 1,
        "mask_token_id": begin + 2,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 250000,
        "tie_word_embeddings": False,
        "vocab_size": tokenizer.get_vocab_size(),
        **changes,
    }
    kinds = {name: name for name in ("Model", "ForMaskedLM", "ForSequenceClassification")}
    files: dict[str, Content] = {
        "config.json": {
            "architectures": [f"EuroBert{head}"],
            "auto_map": {
                "AutoConfig": "configuration_eurobert.EuroBertConfig",
                **{f"Auto{each}": f"modeling_eurobert.EuroBert{each}" for each in kinds},
            },
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "pad_token": "<|end_of_text|>",
            "mask_token": "<|mask|>",
            "hidden_dropout": 0.0,
            "model_type": "eurobert",
            "rope_scaling": None,
            "is_decoder": False,
            "clf_pooling": "late",
            **config,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.40.0.dev0",
        },
        "special_tokens_map.json": {
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "mask_token": "<|mask|>",
            "pad_token": "<|end_of_text|>",
        },
        "tokenizer_config.json": {
            "added_tokens_decoder": _added(tokenizer),
            "bos_token": "<|begin_of_text|>",
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|end_of_text|>",
            "mask_token": "<|mask|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 128,
            "pad_token": "<|end_of_text|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    _write_weights(random_of("EuroBert", head, **config), folder, torch.bfloat16)
    _write(folder, files, tokenizer)


EMBEDDERS: Mapping[str, Callable[[Path], None]] = {
    "qwen3-embedding": write_qwen3_embedding,
    "embeddinggemma": write_embeddinggemma,
    "nomic-embed-text": write_nomic_embed_text,
    "eurobert": write_eurobert,
}
