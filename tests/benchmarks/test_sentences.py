"""The sentences on which encoders are compared."""

from sentences import some_sentences, split_sentences


def test_sentences_of_a_page() -> None:
    prose = "A first [sentence](there.md) of\nprose. Short."
    page = f"# Title that is long enough\n\n{prose}\n\n```sh\nnot this one\n```\n| nor | this |"

    assert split_sentences(page) == ["A first sentence of prose."]


def test_they_differ_and_are_the_same_every_time() -> None:
    some = some_sentences(50)

    assert len(set(some)) == 50
    assert some == some_sentences(50)
