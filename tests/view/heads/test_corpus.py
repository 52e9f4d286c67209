"""Reading a file of texts."""

from pathlib import Path

import pytest

from polyhead_client import InvalidRequest
from polyhead_view.heads.corpus import read_corpus


def test_blank_lines_are_left_out_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("\ufeffone\r\n\n  two\u2028still two \n\t\n猫 <b>$x$</b>".encode())

    corpus = read_corpus(path)

    assert corpus.texts == ["one", "two\u2028still two", "猫 <b>$x$</b>"]
    assert corpus.lines == [1, 3, 5]
    assert corpus.located("text[1] must be short, and text[2]") == "line 3 must be short, and line 5"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "must have texts, one a line, .* has none"),
        (b"\n \n\t\r\n", "must have texts, one a line, .* has none"),
        (b"\x89PNG\r\n\x1a\n\xff", "must be UTF-8 text, .* is not: invalid start byte"),
        (b"\x00\x01\x02", "must be UTF-8 text, .* is binary"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, error: str) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(data)

    with pytest.raises(InvalidRequest, match=error):
        read_corpus(path)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_corpus(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read_corpus(tmp_path)


def test_the_sentences_of_the_examples_are_a_corpus() -> None:
    texts = read_corpus(Path(__file__).parents[3] / "examples" / "sentences.txt").texts

    assert len(texts) == len(set(texts)) == 300
