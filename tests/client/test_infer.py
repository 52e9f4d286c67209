"""`polyhead infer`, as people and programs call it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.conftest import FakeServer, read_bytes

from polyhead_client.command import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, fake: FakeServer) -> None:
    monkeypatch.setenv("POLYHEAD_INFER_ADDRESS", fake.target)
    monkeypatch.setenv("POLYHEAD_INFER_MODEL", "words")
    monkeypatch.setenv("COLUMNS", "100")


def as_json(capsys: Captured, *arguments: str) -> Any:
    assert main(["infer", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sentence_comes_out_as_a_table(capsys: Captured) -> None:
    assert main(["infer", "the cat saw the dog", "--attention", "1", "--heads", "2"]) == 0

    printed = capsys.readouterr().out
    assert "words.attention, version 1" in printed
    assert re.search(r"tokens +7 +\[CLS\] the cat saw the dog \[SEP\]", printed)
    assert re.search(r"output +\[7, 4\]", printed)
    assert re.search(r"pooled +\[4\] +25\.0000", printed)
    assert "layer 1: strongest edges" in printed
    assert "without edges from and to [CLS] and [SEP]; --special shows them" in printed
    (line,) = re.findall(r"(?m)^ +2 +(\S.*)$", printed)
    assert re.fullmatch(r"(\S+ → \S+ 0\.\d\d(   )?){3}", line.strip())
    assert "[CLS] →" not in printed
    assert "the@1" in printed
    assert re.search(
        r"ms in all; in the server: parse 0\.00, queue 0\.00, compute 0\.00, serialise 0\.00", printed
    )


def test_tokens_are_never_markup(capsys: Captured) -> None:
    assert main(["infer", "[red]the [/red] cat", "--attention", "0"]) == 0
    assert "[red]the [/red] cat" in capsys.readouterr().out


def test_control_characters_are_escaped(capsys: Captured) -> None:
    assert main(["infer", "the \x1b[31mcat\x9b1m"]) == 0
    with pytest.raises(SystemExit):
        main(["infer", "-\x1b[31m"])
    assert main(["infer", "--input", "no\x1b[31m.npy"]) == 1

    printed = capsys.readouterr()
    assert r"the \x1b[31mcat\x9b1m" in printed.out
    assert r"-\x1b[31m" in printed.err
    assert r"no\x1b[31m.npy" in printed.err
    assert not re.search(r"[\x1b\x9b]", printed.out + printed.err)


def test_boundary_tokens_are_shown_when_asked_for(capsys: Captured) -> None:
    def edges(*more: str) -> Any:
        return as_json(capsys, "the cat", "--attention", "0", "--top", "16", *more)["sequences"][0][
            "attention"
        ]["0"]

    assert {edge["query_token"] for edge in edges()} == {"the", "cat"}
    assert len(edges()) == 3 * 4
    assert {edge["key_token"] for edge in edges("--special")} == {"[CLS]", "the", "cat", "[SEP]"}
    assert len(edges("--special")) == 3 * 16


def test_json_is_complete(capsys: Captured) -> None:
    answer = as_json(capsys, "the cat", "dog", "--attention", "-1", "--heads", "0,2", "--top", "1")

    assert answer["format"] == 1
    assert (answer["model"], answer["version"]) == ("words.attention", "1")
    assert answer["timings_ns"].keys() == {"total", "parse", "tokenise", "queue", "compute", "serialise"}
    assert answer["timings_ns"]["compute"] == 3000
    first, second = answer["sequences"]
    assert first.keys() == {
        "text",
        "length",
        "tokens",
        "output_shape",
        "pooled",
        "logits",
        "attention",
        "cross_attention",
        "scores",
    }
    assert (first["text"], first["length"], first["output_shape"]) == ("the cat", 4, [4, 4])
    assert first["tokens"] == ["[CLS]", "the", "cat", "[SEP]"]
    assert first["pooled"] == [16.0] * 4
    assert [edge["head"] for edge in first["attention"]["1"]] == [0, 2]
    (edge, _) = second["attention"]["1"]
    assert edge.keys() == {"head", "query", "key", "query_token", "key_token", "weight"}
    assert (edge["query"], edge["key"], edge["query_token"]) == (1, 1, "dog")


@pytest.fixture
def insight(fake: FakeServer) -> None:
    fake.graphs = ["", "attention", "insight"]


@pytest.mark.usefixtures("insight")
def test_a_score_of_all_heads_is_a_table(capsys: Captured) -> None:
    assert main(["infer", "the cat", "a dog", "--scores", "entropy", "--heads", "2,0"]) == 0

    printed = capsys.readouterr().out
    assert printed.count("entropy of each head") == 2
    assert re.search(r"layer +2 +0 *\n", printed)
    assert len(re.findall(r"(?m)^ +[01] +\d\.\d\d +\d\.\d\d *$", printed)) == 4


@pytest.mark.usefixtures("insight")
def test_a_score_is_whole_on_a_narrow_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")

    assert main(["infer", "the cat", "--scores", "entropy"]) == 0

    _, table = capsys.readouterr().out.split("entropy of each head")
    assert len(re.findall(r"\b\d\.\d\d\b", table.partition("ms in")[0])) >= 2 * 3
    assert "…" not in table


@pytest.mark.usefixtures("insight")
def test_scores_are_written(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    one, all_ = (
        as_json(capsys, "the cat", "--scores", name, "--npz", str(path))["sequences"][0]["scores"]
        for name in ("entropy", "all")
    )

    assert list(all_) == ["previous", "entropy", "confidence"]
    assert one == {"entropy": all_["entropy"]}
    assert {layer: len(row) for layer, row in all_["entropy"].items()} == {"0": 3, "1": 3}
    with np.load(path) as arrays:
        np.testing.assert_allclose(arrays["scores.entropy"][0, 1], all_["entropy"]["1"])
        np.testing.assert_array_equal(arrays["weighted_scores.entropy"], -arrays["scores.entropy"])


def test_sentences_come_from_the_standard_input(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n\n  a dog \n"))

    answer = as_json(capsys, "first", "-")

    assert [sequence["text"] for sequence in answer["sequences"]] == ["first", "the cat", "a dog"]


def test_the_second_texts_of_pairs_go_with_the_sentences(capsys: Captured, fake: FakeServer) -> None:
    metadata = fake.answers["ModelMetadata"]

    def with_pairs(request: Any, context: Any) -> Any:
        reply = metadata(request, context)
        reply.inputs.add(name="text_pair", datatype="BYTES", shape=[-1])
        return reply

    fake.answers["ModelMetadata"] = with_pairs
    as_json(capsys, "who", "where", "--text-pair", "the cat", "--text-pair", "- here")

    request = fake.last("ModelInfer")
    assert [tensor.name for tensor in request.inputs] == ["text", "text_pair"]
    assert [read_bytes(raw) for raw in request.raw_input_contents] == [
        ["who", "where"],
        ["the cat", "- here"],
    ]


def test_a_sentence_may_begin_with_a_hyphen_but_a_misspelt_option_is_none(capsys: Captured) -> None:
    assert as_json(capsys, "- the cat")["sequences"][0]["text"] == "- the cat"

    with pytest.raises(SystemExit) as exited:
        main(["infer", "the cat", "--atention"])
    assert exited.value.code == 2
    assert 'Unknown option: "--atention".' in (said := capsys.readouterr().err)
    assert "(" not in said  # no tuple of all texts


@pytest.mark.parametrize(("shape", "lengths"), [((3, 4), [3]), ((2, 3, 4), [3, 3])])
def test_vectors_come_from_a_file(
    capsys: Captured, tmp_path: Path, shape: tuple[int, ...], lengths: list[int]
) -> None:
    np.save(tmp_path / "x.npy", np.full(shape, np.nan, np.float32))

    answer = as_json(capsys, "--input", str(tmp_path / "x.npy"), "--model", "vectors", "--attention", "all")

    assert [sequence["length"] for sequence in answer["sequences"]] == lengths
    first = answer["sequences"][0]
    assert (first["text"], first["tokens"], first["pooled"]) == (None, None, None)
    assert first["attention"].keys() == {"0", "1"}
    assert first["attention"]["0"][0]["query_token"] is None


def test_without_tokens_the_table_has_positions(capsys: Captured, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([5, 6, 7]))

    assert main(["infer", "--input", str(tmp_path / "ids.npy"), "--attention", "0"]) == 0

    printed = capsys.readouterr().out
    assert "sequence 0" in printed
    assert re.search(r"\d → \d 0\.\d\d", printed)


def test_numbers_that_json_does_not_have_are_null(capsys: Captured, fake: FakeServer) -> None:
    infer = fake.answers["ModelInfer"]

    def broken(request: Any, context: Any) -> Any:
        reply = infer(request, context)
        at = [output.name for output in reply.outputs].index("pooled")
        reply.raw_output_contents[at] = np.array([np.nan, np.inf, 1, 2], "<f4").tobytes()
        return reply

    fake.answers["ModelInfer"] = broken
    assert as_json(capsys, "a")["sequences"][0]["pooled"] == [None, None, 1.0, 2.0]


def test_arrays_go_to_a_file(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "all.npz"

    assert main(["infer", "the cat", "dog", "--attention", "0,1", "--heads", "0:2", "--npz", str(file)]) == 0

    with np.load(file) as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {
            "structure": (),
            "lengths": (2,),
            "pooled": (2, 4),
            "output.0": (4, 4),
            "output.1": (3, 4),
            "tokens.0": (4,),
            "tokens.1": (3,),
            "attention.0.0": (2, 4, 4),
            "attention.0.1": (2, 3, 3),
            "attention.1.0": (2, 4, 4),
            "attention.1.1": (2, 3, 3),
        }
        assert arrays["tokens.1"].tolist() == ["[CLS]", "dog", "[SEP]"]
    assert "the cat" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a sentence, - for the standard input, or --input FILE.npy"),
        (["a", "--input", "x.npy"], "give either sentences or --input, not both"),
        (["--input", "/nowhere/x.npy"], "/nowhere/x.npy: No such file or directory"),
        (["--input", __file__], f"--input must be an .npy file of numbers, {__file__} is none"),
        (["--input", "one.npy"], "--input must be an .npy file of sequences"),
        (["--input", "several.npz"], "--input must be an .npy file of one array"),
        (["a", "--scores", "fame"], "score must be one of previous, entropy, confidence, was 'fame'"),
        (["a", "--attention", "x"], "--attention must be indices such as 5, 0,3 or 0:4, was 'x'"),
        (
            ["a", "--attention", "2"],
            "attention must be layers that words.attention has (0, 1; in attention, -1 is the last), was",
        ),
        (["a", "--text-pair", "b", "--text-pair", "c"], "text_pair must be a list of 1 texts, as the inputs"),
        (["a", "--npz", "x.zip"], "--npz must be a file that ends with .npz, was x.zip"),
        (["a", "--address", "127.0.0.1:1"], "127.0.0.1:1 is unavailable: "),
        (
            ["a", "--attention", "0", "--heads", "0:99999999999"],
            "--heads must be indices such as 5, 0,3 or 0:4, was '0:99999999999'; there can be no more than",
        ),
    ],
)
@pytest.mark.usefixtures("insight")
def test_what_cannot_be_done_is_said_in_one_line(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.array(3))
    np.savez("several.npz", a=np.zeros(1), b=np.zeros(1))

    assert main(["infer", *arguments]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"polyhead infer: {message}")
    assert captured.err.count("\n") == 1


def test_shapes_stand_on_one_line(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))

    assert main(["infer", "--input", str(tmp_path / "x.npy"), "--model", "vectors", "--attention", "0"]) == 0

    printed = capsys.readouterr().out
    assert re.search(r"(?m)^ *output +\[3, 4\] *$", printed)
    assert re.search(r"(?m)^ *attention\.0 +\[3, 3, 3\] *$", printed)
