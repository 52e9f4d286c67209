"""Small random checkpoints with a tokenizer, as transformers and sentence-transformers write them."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

# One layer: what differs between checkpoint types is in each, and exports take longer with more.
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 60,
}
DISTILBERT_SIZES = {"dim": 16, "n_layers": 1, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 60}
DIALECTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "bert, one token type": ("Bert", SIZES | {"type_vocab_size": 1}),
    "distilbert": ("DistilBert", DISTILBERT_SIZES),
    "electra": ("Electra", SIZES | {"embedding_size": 16}),
    "roberta": ("Roberta", SIZES | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", SIZES | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "camembert": ("Camembert", SIZES | {"type_vocab_size": 1}),
}
"""Each of the checkpoint types that load: the name of its classes in transformers, and sizes."""

ROBERTA = ("roberta", "xlm-roberta", "camembert")

BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


ALBERT_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ESM_TOKENS = {"cls": "<cls>", "pad": "<pad>", "eos": "<eos>", "unk": "<unk>"}
PROTEIN = [*ESM_TOKENS.values(), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
"""The vocabulary of ESM-2."""
END_OF_TEXT = "<|endoftext|>"
GEMMA_TOKENS = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}


def tokens_of(dialect: str) -> Mapping[str, str]:
    """The special tokens of a dialect, by what they are for; in the order of their ids."""
    own: Mapping[str, Mapping[str, str]] = {
        "albert": ALBERT_TOKENS,
        "esm": ESM_TOKENS,
        "gemma3_text": GEMMA_TOKENS,
        "gpt2": dict.fromkeys(("unk", "bos", "eos"), END_OF_TEXT),
        "mpnet": {**ROBERTA_TOKENS, "unk": "[UNK]"},
        "qwen3": dict.fromkeys(("eos", "pad"), END_OF_TEXT),
    }
    return own.get(dialect, ROBERTA_TOKENS if dialect in ROBERTA else BERT_TOKENS)


def bert_template() -> processors.TemplateProcessing:
    """[CLS] and [SEP] around a text and between two, as BERT has them, with the ids 2 and 3."""
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )


def word_piece(special: Iterable[str], **normalizer: Any) -> Tokenizer:
    """A WordPiece tokenizer of special tokens and letters, some with accents."""
    letters = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZéÉ日本語<>[]/:.\u0301"]
    vocabulary = [*special, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bert_tokenizer(**normalizer: Any) -> Tokenizer:
    """BERT's WordPiece of letters."""
    tokenizer = word_piece(BERT_TOKENS.values(), **normalizer)
    tokenizer.post_processor = bert_template()
    tokenizer.add_special_tokens(list(BERT_TOKENS.values()))
    return tokenizer


def roberta_tokenizer(*, add_prefix_space: bool = False) -> Tokenizer:
    """A byte-level BPE of single bytes."""
    vocabulary = [*ROBERTA_TOKENS.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(vocabulary)}, merges=[], unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=add_prefix_space
    )
    *others, mask = ROBERTA_TOKENS.values()
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])
    return tokenizer


def mpnet_tokenizer(**normalizer: Any) -> Tokenizer:
    """BERT's WordPiece with RoBERTa's special tokens."""
    *others, mask = tokens_of("mpnet").values()
    tokenizer = word_piece([*others, mask], **normalizer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])
    return tokenizer


def gpt2_tokenizer(*, add_prefix_space: bool = False) -> Tokenizer:
    """A byte-level BPE of single bytes and a few pairs, which adds no special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "a"), ("Ġ", "c")]
    vocabulary = [*alphabet, *("".join(pair) for pair in merges), END_OF_TEXT]
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(vocabulary)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def qwen_tokenizer(*, add_prefix_space: bool = False) -> Tokenizer:
    """A byte-level BPE with pairs across what Qwen takes for words, as Qwen3-Embedding has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ["c a", "Ġ c", "Ġ Ġ", "Ċ Ċ", "1 2", "' t", "t Ġ", ". .", ". Ċ", "Ã ©", "n o", "y e", "ye s"]
    merges = [(first, second) for first, second in (pair.split(" ") for pair in pairs)]
    vocabulary = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(vocabulary)}, merges=merges)
    )
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer.normalizer = normalizers.NFC()
    byte_level: dict[str, Any] = {"add_prefix_space": add_prefix_space, "use_regex": False}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(trim_offsets=False, **byte_level),
        ]
    )
    tokenizer.add_special_tokens([END_OF_TEXT, "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("<think>", "</think>")])
    end = f"{END_OF_TEXT}:0"
    template = processors.TemplateProcessing(
        single=f"$A:0 {end}",
        pair=f"$A:0 {end} $B:0 {end}",
        special_tokens=[(END_OF_TEXT, len(vocabulary))],
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False, **byte_level), template]
    )
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """A BPE of letters that falls back to bytes, as EmbeddingGemma has it."""
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    letters = [*"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789é日本<>[]/:|.\u0301\n"]
    merges = [("c", "a"), ("▁", "c"), ("▁", "▁"), ("\n", "\n"), ("1", "2"), ("a", "▁c"), ("t", "▁")]
    vocabulary = [*GEMMA_TOKENS.values(), *bytes_, *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: index for index, word in enumerate(vocabulary)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens([*GEMMA_TOKENS.values(), "<start_of_turn>"])
    tokenizer.add_tokens([AddedToken("<table>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return tokenizer


def albert_tokenizer(
    *, lowercase: bool = True, keep_accents: bool = False, add_prefix_space: bool = True
) -> Tokenizer:
    """A Unigram tokenizer of letters."""
    letters = [*'▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZéÉ日本語<>[]/:.\u0301"`']
    vocabulary = [(token, 0.0) for token in ALBERT_TOKENS.values()]
    vocabulary += [(letter, -2.0 - 0.01 * index) for index, letter in enumerate(letters)]
    tokenizer = Tokenizer(models.Unigram([*vocabulary, ("▁cat", -3.0)], unk_id=1))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if lowercase else []
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if add_prefix_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    tokenizer.post_processor = bert_template()
    *others, mask = ALBERT_TOKENS.values()
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])
    return tokenizer


def deberta_tokenizer(
    *, lowercase: bool = False, split_by_punct: bool = False, add_prefix_space: bool = True
) -> Tokenizer:
    """A Unigram tokenizer of letters, as DeBERTa-v2 has it."""
    letters = [*'▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZéÉ日本語<>[]/:.\u0301"`']
    vocabulary = [(token, 0.0) for token in BERT_TOKENS.values()]
    vocabulary += [(letter, -2.0 - 0.01 * index) for index, letter in enumerate(letters)]
    # Marks are part of words unless they are split from them.
    tokenizer = Tokenizer(models.Unigram([*vocabulary, ("▁cat", -3.0), ('"▁', -1.0)], unk_id=1))
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Strip(left=False, right=True)])
    marks = [pre_tokenizers.Punctuation("isolated")] if split_by_punct else []
    scheme = "always" if add_prefix_space else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*marks, pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    tokenizer.post_processor = bert_template()
    tokenizer.add_special_tokens(list(BERT_TOKENS.values()))
    return tokenizer


def write_tokenizer_files(
    folder: Path, dialect: str, tokenizer: Tokenizer, config: Mapping[str, Any] | None
) -> None:
    """Write a tokenizer.json, and a tokenizer_config.json unless there is to be none."""
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        named = {f"{name}_token": token for name, token in tokens_of(dialect).items()}
        (folder / "tokenizer_config.json").write_text(json.dumps({**named, **config}))


def random_model(dialect: str, head: str = "Model", **changes: Any) -> Any:
    """A model of one of the dialects."""
    kind, sizes = DIALECTS[dialect]
    return random_of(kind, head, **{**sizes, **changes})


def random_of(kind: str, head: str, **config: Any) -> Any:
    """A model of transformers in which every tensor is random, norms and biases too.

    `kind` and `head` are what the names of its classes begin and end with.
    """
    import transformers

    made = getattr(transformers, f"{kind}Config")(attn_implementation="eager", **config)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, f"{kind}{head}")(made).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write_checkpoint(
    folder: Path,
    dialect: str,
    *,
    head: str = "Model",
    activation: str = "gelu",
    inputs: Sequence[str] | None = None,
    **config: Any,
) -> None:
    """Write a folder as transformers has it: configuration, weights, tokenizer.

    `inputs` are what the tokenizer says that it gives, beside ids and mask.
    """
    tokenizer = roberta_tokenizer() if dialect in ROBERTA else bert_tokenizer()
    name = "activation" if dialect == "distilbert" else "hidden_act"
    changes = {"vocab_size": tokenizer.get_vocab_size(), name: activation, **config}
    random_model(dialect, head, **changes).save_pretrained(folder)
    # The dialects' own classes would take tokenizers of their own kind only.
    files: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 50}
    if inputs is not None:
        files["model_input_names"] = ["input_ids", *inputs, "attention_mask"]
    write_tokenizer_files(folder, dialect, tokenizer, files)


POOLINGS: Mapping[str, Any] = {
    "last": "lasttoken",
    "weighted_mean": "weightedmean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
}
"""Our names → those of sentence-transformers, where they differ."""

OTHER_PROMPTS = {"passage": "a passage: ", "none": ""}


def sentence_transformers() -> Any:
    """The package. It is imported where it is compared with, as that takes seconds."""
    with warnings.catch_warnings(action="ignore"):
        import sentence_transformers.models
    return sentence_transformers


def sentence_transformer(
    checkpoint: Path | Any,
    *,
    pooling: str | None,
    normalise: bool,
    prompt: str | None = None,
    dense: Sequence[Any] = (),
) -> Any:
    """What sentence-transformers makes of a folder or of a `Transformer`.

    A prompt is applied by default, and there are others. Activations of `dense` are those of layers of other
    widths, which follow the pooling; None in their place normalises.
    """
    package = sentence_transformers()
    layers = package.models
    modules: list[Any] = [layers.Transformer(str(checkpoint)) if isinstance(checkpoint, Path) else checkpoint]
    if pooling is not None:
        modules.append(layers.Pooling(16, POOLINGS.get(pooling, pooling)))
    width = 16
    for number, activation in enumerate(dense):
        if activation is None:
            modules.append(layers.Normalize())
            continue
        modules.append(random_dense(width, width - 3, activation, bias=number % 2 == 0))
        width -= 3
    if normalise:
        modules.append(layers.Normalize())
    prompts: dict[str, Any] = (
        {}
        if prompt is None
        else {"prompts": {"mine": prompt, **OTHER_PROMPTS}, "default_prompt_name": "mine"}
    )
    return package.SentenceTransformer(modules=modules, device="cpu", **prompts)


def random_dense(width: int, out: int, activation: Any, *, bias: bool) -> Any:
    """A dense layer of sentence-transformers."""
    with torch.random.fork_rng():
        torch.manual_seed(width)
        return sentence_transformers().models.Dense(width, out, bias=bias, activation_function=activation)


def cross_encoder(checkpoint: Path) -> Any:
    """What sentence-transformers makes of a classifier's folder; scores are the logits."""
    return sentence_transformers().CrossEncoder(
        str(checkpoint), device="cpu", activation_fn=torch.nn.Identity()
    )


def modular_cross_encoder(checkpoint: Path, *, scores: int = 1) -> Any:
    """A CrossEncoder of modules, as sentence-transformers has them since 5.4."""
    package = sentence_transformers()
    layers = package.models
    score = random_dense(12, scores, torch.nn.Identity(), bias=scores > 1)
    score.module_output_name = "scores"
    norm = package.sentence_transformer.modules.LayerNorm(12)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for parameter in norm.parameters():
            torch.nn.init.normal_(parameter)
    modules = [
        layers.Transformer(str(checkpoint)),
        layers.Pooling(16, "cls"),
        random_dense(16, 12, torch.nn.GELU(), bias=False),
        norm,
        score,
    ]
    return package.CrossEncoder(modules=modules, device="cpu", activation_fn=torch.nn.Identity())


SPLADE_POOLINGS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 100},
    "distilbert": {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
}
"""What the pooling's config.json of a SPLADE checkpoint has, by type."""


def write_splade(folder: Path, dialect: str, transformer: str = "Transformer", **config: Any) -> None:
    """Write the folder of a SparseEncoder of sentence-transformers; older ones have an MLMTransformer."""
    write_checkpoint(folder, dialect, head="ForMaskedLM", inputs=["token_type_ids"], **config)
    package = "sentence_transformers.models" if transformer == "Transformer" else SPARSE
    modules = [(f"{package}.{transformer}", ""), (f"{SPARSE}.SpladePooling", "1_SpladePooling")]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": number, "name": str(number), "path": path, "type": kind}
                for number, (kind, path) in enumerate(modules)
            ]
        )
    )
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(SPLADE_POOLINGS[dialect]))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    if transformer == "Transformer":
        task = {"transformer_task": "fill-mask", "max_seq_length": 40}
        (folder / "sentence_bert_config.json").write_text(json.dumps(task))


SPARSE = "sentence_transformers.sparse_encoder.models"
