"""`polyhead describe` as a user calls it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead_model import PRESETS, CheckpointError, DescriptionError
from polyhead_model.command import DescribeError, app

Describe = Callable[..., str]


@pytest.fixture
def describe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Describe:
    """Call the command with arguments, get what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str | Path) -> str:
        app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")
        return capsys.readouterr().out

    return call


def test_what_the_documentation_s_table_names_is_shown(
    describe: Describe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "README.md").read_text()
    commands = sorted(set(re.findall("`polyhead describe ?(.*?)`", page)))
    monkeypatch.chdir(tmp_path)

    assert len(commands) == 4
    for command in commands:
        assert describe(*command.split())
    assert (tmp_path / "flow.svg").stat().st_size > 1000


def test_presets_are_listed(describe: Describe) -> None:
    printed = describe()

    for name in PRESETS:
        assert name in printed
    assert "85,054,464" in printed


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(describe: Describe, preset: str) -> None:
    printed = describe("--preset", preset, "--tokens", "16", "--batch", "3")

    assert printed.startswith(f"{preset}: B = 3, T = 16, D = {PRESETS[preset].d_model:,}, ")
    assert "…" not in printed  # nothing is cut, on 80 columns


def test_numbers_of_bert_base(describe: Describe) -> None:
    lines = describe("--preset", "bert-base", "--tokens", "128", "--batch", "1").splitlines()

    def line(start: str) -> list[str]:
        return next(line.split() for line in lines if line.strip().startswith(start))

    assert line("weights = softmax")[-7:] == ["1", "×", "12", "×", "128", "×", "128"]
    assert line("attention matrices")[-3:] == ["2,359,296", "12", "28,311,552"]
    assert line("W_q") == ["W_q", "D", "×", "H·K", "589,824"]
    assert line("b_o") == ["b_o", "D", "768"]
    assert line("a layer") == ["a", "layer", "7,087,872", "12", "85,054,464"]
    assert line("scores  ")[-6:] == ["2·B·T²·H·K", "12", "301.99", "M", "1.4%", "16.0"]
    assert line("a layer as FP32")[-5:] == ["FP32", "768.0", "KiB", "1.2%", "1,150"]
    assert line("all as FP32")[-5:] == ["FP32", "9.0", "MiB", "14.1%", "338"]


def test_numbers_of_key_and_value_heads_side_by_side(describe: Describe) -> None:
    numbers = json.loads(describe("--preset", "mistral-7b", "--heads", "32, 32/8,32/1", "--json"))

    assert [each["encoder"]["kv_heads"] for each in numbers] == [None, 8, 1]
    assert [each["parameters"]["total"] // 4096**2 for each in numbers] == [4, 2, 2]
    lines = describe("--preset", "mistral-7b", "--heads", "32,32/8").splitlines()
    rows = [line.split()[:4] for line in lines if line.split()[:1] == ["32"]]
    assert rows == [["32", "32", "128", "67,108,864"], ["32", "8", "128", "41,943,040"]]
    lines = describe("--preset", "teaching", "--heads", "4,128+64+32+32").splitlines()
    rows = [line.split()[:3] for line in lines if line.split()[:1] == ["4"]]
    assert rows == [["4", "64", "526,336"], ["4", "32–128", "526,336"]]


def test_numbers_of_heads_side_by_side(describe: Describe) -> None:
    lines = describe("--preset", "bert-base", "--heads", "1,12").splitlines()

    assert lines[0].startswith("bert-base by heads: B = 1, T = 128, D = 768")
    rows = [line.split() for line in lines if line.split()[:1] in (["1"], ["12"])]
    assert [row[:3] for row in rows] == [["1", "768", "85,054,464"], ["12", "64", "85,054,464"]]
    numbers = json.loads(describe("--preset", "bert-base", "--heads", "1,12", "--json"))
    assert [one["sizes"]["H"] for one in numbers] == [1, 12]


def test_embeddings_are_said_to_be_counted_or_not(describe: Describe, minilm_checkpoint: Path) -> None:
    for arguments in ([], ["--preset", "bert-base"], ["--preset", "bert-base", "--heads", "1,12"]):
        assert "Embeddings are not counted: the encoder takes vectors." in describe(*arguments)
    # 30,522 token ids, 512 positions and 2 types, and a norm.
    assert "Embeddings are counted: 11,918,592, 53% of all." in describe("--checkpoint", minilm_checkpoint)


def test_every_number_as_json(describe: Describe) -> None:
    numbers = json.loads(describe("--preset", "bert-base", "--reply-limit", "4194304", "--json"))

    assert list(numbers) == ["name", "encoder", "sizes", "sections", "parameters", "flops", "attention"]
    assert numbers["sizes"] == {"B": 1, "T": 128, "D": 768, "H": 12, "K": 64, "F": 3072, "L": 12}
    assert numbers["sections"][1]["steps"][0] == {
        "tensor": "q = x W_q",
        "symbol": "q",
        "reads": ["x"],
        "axes": ["B", "T", "H·K"],
        "shape": [1, 128, 768],
        "parameters": [
            {
                "part": "attention matrices",
                "name": "W_q",
                "axes": ["D", "H·K"],
                "shape": [768, 768],
                "formula": "D·H·K",
                "each": 589_824,
            },
            {
                "part": "attention biases",
                "name": "b_q",
                "axes": ["H·K"],
                "shape": [768],
                "formula": "H·K",
                "each": 768,
            },
        ],
    }
    matrices = numbers["parameters"]["parts"][0]
    assert [each["name"] for each in matrices["tensors"]] == ["W_q", "W_k", "W_v", "W_o"]
    assert numbers["parameters"]["total"] == 85_054_464
    assert numbers["flops"]["parts"][1]["total"] == 301_989_888
    assert numbers["attention"]["reply_limit"] == 4_194_304
    assert numbers["attention"]["sent_as"]["FP16"]["all"] == {"bytes": 4_718_592, "longest_sequence": 115}

    assert [one["name"] for one in json.loads(describe("--json"))] == list(PRESETS)


def test_cross_attention_has_a_length_of_its_own(describe: Describe) -> None:
    printed = describe("--preset", "cross", "--tokens", "3", "--memory", "5")

    assert printed.startswith("cross: B = 1, T = 3, D = 768, H = 12, K = 64, S = 5, L = 1")
    assert [line.split()[-7:] for line in printed.splitlines() if "cross weights = softmax" in line] == [
        ["1", "×", "12", "×", "3", "×", "5"]
    ]
    with pytest.raises(DescribeError, match="memory must be left out for an encoder without cross-attention"):
        describe("--preset", "gpt2", "--memory", "5")


def test_description(describe: Describe, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"d_model": 20, "heads": 3, "layers": 2, "head_width": 8}')

    printed = describe("--encoder", file, "--tokens", "16")

    assert printed.startswith("mine: B = 1, T = 16, D = 20, H = 3, K = 8, L = 2")

    file.write_text('{"d_model": 20, "heads": 3, "layers": 2}')
    with pytest.raises(DescriptionError, match=r"d_model \(20\) must be a multiple of heads \(3\)"):
        describe("--encoder", file)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ["--preset", "bert"],
            DescribeError,
            "the preset must be one of bert-base, .* was 'bert'; did you mean 'bert-base'\\?",
        ),
        (["--draw", "flow.svg"], DescribeError, "--draw draws one encoder: give --preset, --checkpoint or"),
        (
            ["--preset", "gpt2", "--heads", "1,2", "--draw", "x.svg"],
            DescribeError,
            "--draw draws one encoder",
        ),
        (["--preset", "gpt2", "--draw", "flow.doc"], DescribeError, "--draw must end with one of .*flow.doc"),
        (["--preset", "gpt2", "--draw", "nowhere/flow.svg"], FileNotFoundError, "nowhere"),
        (["--preset", "gpt2", "--checkpoint", "x"], DescribeError, "give one of --preset, --checkpoint and"),
        (["--encoder", "x", "--checkpoint", "x"], DescribeError, "give one of --preset, --checkpoint and"),
        (["--heads", "2"], DescribeError, "--heads must come with --preset, --checkpoint or --encoder"),
        (
            ["--preset", "gpt2", "--heads", "2,x"],
            DescribeError,
            "--heads must be numbers of heads such as 1,2,4,8, .*, was '2,x'",
        ),
        (
            ["--preset", "gpt2", "--heads", "12/5"],
            DescribeError,
            "--heads cannot be 12/5 here: kv_heads must divide heads",
        ),
        (["--preset", "gpt2", "--heads", "5"], DescribeError, "--heads cannot be 5 here: d_model .768. must"),
        (["--checkpoint", "nowhere"], CheckpointError, "but nowhere does not exist"),
    ],
)
def test_mistakes_are_named(
    describe: Describe, arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(*arguments)


def test_the_flow_is_drawn(describe: Describe, tmp_path: Path) -> None:
    for name in ("flow.svg", "flow.pdf"):
        printed = describe("--preset", "teaching", "--tokens", "8", "--draw", tmp_path / name, "--json")
        assert json.loads(printed)["name"] == "teaching"
        assert (tmp_path / name).stat().st_size > 1_000

    drawn = (tmp_path / "flow.svg").read_text()
    for text in ("q = x W_q", "scores = scores + mask", "[1, 4, 8, 64]", "[B, H, T, K]"):
        assert f">{text}</text>" in drawn


def test_drawing_without_matplotlib_names_the_extra() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None  # importing it fails
from polyhead_model.command import app
app(["--preset", "teaching"], result_action="return_value")
app(["--preset", "teaching", "--draw", "flow.svg"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.startswith("teaching: ")
    assert "DescribeError: --draw needs the view extra: pip install 'polyhead[view]'" in done.stderr


def test_describing_needs_no_torch(minilm_checkpoint: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = None  # importing it would fail
from polyhead_model import PRESETS, EncoderConfig, flops, parameters, read_checkpoint_info
from polyhead_model.command import app
app(["--checkpoint", {str(minilm_checkpoint)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "pooled (mean)" in done.stdout
