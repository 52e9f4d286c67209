"""`polyhead describe` as a user calls it."""

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
    assert line("a layer") == ["a", "layer", "7,087,872", "12", "85,054,464"]
    assert line("FP32") == ["FP32", "768.0", "KiB", "9.0", "MiB"]


def test_checkpoint(describe: Describe, minilm_checkpoint: Path) -> None:
    printed = describe("--checkpoint", minilm_checkpoint, "--tokens", "16")

    assert "token ids" in printed
    assert "pooled (mean)" in printed
    assert "22,565,376" in printed


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
        (["--preset", "bert"], DescribeError, "the preset must be one of bert-base, .* was 'bert'"),
        (["--preset", "gpt2", "--checkpoint", "x"], DescribeError, "give one of --preset, --checkpoint and"),
        (["--encoder", "x", "--checkpoint", "x"], DescribeError, "give one of --preset, --checkpoint and"),
        (["--checkpoint", "nowhere"], CheckpointError, "but nowhere does not exist"),
    ],
)
def test_mistakes_are_named(
    describe: Describe, arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(*arguments)


def test_a_sequence_over_the_models_positions(describe: Describe, minilm_checkpoint: Path) -> None:
    with pytest.raises(DescribeError, match="tokens must be at most 512, the model's positions, was 513"):
        describe("--checkpoint", minilm_checkpoint, "--tokens", "513")


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
