"""Which tokens are separators, and which punctuation."""

import json
from typing import Any

from tests.checkpoints import bert_template
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from polyhead_model.insight.token_classes import token_classes


def classes_of(tokenizer: Tokenizer) -> dict[str, set[str | None]]:
    contents: dict[str, Any] = json.loads(tokenizer.to_str())
    return {
        each.name: {tokenizer.id_to_token(number) for number in each.ids} for each in token_classes(contents)
    }


def word_piece(*words: str) -> Tokenizer:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def test_a_template() -> None:
    tokenizer = word_piece("cat", ".", "##.", "...", "##s", "#", "##", "a.", "$", "—", "日", "1")
    tokenizer.post_processor = bert_template()

    assert classes_of(tokenizer) == {
        "separator": {"[SEP]"},
        "punctuation": {".", "##.", "...", "#", "##", "$", "—"},
    }


def test_bert_processing_in_a_sequence() -> None:
    tokenizer = word_piece("cat")
    tokenizer.post_processor = processors.Sequence(
        [processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), processors.ByteLevel()]
    )

    assert classes_of(tokenizer) == {"separator": {"[SEP]"}}


def test_byte_level_words_are_decoded() -> None:
    """Each character of such a word stands for a byte: Ġ for the space, âĢľ for “."""
    words = ["<s>", "</s>", "Ġ", ".", "Ġ.", "âĢľ", "ĠâĢľ", "âĢ", "Ġcat", "!!"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer.add_special_tokens(["<s>", "</s>"])

    assert classes_of(tokenizer) == {"separator": {"</s>"}, "punctuation": {".", "Ġ.", "âĢľ", "ĠâĢľ", "!!"}}


def test_sentence_pieces() -> None:
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("▁,", -1.0), ("▁the", -2.0), ("?", -2.0)], 0)
    )

    assert classes_of(tokenizer) == {"punctuation": {"▁,", "?"}}


def test_contents_that_are_no_tokenizer_have_no_classes() -> None:
    for contents in (
        {},
        {"model": 3, "post_processor": [], "added_tokens": {}},
        {"model": {"vocab": [3, [], ["."]]}},
    ):
        assert [each.name for each in token_classes(contents)] in ([], ["punctuation"])
