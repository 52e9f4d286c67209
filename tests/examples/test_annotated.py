"""Annotations name words that are there, and what is said of heads is counted as it is told."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from annotated import Annotated, between_words, compare_with_offsets, read_annotated

RELATIONS = {
    "subject",
    "object",
    "determiner",
    "adjective",
    "auxiliary",
    "object of a preposition",
    "possessive",
    "coreference",
}
DETERMINERS = {"a", "an", "any", "every", "some", "the"}
AUXILIARIES = {"can", "could", "had", "has", "have", "may", "might", "must", "should", "will", "would"}
POSSESSIVES = {"her", "his", "its", "my", "our", "their"}
PERSONAL = {"he", "her", "him", "his", "it", "its", "she", "their", "them", "they"}


def dependents(sentence: Annotated, relation: str) -> set[str]:
    return {sentence.word(word).lower() for _, word in sentence.pairs.get(relation, ())}


def test_sentences_are_short_and_all_different() -> None:
    sentences = read_annotated()
    assert len({sentence.text for sentence in sentences}) == len(sentences) > 40
    assert {relation for sentence in sentences for relation in sentence.pairs} == RELATIONS
    for sentence in sentences:
        assert 8 <= len(sentence.words) <= 15
        assert [sentence.word(number) for number in range(len(sentence.words))] == re.findall(
            r"\w+", sentence.text
        )


def test_words_of_closed_classes_are_annotated_as_such_and_none_is_left_out() -> None:
    for sentence in read_annotated():
        assert dependents(sentence, "determiner") <= DETERMINERS
        assert dependents(sentence, "auxiliary") <= AUXILIARIES
        assert dependents(sentence, "possessive") <= POSSESSIVES
        found = [sentence.word(number).lower() for number in range(len(sentence.words))]
        for relation, words in (("determiner", {"a", "an", "the"}), ("auxiliary", AUXILIARIES)):
            assert len(sentence.pairs.get(relation, ())) >= sum(word in words for word in found), (
                sentence.text
            )
        pronouns = {sentence.word(number).lower() for number, _ in sentence.pairs.get("coreference", ())}
        assert pronouns <= PERSONAL
        for pronoun, antecedent in sentence.pairs.get("coreference", ()):
            assert antecedent < pronoun
            assert antecedent in sentence.nouns()


def test_pairs_join_different_words_once() -> None:
    for sentence in read_annotated():
        for pairs in sentence.pairs.values():
            assert len(set(pairs)) == len(pairs)
            assert all(head != dependent for head, dependent in pairs)
        one_head = [pairs for relation, pairs in sentence.pairs.items() if relation != "coreference"]
        heads = [dependent for pairs in one_head for _, dependent in pairs]
        assert len(set(heads)) == len(heads), f"a word has two heads in {sentence.text!r}"


def test_a_pair_whose_word_is_missing_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "annotated.json"
    path.write_text('[{"text": "The hen ran.", "determiner": ["hen > The:2"]}]')
    with pytest.raises(ValueError, match=r"must name words of its sentence, was 'The:2' in 'The hen ran\.'"):
        read_annotated(path)


def test_words_get_the_sum_of_their_tokens_and_give_the_mean() -> None:
    generator = torch.Generator().manual_seed(3)
    attention = torch.rand(2, 3, 5, 5, generator=generator)
    offsets = [(0, 0), (0, 2), (2, 5), (6, 9), (9, 10)]  # [CLS], two tokens of a word, a word, a full stop
    found = between_words(attention, offsets, [(0, 5), (6, 9)])
    assert list(found.shape) == [2, 3, 2, 2]
    assert found[1, 2, 0, 1].item() == pytest.approx(attention[1, 2, 1:3, 3].mean().item())
    assert found[1, 2, 1, 0].item() == pytest.approx(attention[1, 2, 3, 1:3].sum().item())
    assert found[0, 1, 0, 0].item() == pytest.approx(attention[0, 1, 1:3, 1:3].sum(1).mean().item())


def map_of(sentence: Annotated, relation: str, *, reverse: bool) -> Tensor:
    """Two layers of two heads: 1.0 looks at the relation, but most at the word itself, as the others do."""
    maps = torch.eye(len(sentence.words)).repeat(2, 2, 1, 1)
    for pair in sentence.pairs.get(relation, ()):
        start, end = reversed(pair) if reverse else pair
        maps[1, 0, start, end] = 0.4
    return maps


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_a_head_that_knows_a_relation_is_always_right(relation: str, reverse: bool) -> None:
    sentences = read_annotated()
    maps = [map_of(sentence, relation, reverse=reverse) for sentence in sentences]
    found = compare_with_offsets(sentences, maps, relation, reverse=reverse)
    ends = [
        (number, pair[reverse])
        for number, each in enumerate(sentences)
        for pair in each.pairs.get(relation, ())
    ]
    assert found.pairs == len(set(ends))
    assert found.head == pytest.approx(1)
    assert found.gain[0] <= 1 - found.offset <= found.gain[1]
    assert found.offset < 1 or found.gain == (0, 0)


def test_a_head_that_is_only_as_good_as_an_offset_gains_nothing() -> None:
    sentences = read_annotated()
    maps = [torch.eye(len(sentence.words)).roll(1, 1)[None, None] for sentence in sentences]  # the next word
    found = compare_with_offsets(sentences, maps, "determiner", reverse=True)
    assert found.head == found.offset > 0.5
    assert found.gain == (0, 0)
