"""`polyhead export` as a user calls it."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import OTHER_PROMPTS, sentence_transformer, write_checkpoint
from tests.exports import manifest_of

from polyhead_export import (
    Built,
    Closeness,
    Drift,
    Errors,
    ExportedFamily,
    ExportError,
    Parity,
    ParityError,
    TokenizerFile,
)
from polyhead_export.command import app, print_exported, print_next
from polyhead_export.options import ExportOptions
from polyhead_model import CheckpointError, DescriptionError

Captured = pytest.CaptureFixture[str]


def export(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


@pytest.mark.slow
def test_a_family_for_each_head_count(tmp_path: Path, capsys: Captured) -> None:
    export("--preset", "teaching", "--heads", "1,8", "--layers", "1", "--models", tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["teaching-h1", "teaching-h8"]
    manifest = manifest_of(tmp_path / "teaching-h8" / "1")
    assert (manifest["encoder"]["heads"], manifest["encoder"]["d_model"]) == (8, 256)
    said = capsys.readouterr()
    assert "teaching-h1" in said.out
    assert said.out.count("263,168") == 2  # the heads of a width have the same parameters
    assert "comparing the attention graph with PyTorch" in said.err

    # What is there stays, without work and without a complaint.
    export("--preset", "teaching", "--heads", "1,8", "--models", tmp_path, "--if-exists", "skip")
    assert manifest_of(tmp_path / "teaching-h8" / "1") == manifest
    assert "teaching-h1: version 1 is there already" in capsys.readouterr().err

    with pytest.raises(
        ExportError, match=r"version 1 of teaching-h8 exists already .* --if-exists skip, replace or add"
    ):
        export("--preset", "teaching", "--heads", "2,8", "--models", tmp_path)
    assert not (tmp_path / "teaching-h2").exists()


@pytest.mark.slow
def test_a_family_for_each_number_of_key_and_value_heads_and_for_widths(tmp_path: Path) -> None:
    arguments = ("--preset", "teaching", "--heads", "8/2,128+64+64", "--layers", "1", "--models", tmp_path)
    export(*arguments)

    encoders = {path.name: manifest_of(path / "1")["encoder"] for path in tmp_path.iterdir()}
    assert sorted(encoders) == ["teaching-h8-g2", "teaching-w128-64-64"]
    assert (encoders["teaching-h8-g2"]["heads"], encoders["teaching-h8-g2"]["kv_heads"]) == (8, 2)
    assert encoders["teaching-w128-64-64"]["head_widths"] == [[128, 64, 64]]
    export(*arguments, "--if-exists", "skip")  # by the same names


def test_the_table_fits_80_columns_and_explains_itself(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    closeness = Closeness(graph=Errors(1e-7, 1.5e-6), pytorch=Errors(1e-7, 2.2e-6))
    drift = Drift(deviations={"fast": {"output": 0.0421}}, emulated=True, inputs="random inputs")
    (tmp_path / "manifest.json").write_text('{"numbers": {"parameters": 33360000}}')
    parity = Parity(sizes=(), outputs={"fast": {"output": closeness}}, neighbours={}, drift=drift)

    print_exported([ExportedFamily(name="bge-small-int8", version=12, folder=tmp_path, parity=parity)], [])
    print_next(Path("my models"))

    said = capsys.readouterr()
    lines = said.out.splitlines()
    for words in (
        ("PyTorch's", "off fp32"),
        ("family", "parameters", "MB", "error", "error", "by"),
        ("bge-small-int8 v12", "33,360,000", "0.0", "1.5e-06", "2.2e-06", "4.2e-02"),
    ):
        assert any(all(word in line for word in words) for line in lines)
    assert max(map(len, lines)) <= 80
    assert "error: the largest deviation from float64" in said.out
    assert said.err == "next: polyhead serve --models 'my models'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --preset, --checkpoint or --encoder"),
        (
            ["--preset", "teaching", "--checkpoint", "somewhere"],
            "give either --preset, --checkpoint or --encoder",
        ),
        (["--encoder", "somewhere"], "--encoder needs a --name"),
        (
            ["--checkpoint", "somewhere", "--name", "x", "--heads", "2"],
            "a checkpoint or a description is exported as it is",
        ),
        (["--preset", "teaching", "--no-prompt"], "--no-prompt and --task are for a checkpoint"),
        (["--preset", "teaching", "--task", "query"], "--no-prompt and --task are for a checkpoint"),
        (["--preset", "teaching", "--pooling", "cls"], "--pooling, .* are for a checkpoint"),
        (["--preset", "teaching", "--graphs", "rows,row"], "graphs must be some of fast, .*, was 'row'"),
        (["--preset", "bert-bass"], "must be one of .*, was 'bert-bass'; did you mean 'bert-base'?"),
        (["--preset", "teaching", "--heads", "2,2"], "--heads must differ from each other, were 2, 2"),
        (["--preset", "teaching", "--heads", "4,4/8"], r"--heads cannot be 4/8 here: kv_heads must divide"),
        (
            ["--preset", "gpt3", "--layers", "96"],
            r"57,986,777,088 parameters takes about [\d,]{15} bytes of memory \(.* GiB are free: "
            "export it on a larger machine, or with fewer layers",
        ),
        (["--preset", "teaching", "--name", "a.b"], "must start with a letter or digit"),
        (["--checkpoint", "somewhere", "--name", "../x"], r"must start with a letter .*, was '\.\./x'"),
    ],
)
def test_refusals_leave_nothing(arguments: list[str], message: str, tmp_path: Path, capsys: Captured) -> None:
    models = tmp_path / "models"

    with pytest.raises(ExportError, match=message):
        export(*arguments, "--models", models)

    assert not models.exists()
    assert "building" not in capsys.readouterr().err


@pytest.mark.slow
def test_what_of_a_checkpoint_is_not_served_is_said(tmp_path: Path, capsys: Captured) -> None:
    folder, models = tmp_path / "chooser", tmp_path / "models"
    write_checkpoint(folder, "bert", head="ForMultipleChoice")
    (folder / "tokenizer.json").rename(folder / "vocab.txt")
    arguments = ("--checkpoint", folder, "--name", "mine", "--models", models, "--head-mask")

    with pytest.raises(ExportError, match="with --strict, all of a checkpoint must be served, but the task"):
        export(*arguments, "--strict")
    assert not models.exists()
    capsys.readouterr()

    export(*arguments, "--pooling", "weighted_mean", "--normalise")

    lines = capsys.readouterr().err.splitlines()
    sentences = [
        "the task head is not served (classifier.bias, classifier.weight)",
        "text is not served, only token ids: there is no tokenizer.json; transformers makes one of "
        "vocab.txt: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
    ]
    assert [f"mine: {sentence}" for sentence in sentences] == [line for line in lines if "not served" in line]
    manifest = manifest_of(models / "mine" / "1")
    assert (manifest["left_out"], manifest["tokenizer"]) == (sentences, None)
    encoder = manifest["encoder"]
    assert encoder["head_mask_input"]
    assert (encoder["pooling"], encoder["normalise"]) == ("weighted_mean", True)


@pytest.mark.slow
def test_a_classifier_is_served(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "classifier"
    write_checkpoint(folder, "bert", head="ForSequenceClassification", id2label={0: "no", 1: "yes"})
    arguments = ("--checkpoint", folder, "--name", "mine", "--models", tmp_path / "models")

    export(*arguments, "--strict")

    version = tmp_path / "models" / "mine" / "1"
    manifest = manifest_of(version)
    logits = {"name": "logits", "datatype": "FP32", "axes": ["B", "C"], "role": "logits"}
    for graph in manifest["graphs"].values():
        assert {**logits, "labels": ["no", "yes"], "scores": "softmax"} in graph["outputs"]
        assert "pooled" not in [tensor["name"] for tensor in graph["outputs"]]
    assert manifest["sizes"]["C"] == 2
    assert (manifest["tokenizer"]["types"], manifest["tokenizer"]["pairs"]) == (True, False)
    assert 'name: "logits" data_type: TYPE_FP32 dims: [2]' in (version.parent / "config.pbtxt").read_text()
    assert (
        "mine: single texts are served, not pairs: tokenizer_config.json must say in model_input_names"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "prompt"),
    [([], "[query] "), (["--no-prompt"], ""), (["--prompt", "passage"], "a passage: ")],
)
def test_a_default_prompt_is_said(
    flags: list[str],
    prompt: str,
    saved: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said before the export, which ends there."""
    given: list[TokenizerFile | None] = []

    def end(_: ExportOptions, built: Built, *__: Any, **___: Any) -> None:
        given.append(built.tokenizer)
        raise ExportError("ended here")

    monkeypatch.setattr(ExportOptions, "export", end)
    capsys.readouterr()

    with pytest.raises(ExportError, match="ended here"):
        export("--checkpoint", saved, "--name", "mine", "--models", tmp_path / "models", *flags)

    said = f"mine: each text gets the checkpoint's prompt before it: {prompt!r}" in capsys.readouterr().err
    assert said == bool(prompt)
    (tokenizer,) = given
    assert tokenizer is not None
    assert tokenizer.prompt == prompt
    assert {"mine": "[query] ", **OTHER_PROMPTS}.items() <= tokenizer.prompts.items()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "none", "--no-prompt"], "give --prompt or --no-prompt, not both"),
        (
            ["--prompt", "other"],
            r"the prompt must be one of prompts \(.*'mine'.*\), was 'other'",
        ),
        (["--pooling", "mean"], r"modules\.json says how to pool \(cls, normalised\)"),
    ],
)
def test_what_contradicts_a_checkpoint_is_refused(
    flags: list[str], message: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, CheckpointError), match=message):
        export("--checkpoint", saved, "--name", "mine", "--models", tmp_path / "models", *flags)

    assert not (tmp_path / "models").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers with prompts."""
    folder = tmp_path_factory.mktemp("saved")
    write_checkpoint(folder / "bare", "bert")
    model = sentence_transformer(folder / "bare", pooling="cls", normalise=True, prompt="[query] ")
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a text file in UTF-8: .*No such file"),
        (b"\xff\xfe", "must be a text file in UTF-8"),
        (b"\n \n", "must hold at least one sentence, one on each line"),
        (b"Yes.\nNo.\n", "sentences are for the ranges of pooled vectors, and for the drift of int8"),
    ],
)
def test_sentences_that_do_not_fit(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "sentences.txt"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ExportError, match=message):
        export(
            *("--preset", "teaching", "--layers", "1", "--precision", "int8", "--sentences", file),
            *("--models", tmp_path / "models"),
        )


@pytest.mark.slow
def test_a_description_in_16_bits(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "encoder.json"
    file.write_text('{"d_model": 12, "heads": 3, "head_width": 8, "layers": 1, "bias": false}')

    options = ("--graphs", "rows", "--attention-layers", "0", "--head-mask", "--precision", "bf16")
    export("--encoder", file, "--name", "described", "--models", tmp_path / "models", *options)

    manifest = manifest_of(tmp_path / "models" / "described" / "1")
    assert {"d_model": 12, "heads": 3, "head_width": 8, "bias": False}.items() <= manifest["encoder"].items()
    assert list(manifest["graphs"]) == ["fast", "attention", "rows"]
    assert manifest["precision"] == "bf16"
    assert "off fp32" in capsys.readouterr().out
    assert manifest["sizes"]["A"] == 1
    assert all(graph["inputs"][2]["name"] == "head_mask" for graph in manifest["graphs"].values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--encoder must be a JSON file, .* is none"),
        ("[]", "--encoder must hold a JSON object"),
        ('{"d_modell": 8}', "there is no field 'd_modell' of an encoder; did you mean 'd_model'?"),
        ('{"d_model": 8, "heads": 2}', "layers must be given"),
        ('{"d_model": 8, "heads": 2, "d_model": 4, "layers": 1}', "'d_model' must be given once"),
        ('{"d_model": 8, "heads": 3, "layers": 1}', r"d_model \(8\) must be a multiple of heads \(3\)"),
        ('{"d_model": "8", "heads": 2, "layers": 1}', "d_model must be an integer, was '8'"),
    ],
)
def test_descriptions_of_no_encoder_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "encoder.json"
    file.write_text(text)

    with pytest.raises(DescriptionError, match=message):
        export("--encoder", file, "--name", "described", "--models", tmp_path / "models")

    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_what_could_not_be_verified_is_added_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_for_attention(*arguments: Any) -> dict[str, Any]:
        if arguments[1].name == "attention":
            raise ParityError("attention.onnx: planted")
        return {}

    arguments = ("--preset", "teaching", "--heads", "1,2", "--layers", "1", "--models", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("polyhead_export.version.measure_neighbours", fails_for_attention)
        with pytest.raises(ExportError) as caught:
            export(*arguments)
    incomplete = {path.parent.parent.name for path in tmp_path.glob("*/1/model.onnx")}
    with pytest.raises(
        ExportError, match=r"version 1 of teaching-h1 in .* is without attention, .* give --if-exists add"
    ):
        export(*arguments, "--if-exists", "skip")
    export(*arguments, "--if-exists", "add")
    export(*arguments, "--if-exists", "skip")

    assert incomplete == {"teaching-h1", "teaching-h2"}
    assert "teaching-h2/1 was written without attention: fast agree with PyTorch" in str(caught.value)
    assert 'with --if-exists add, or if_exists="add", tries only attention, and keeps the others' in str(
        caught.value
    )
    for name in incomplete:
        assert (tmp_path / name / "1" / "attention.onnx").is_file()


def test_an_unfinished_copy_is_not_taken_for_an_export(tmp_path: Path) -> None:
    (tmp_path / "teaching" / "1").mkdir(parents=True)

    for named in ([], ["--name", "teaching"]):
        with pytest.raises(
            ExportError, match=r"version 1 of teaching .* not complete: give --if-exists replace"
        ):
            export("--preset", "teaching", *named, "--models", tmp_path, "--if-exists", "skip")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--heads", "1,two", "must be numbers of heads such as 1,2,4,8, .*, was '1,two'"),
        ("--seed", "-1", "--seed"),
    ],
)
def test_values_must_be_in_range(
    flag: str, value: str, message: str, tmp_path: Path, capsys: Captured
) -> None:
    with pytest.raises(SystemExit) as stopped:
        app(["--preset", "teaching", flag, value, "--models", str(tmp_path)])

    assert stopped.value.code != 0
    assert re.search(message, " ".join(capsys.readouterr().err.replace("│", " ").split()))
