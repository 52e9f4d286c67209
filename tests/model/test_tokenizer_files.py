"""A tokenizer's files against what `transformers` makes of them."""

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
    gpt2_tokenizer,
    mpnet_tokenizer,
    roberta_tokenizer,
    write_tokenizer_files,
)
from tests.pages import block
from tokenizers import Tokenizer, processors

from polyhead_model import CheckpointError
from polyhead_model.tokenizer_files import check_tokenizer, largest_token_id

TEXTS = [
    "The Cat",
    "the cat",
    "Café CAFÉ cafe\u0301",
    "日本 cat",
    "日本語",
    "a <mask> b [MASK] c [PAD] d <pad>",
    " the cat ",
    "",
    "x<new>y",
    "``cat'' \" a",
    END_OF_TEXT,
]


def write(folder: Path, model_type: str, tokenizer: Tokenizer, config: dict[str, Any] | None) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    write_tokenizer_files(folder, model_type, tokenizer, config)


def ids_by_file(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    return [tokenizer.encode(text).ids for text in TEXTS]


def load_by_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def ids_by_transformers(folder: Path) -> list[list[int]]:
    tokenizer = load_by_transformers(folder)
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def hold_to_transformers(folder: Path, model_type: str) -> bool:
    """See that a folder passes if, and only if, it tokenises as transformers does; tell whether it does."""
    expected = ids_by_transformers(folder)
    if ids_by_file(folder) == expected:
        check_tokenizer(folder, model_type)
        return True
    with pytest.raises(CheckpointError):
        check_tokenizer(folder, model_type)
    # What the message advises helps.
    load_by_transformers(folder).save_pretrained(folder)
    check_tokenizer(folder, model_type)
    assert ids_by_file(folder) == expected
    return False


BERT_CLASSES = [None, "BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"]


@pytest.mark.parametrize(
    ("model_type", "name"),
    [*(("bert", name) for name in BERT_CLASSES), ("distilbert", None), ("electra", "BertTokenizerFast")],
)
def test_flags_of_berts_normalizer(model_type: str, name: str | None, tmp_path: Path) -> None:
    passed = []
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
            folder.mkdir()
            write(
                folder,
                model_type,
                tokenizer,
                {key: value for key, value in said.items() if value is not None},
            )
            passed.append(hold_to_transformers(folder, model_type))
    assert passed.count(True) >= 12  # those that say what they do
    assert all(passed) == (name == "PreTrainedTokenizerFast")


def test_a_folder_without_a_configuration_of_its_tokenizer(tmp_path: Path) -> None:
    for lower in (True, False):
        folder = tmp_path / str(lower)
        folder.mkdir()
        write(folder, "bert", bert_tokenizer(lowercase=lower), None)
        assert hold_to_transformers(folder, "bert") == lower


ROBERTA_CLASSES = [None, "RobertaTokenizer", "RobertaTokenizerFast", "PreTrainedTokenizerFast"]
PREFIX, LOWER = "add_prefix_space", "do_lower_case"


@pytest.mark.parametrize(
    ("model_type", "name", "make", "flag"),
    [
        *(("roberta", name, roberta_tokenizer, PREFIX) for name in ROBERTA_CLASSES),
        ("gpt2", "GPT2Tokenizer", gpt2_tokenizer, PREFIX),
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


@pytest.mark.parametrize("pair", ["<s> $A </s> </s> $B </s>", "<s> $A </s> $B </s>"])
@pytest.mark.parametrize("single", ["<s> $A </s>", "$A </s>"])
def test_special_tokens_of_mpnet_are_fixed(single: str, pair: str, tmp_path: Path) -> None:
    tokenizer = mpnet_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    write(tmp_path, "mpnet", tokenizer, {"tokenizer_class": "MPNetTokenizer"})

    if single[0] == "<" and pair.count("</s>") == 3:
        check_tokenizer(tmp_path, "mpnet")
        assert ids_by_file(tmp_path) == ids_by_transformers(tmp_path)
    else:
        with pytest.raises(CheckpointError, match="stands for the special tokens '<s> A </s>' and"):
            check_tokenizer(tmp_path, "mpnet")


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
    with pytest.raises(CheckpointError, match=r"EsmTokenizer reads vocab\.txt instead"):
        check_tokenizer(tmp_path, "esm")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"bos_token": "<new>"}),
        ("tokenizer_config.json", {"eos_token": {"__type": "AddedToken", "content": "<new>"}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<new>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<new>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"query_token": "<new>"}}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<new>"]}),
        ("added_tokens.json", {"<new>": 7}),
    ],
)
def test_every_place_that_names_tokens(
    name: str, content: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    tokenizer = bert_tokenizer()
    if known:
        tokenizer.add_special_tokens(["<new>"])
        content = {key: tokenizer.token_to_id(key) if value == 7 else value for key, value in content.items()}
    write(tmp_path, "bert", tokenizer, {})
    (tmp_path / name).write_text(json.dumps(content))

    if not known:
        with pytest.raises(CheckpointError, match=f"{name}: adds the token '<new>'"):
            check_tokenizer(tmp_path, "bert")
    assert hold_to_transformers(tmp_path, "bert") == known


@pytest.mark.parametrize(
    ("config", "tokenizer", "message"),
    [
        (
            {},
            {"normalizer": {"type": "BertNormalizer", "lowercase": False}},
            r"do_lower_case is true \(what transformers takes where it is not given\), but",
        ),
        (
            {},
            {"normalizer": {"type": "NFC"}},
            "the normalizer must be a BertNormalizer, .* was NFC: make the two .*save_pretrained",
        ),
        ({"truncation_side": "left"}, {}, "truncation_side must be 'right', was 'left'"),
        ({}, {"truncation": {"direction": "Left"}}, "truncation_side must be 'right', was 'left'"),
        ({"split_special_tokens": True}, {}, "split_special_tokens must be false, was true"),
    ],
)
def test_contradictions_are_refused(
    config: dict[str, Any], tokenizer: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, "bert", bert_tokenizer(), config)
    path = tmp_path / "tokenizer.json"
    check = json.loads(path.read_text()) | tokenizer
    path.write_text(json.dumps(check))

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
