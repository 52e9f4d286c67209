"""A tokenizer's files against what `transformers` makes of them."""

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import (
    END_OF_TEXT,
    PROTEIN,
    albert_tokenizer,
    bert_tokenizer,
    deberta_tokenizer,
    gemma_tokenizer,
    gpt2_tokenizer,
    mpnet_tokenizer,
    qwen_tokenizer,
    roberta_tokenizer,
    write_tokenizer_files,
)
from tests.pages import block
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from polyhead_model import CheckpointError
from polyhead_model.tokenizer_classes import served_tokenizer
from polyhead_model.tokenizer_files import check_tokenizer, gives_token_types, largest_token_id

TEXTS = [
    "The Cat",
    "the cat",
    "Café CAFÉ cafe\u0301 ﬁ",
    "日本 cat",
    "日本語",
    "a <mask> b [MASK] c [PAD] d <pad> </s>",
    " the cat ",
    "",
    "x<new>y <new> z",
    "``cat'' \" a",
    "can't  stop\tit\n\nnow  ",
    "x" * 101 + " " + "a" * 30,
    END_OF_TEXT,
    "a <s>NOTUSED b<unk>NOTUSED",
    "12,123 a..\n\n\n  b \r\n",
    "e\u0301\u0323 \uac00\u1100\u1161 👩\u200d👩\u200d👧 \u00a0a\u3000",
    "a<|im_start|>b <|im_end|> <bos>c <eos> <start_of_turn>x",
    "<think> a</think>b <table> c \u2581\u2581 <0x0A>",
]

Part = dict[str, Any]


def write(folder: Path, model_type: str, tokenizer: Tokenizer, config: dict[str, Any] | None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    write_tokenizer_files(folder, model_type, tokenizer, config)


def change(folder: Path, parts: Part) -> None:
    """Write other parts into tokenizer.json; what has a dot in its name is a field of one."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    for name, value in parts.items():
        *outer, field = name.split(".")
        (content[outer[0]] if outer else content)[field] = value
    path.write_text(json.dumps(content))


def load_by_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer: Tokenizer) -> list[Any]:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    given = [*((text, None) for text in TEXTS), *itertools.pairwise(TEXTS)]
    made = [tokenizer.encode(text, pair) for text, pair in given]
    return [(encoding.ids, encoding.type_ids) for encoding in made]


def hold_to_transformers(folder: Path, model_type: str) -> bool:
    """See that a folder is served as transformers tokenises; tell whether its own tokenizer.json does so.

    What is left out says if it does not, and only then.
    """
    check_tokenizer(folder, model_type)
    served = served_tokenizer(folder, model_type)
    expected = ids_of(load_by_transformers(folder).backend_tokenizer)
    assert ids_of(Tokenizer.from_str(served.content)) == expected
    agrees = ids_of(Tokenizer.from_file(str(folder / "tokenizer.json"))) == expected
    assert ["tokenizer.json is not followed in " in line for line in served.left_out] == [True] * (not agrees)
    return agrees


BERT_CLASSES = [None, "BertTokenizer", "PreTrainedTokenizerFast"]


@pytest.mark.parametrize(
    ("model_type", "name"),
    [*(("bert", name) for name in BERT_CLASSES), ("distilbert", None), ("electra", "ElectraTokenizerFast")],
)
def test_flags_of_berts_normalizer(model_type: str, name: str | None, tmp_path: Path) -> None:
    agree = []
    for number, (lower, strip, chinese) in enumerate(
        itertools.product([True, False], [None, True, False], [True, False])
    ):
        tokenizer = bert_tokenizer(lowercase=lower, strip_accents=strip, handle_chinese_chars=chinese)
        for given, (said_lower, said_strip, said_chinese) in enumerate(
            [(None, None, None), (lower, strip, chinese), (not lower, strip, chinese), (lower, True, None)]
        ):
            said = {
                "tokenizer_class": name,
                "do_lower_case": said_lower,
                "strip_accents": said_strip,
                "tokenize_chinese_chars": said_chinese,
            }
            folder = tmp_path / f"{number}-{given}"
            config = {key: value for key, value in said.items() if value is not None}
            write(folder, model_type, tokenizer, config)
            agree.append(hold_to_transformers(folder, model_type))
    assert agree.count(True) >= 12  # those that say what they do
    assert all(agree) == (name == "PreTrainedTokenizerFast")


def test_a_folder_without_a_configuration_of_its_tokenizer(tmp_path: Path) -> None:
    for lower in (True, False):
        folder = tmp_path / str(lower)
        write(folder, "bert", bert_tokenizer(lowercase=lower), None)
        assert hold_to_transformers(folder, "bert") == lower


PREFIX, LOWER = "add_prefix_space", "do_lower_case"


@pytest.mark.parametrize(
    ("model_type", "name", "make", "flag"),
    [
        *(
            ("roberta", name, roberta_tokenizer, PREFIX)
            for name in (None, "RobertaTokenizer", "RobertaTokenizerFast", "PreTrainedTokenizerFast")
        ),
        ("gpt2", "GPT2Tokenizer", gpt2_tokenizer, PREFIX),
        *(
            ("qwen3", name, qwen_tokenizer, PREFIX)
            for name in (None, "Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast")
        ),
        ("mpnet", "MPNetTokenizer", mpnet_tokenizer, LOWER),
        ("mpnet", "PreTrainedTokenizerFast", mpnet_tokenizer, LOWER),
    ],
)
@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("done", [True, False])
def test_flags_of_others(
    done: bool, said: bool | None, model_type: str, name: str | None, make: Any, flag: str, tmp_path: Path
) -> None:
    config = {"tokenizer_class": name, flag: said}
    tokenizer = make(**{flag.replace(LOWER, "lowercase"): done})
    write(tmp_path, model_type, tokenizer, {key: value for key, value in config.items() if value is not None})

    agree = (flag == LOWER if said is None else said) == done
    assert hold_to_transformers(tmp_path, model_type) == (agree or name == "PreTrainedTokenizerFast")


@pytest.mark.parametrize(
    "said", [{}, {"do_lower_case": False}, {"keep_accents": True}, {"add_prefix_space": False}]
)
@pytest.mark.parametrize(
    "done", [{}, {"lowercase": False}, {"keep_accents": True}, {"add_prefix_space": False}]
)
def test_flags_of_albert(done: dict[str, bool], said: dict[str, bool], tmp_path: Path) -> None:
    write(tmp_path, "albert", albert_tokenizer(**done), {"tokenizer_class": "AlbertTokenizer", **said})

    agree = {key.replace("do_lower_case", "lowercase") for key in said} == set(done)
    assert hold_to_transformers(tmp_path, "albert") == agree


@pytest.mark.parametrize(
    "said", [{}, {"do_lower_case": True}, {"split_by_punct": True}, {"add_prefix_space": False}]
)
@pytest.mark.parametrize(
    "done", [{}, {"lowercase": True}, {"split_by_punct": True}, {"add_prefix_space": False}]
)
def test_flags_of_deberta(done: dict[str, bool], said: dict[str, bool], tmp_path: Path) -> None:
    write(
        tmp_path, "deberta-v2", deberta_tokenizer(**done), {"tokenizer_class": "DebertaV2Tokenizer", **said}
    )

    # Whether all words or the first of a text get a space makes no difference to these texts.
    agree = {key.replace("do_lower_case", "lowercase") for key in said} ^ set(done) <= {PREFIX}
    assert hold_to_transformers(tmp_path, "deberta-v2") == agree


@pytest.mark.parametrize("unknown", [("[UNK]", 0.0), ("[UNK]", -1.0)])
@pytest.mark.parametrize("said", [{}, {"unk_id": 3}, {"unk_token": "a"}])
def test_the_unknown_token_of_deberta(
    said: dict[str, Any], unknown: tuple[str, float], tmp_path: Path
) -> None:
    """It is found by its score, or else has the number that is said, or 1."""
    tokenizer = deberta_tokenizer()
    write(tmp_path, "deberta-v2", tokenizer, said)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    change(tmp_path, {"model.vocab": [[*unknown] if each[0] == "[UNK]" else each for each in vocabulary]})

    # Another token is no word any more, but a special token.
    agrees = not said or (said == {"unk_id": 3} and unknown[1] == 0.0)
    assert hold_to_transformers(tmp_path, "deberta-v2") == agrees


CORPUS = [
    "the cat sat on the mat",
    "a dog and a cat can't stop it now",
    "x y z the café",
    "Big red ships sail",
] * 9


def unigram_tokenizer(*more: str) -> Tokenizer:
    """A trained Unigram with XLM-RoBERTa's special tokens and more, and a SentencePiece map of characters."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *more]
    trainer = trainers.UnigramTrainer(
        vocab_size=70 + len(more), special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # A trie whose units lead nowhere.
    charsmap = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"\0").decode()
    content = json.loads(tokenizer.to_str())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    content["model"]["unk_id"] = 3
    made = Tokenizer.from_str(json.dumps(content))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def camembert_tokenizer() -> Tokenizer:
    """Likewise, with what CamemBERT's has."""
    return unigram_tokenizer("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")


def bpe_tokenizer() -> Tokenizer:
    """A trained byte-level BPE with RoBERTa's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """A trained WordPiece with BERT's special tokens."""
    tokenizer = bert_tokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


MAKE = {
    "albert": albert_tokenizer,
    "bert": word_piece_tokenizer,
    "camembert": camembert_tokenizer,
    "gemma3_text": gemma_tokenizer,
    "deberta-v2": deberta_tokenizer,
    "gpt2": gpt2_tokenizer,
    "mpnet": mpnet_tokenizer,
    "qwen3": qwen_tokenizer,
    "roberta": bpe_tokenizer,
    "xlm-roberta": unigram_tokenizer,
}
LOWERCASE: Part = {"type": "Lowercase"}
WHITESPACE: Part = {"type": "Whitespace"}
TWICE: Part = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
SAID_OTHERWISE: dict[str, Part] = {
    "nothing": {},
    "normalizer": {"normalizer": LOWERCASE},
    "no normalizer": {"normalizer": None},
    "pre_tokenizer": {"pre_tokenizer": WHITESPACE},
    "no pre_tokenizer": {"pre_tokenizer": None},
    "post_processor": {"post_processor": TWICE},
    "no post_processor": {"post_processor": None},
    "added_tokens": {"added_tokens": []},
}
OF_MODELS: dict[str, Part] = {
    "bert": {"model.max_input_chars_per_word": 20, "model.unk_token": "the"},
    "mpnet": {"model.max_input_chars_per_word": 200},
    "roberta": {"model.unk_token": "<unk>", "model.fuse_unk": True, "model.ignore_merges": True},
    "gemma3_text": {"model.unk_token": "c", "model.fuse_unk": False, "model.byte_fallback": False},
    "gpt2": {"model.unk_token": "c", "model.fuse_unk": True},
    "qwen3": {"model.unk_token": "c", "model.fuse_unk": True, "model.ignore_merges": True},
    "xlm-roberta": {"model.unk_id": 1, "model.byte_fallback": True},
    "camembert": {"model.unk_id": 0},
    "deberta-v2": {"model.unk_id": 0, "model.byte_fallback": True},
    "albert": {"model.unk_id": 0},
}


@pytest.mark.parametrize("model_type", MAKE)
def test_what_a_class_builds_anew(model_type: str, tmp_path: Path) -> None:
    """Whatever stands in tokenizer.json, and with the class that follows it."""
    cases = SAID_OTHERWISE | {"model": OF_MODELS[model_type]}
    for name in (None, "PreTrainedTokenizerFast"):
        for what, parts in cases.items():
            folder = tmp_path / f"{name} {what}"
            write(folder, model_type, MAKE[model_type](), {} if name is None else {"tokenizer_class": name})
            change(folder, parts)
            agrees = hold_to_transformers(folder, model_type)
            assert agrees or (parts and (name is None or what == "added_tokens")), what


def test_tokens_of_a_class_that_the_vocabulary_lacks_are_not_added(tmp_path: Path) -> None:
    """There are no embeddings for them."""
    write(tmp_path, "camembert", unigram_tokenizer(), {})

    served = served_tokenizer(tmp_path, "camembert")
    assert served.left_out == ()
    assert largest_token_id(json.loads(served.content)) < unigram_tokenizer().get_vocab_size()


def test_a_token_that_camemberts_class_alone_knows_is_said(tmp_path: Path) -> None:
    """And no more where a file names the additional tokens, as the page says."""
    for named, agrees in ((None, False), (["<s>NOTUSED", "</s>NOTUSED"], True)):
        config = {} if named is None else {"additional_special_tokens": named}
        write(tmp_path, "camembert", camembert_tokenizer(), config)
        added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
        change(tmp_path, {"added_tokens": [each for each in added if each["content"] != "<unk>NOTUSED"]})

        assert hold_to_transformers(tmp_path, "camembert") == agrees
        assert all("<unk>NOTUSED" in said for said in served_tokenizer(tmp_path, "camembert").left_out)


def test_added_tokens_without_embeddings_are_left_out_and_said(tmp_path: Path) -> None:
    tokenizer = gemma_tokenizer()
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<new{number}>" for number in range(4)])
    write(tmp_path, "gemma3_text", tokenizer, {})
    text = "a <new0> b"
    assert max(tokenizer.encode(text).ids) == size

    assert served_tokenizer(tmp_path, "gemma3_text", vocabulary=size + 4).left_out == ()
    served = served_tokenizer(tmp_path, "gemma3_text", vocabulary=size)

    assert served.left_out == (
        "the encoder has no embedding for <new0>, <new1>, <new2>, …: in text, that is no token",
    )
    assert max(Tokenizer.from_str(served.content).encode(text).ids) < size


def test_tokens_of_each_text_are_not_left_out(tmp_path: Path) -> None:
    """The export rejects them, as the encoder has no embeddings for them."""
    write(tmp_path, "qwen3", qwen_tokenizer(), {})
    end = qwen_tokenizer().token_to_id(END_OF_TEXT)

    served = served_tokenizer(tmp_path, "qwen3", vocabulary=end)

    assert largest_token_id(json.loads(served.content)) == end
    assert END_OF_TEXT not in served.left_out[0]


def test_dropout_is_off(tmp_path: Path) -> None:
    write(tmp_path, "roberta", bpe_tokenizer(), {"tokenizer_class": "PreTrainedTokenizerFast"})
    expected = ids_of(Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    change(tmp_path, {"model.dropout": 0.5})

    served = served_tokenizer(tmp_path, "roberta")
    assert ids_of(Tokenizer.from_str(served.content)) == expected
    assert served.left_out == ()


def test_a_file_that_is_followed_stays_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "bert", bert_tokenizer(), {})
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text() + "\n")

    assert served_tokenizer(tmp_path, "bert").content == path.read_text()


def test_a_vocabulary_that_the_class_cannot_take_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "bert", bert_tokenizer(), {"tokenizer_class": "XLMRobertaTokenizer"})

    with pytest.raises(CheckpointError, match="cannot be read as the tokenizer of XLMRobertaTokenizer"):
        served_tokenizer(tmp_path, "bert")

    change(tmp_path, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}})
    with pytest.raises(
        CheckpointError, match="cannot be read as the tokenizer of "
    ):  # here the library panics
        served_tokenizer(tmp_path, "bert")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("own", [None, "Left", "Right"])
def test_the_side_on_which_text_is_cut(own: str | None, side: str, tmp_path: Path) -> None:
    write(tmp_path, "bert", bert_tokenizer(), {"truncation_side": side})
    if own is not None:
        given = {"direction": own, "max_length": 5, "strategy": "LongestFirst", "stride": 0}
        change(tmp_path, {"truncation": given})

    served = json.loads(served_tokenizer(tmp_path, "bert").content)
    assert load_by_transformers(tmp_path).truncation_side == side
    assert (served["truncation"] or {"direction": "Right"})["direction"].lower() == side


def test_modernbert_reads_tokenizer_json_whatever_class_is_named(tmp_path: Path) -> None:
    write(tmp_path, "modernbert", bert_tokenizer(lowercase=False), {"tokenizer_class": "BertTokenizer"})

    assert hold_to_transformers(tmp_path, "modernbert")


def test_tokenizer_of_proteins(tmp_path: Path) -> None:
    """The file that docs/encoders.md makes of vocab.txt gives what `EsmTokenizer` reads from there."""
    script = block("docs/encoders.md", "# vocab.txt of ESM")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "esm"}))
    (tmp_path / "vocab.txt").write_text("\n".join(PROTEIN))
    proteins = ["MKTAYIAK", "M K T", "MKJT", "mkt AV", "M<mask>K", "A.-B<eos>", "", "MK  JJ\tL<pad>"]
    theirs = load_by_transformers(tmp_path)
    expected = [theirs(protein)["input_ids"] for protein in proteins]

    exec(script.replace("FOLDER", str(tmp_path)), {})

    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [made.encode(protein).ids for protein in proteins] == expected
    check_tokenizer(tmp_path, "esm")
    fast = load_by_transformers(tmp_path)
    assert [fast(protein)["input_ids"] for protein in proteins] == expected
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer_class must be one of .* was 'EsmTokenizer'"):
        check_tokenizer(tmp_path, "esm")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("model_type", ["bert", "camembert", "gemma3_text", "mpnet", "qwen3"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"bos_token": "<new>"}),
        (
            "tokenizer_config.json",
            {"eos_token": {"__type": "AddedToken", "content": "<new>", "lstrip": True}},
        ),
        ("tokenizer_config.json", {"image_token": "<new>"}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<new>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<new>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"query_token": "<new>"}}),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": "<s>", "1": "<new>"}, "mask_token": "<new>"},
        ),
        ("special_tokens_map.json", {"additional_special_tokens": ["<new>"]}),
        ("special_tokens_map.json", {"cls_token": {"content": "<new>", "lstrip": True}}),
        ("added_tokens.json", {"<new>": 7}),
    ],
)
def test_every_place_that_names_tokens(
    name: str, content: dict[str, Any], model_type: str, known: bool, tmp_path: Path
) -> None:
    tokenizer = MAKE[model_type]()
    if known:
        tokenizer.add_special_tokens([AddedToken("<new>", rstrip=True)])
    size = tokenizer.get_vocab_size()
    content = {key: size if value == 7 else value for key, value in content.items()}
    if (decoder := content.get("added_tokens_decoder")) is not None:
        content["added_tokens_decoder"] = {
            number: {"content": token, "special": True, "single_word": True}
            for number, token in decoder.items()
        }
    write(tmp_path, model_type, tokenizer, {})
    path = tmp_path / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | content))

    agrees = hold_to_transformers(tmp_path, model_type)
    assert not agrees or known


def test_names_of_classes(tmp_path: Path) -> None:
    write(tmp_path, "bert", bert_tokenizer(lowercase=False), {"tokenizer_class": "FnordTokenizer"})
    with pytest.raises(
        CheckpointError, match=r"tokenizer_class must be one of AlbertTokenizer, .* was 'Fnord"
    ):
        check_tokenizer(tmp_path, "bert")

    write(tmp_path, "bert", bert_tokenizer(lowercase=False), {})
    (tmp_path / "config.json").write_text('{"model_type": "bert", "tokenizer_class": "TokenizersBackend"}')
    assert hold_to_transformers(tmp_path, "bert")


@pytest.mark.parametrize(
    ("config", "given"),
    [
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "ElectraTokenizerFast"}, True),
        ({"tokenizer_class": "DebertaV2Tokenizer"}, True),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, False),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "backend": "tokenizers"}, False),
        (
            {"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]},
            True,
        ),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, None),
    ],
)
def test_token_types_of_classes(config: dict[str, Any], given: bool | None, tmp_path: Path) -> None:
    of_words: dict[str, Any] = {
        "XLMRobertaTokenizer": unigram_tokenizer,
        "DebertaV2Tokenizer": deberta_tokenizer,
    }
    tokenizer = of_words.get(config["tokenizer_class"], bert_tokenizer)()
    write(tmp_path, "bert", tokenizer, config)

    assert gives_token_types(tmp_path, "bert") is given
    assert ("token_type_ids" in load_by_transformers(tmp_path)("a", "b")) == bool(given)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"truncation_side": "top"}, "truncation_side must be 'left' or 'right', was 'top'"),
        ({"split_special_tokens": True}, "split_special_tokens must be left out, was True"),
        ({"fast_tokenizer_files": ["tokenizer.4.json"]}, "fast_tokenizer_files must be left out, was"),
    ],
)
def test_what_is_not_supported_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, "bert", bert_tokenizer(), config)

    with pytest.raises(CheckpointError, match=message):
        check_tokenizer(tmp_path, "bert")


@pytest.mark.parametrize(
    ("model", "added", "largest"),
    [
        ({"vocab": {"a": 0, "b": 7}}, [], 7),
        ({"vocab": {"a": 0}}, [{"content": "<x>", "id": 3}], 3),
        ({"vocab": [["a", 0.0], ["b", -1.0]]}, [], 1),
        ({}, [], -1),
    ],
)
def test_largest_token_id(model: dict[str, Any], added: list[Any], largest: int) -> None:
    assert largest_token_id({"model": model, "added_tokens": added}) == largest
