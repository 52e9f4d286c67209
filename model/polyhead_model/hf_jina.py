"""jina-embeddings-v3: XLM-RoBERTa with rotations, and adapters for tasks (Sturua et al. 2024).

Published folders call it `xlm-roberta`, and name code that has an `XLMRobertaLoRA`; transformers has no
adapters in its `jina_embeddings_v3`.
"""

from dataclasses import replace
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, integer
from polyhead_model.hf_fields import Config, Fields, require, theta_of
from polyhead_model.hf_layout import BERT_EMBEDDINGS, DENSE_AND_OUT, QKV, Adapters, Dialect, fused


def _fields(path: Path, config: Config) -> Fields:
    """Return the fields of both types."""
    return {
        "embedding_norm": True,
        "rotary_base": theta_of(path, {"rope_theta": None, **config}, 0.0),
    }


def _published_fields(path: Path, config: Config) -> Fields:
    """Return the fields of published folders, whose code could do more than they need."""
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    for name, wanted in (
        *(("position_embedding_type", "rotary"), ("rotary_emb_interleaved", False)),
        *(("rotary_emb_scale_base", None), ("rotary_emb_dim", width // max(heads, 1))),
        *(("pad_vocab_size_multiple", 1), ("last_layer_subset", False), ("truncate_dim", None)),
    ):
        require(path, config, name, wanted, "another variant is not supported")
    return _fields(path, config)


def _adapters(path: Path, config: Config) -> Adapters | None:
    """Return the adapters, which the weights hold for all tasks together."""
    tasks = config.get("lora_adaptations")
    if tasks is None:
        return None
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise CheckpointError(f"{path}: lora_adaptations must list the names of tasks, was {tasks!r}")
    said = {"load_trained_adapters": False, **config}
    require(path, said, "load_trained_adapters", True, "otherwise the adapters would be random")
    rank, alpha = integer(path, config, "lora_rank"), config.get("lora_alpha")
    if rank < 1 or not isinstance(alpha, int | float) or not abs(alpha) < 2**20:
        raise CheckpointError(
            f"{path}: lora_rank must be at least 1 and lora_alpha a number below a million, were {rank} and "
            f"{alpha!r}"
        )
    return Adapters(tasks=tuple(tasks), rank=rank, scale=alpha / rank)


JINA_V3 = Dialect(
    prefix="roberta.",
    default_epsilon=1e-5,
    fields=_fields,
    modules={**BERT_EMBEDDINGS, "embeddings.norm": "emb_ln"},
    layer_prefix="encoder.layers.",
    layer_modules={
        **fused("mixer.Wqkv", *QKV),
        "attention.w_o": "mixer.out_proj",
        "attention_norm": "norm1",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    classifier=DENSE_AND_OUT,
)

FLASH = replace(
    JINA_V3,
    fields=_published_fields,
    renamed={"rotary_emb_base": "rope_theta"},
    follows_code=True,
    adapters=_adapters,
)
