"""`polyhead sweep` as a user calls it."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.load.sweep.synthetic import measured

from polyhead_client.command import main
from polyhead_load.errors import SweepError
from polyhead_load.sweep.command import app
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.reading import preset_files, read_sweep
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.target import ServiceTarget

SWEEP = """
title = "A small encoder"
tokens = [4]
loads = ["single", "20%"]
blocks = 1
throughput_runs = 1
seconds = 0.3
warm_up_seconds = 0.3
max_in_flight = 5000
serve = ["--device", "cpu"]
# Whatever the machine is busy with: the numbers are not looked at.
gates = {send_lag_ms = 1e5, generator_cpu = 100, drift = 100, backlog = 1, foreign_cpu = 100}

[families]
tiny-tokens = {}
"""


def call(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def test_presets_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call("presets")
    listed = capsys.readouterr().out
    call("presets", "heads")

    assert "heads: Head counts at D = 768" in listed
    assert capsys.readouterr().out.startswith("# The question in its purest form")


@pytest.mark.parametrize("name", preset_files())
def test_a_preset_is_measured_beside_the_models(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sweeps/models` was the repository once, and so `polyhead sweep models` refused to begin."""
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[Path, Path]] = []

    def run_sweep(_sweep: Sweep, out: Path, *, models: Path, **_more: object) -> None:
        asked.append((out, models))
        raise SweepError("enough")

    monkeypatch.setattr("polyhead_load.sweep.sweeping.run_sweep", run_sweep)
    with pytest.raises(SweepError, match="enough"):
        call(name)

    ((out, models),) = asked
    assert out == Path("sweeps", name)
    assert models.parent == out.parent
    assert models != out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hedas"], "the sweep must be one of groups, heads, .*did you mean 'heads'"),
        (["presets", "smok"], "the preset must be one of .*did you mean 'smoke'"),
        (["smoke", "--address", "127.0.0.1:1", "--out", "new"], "--address must be a polyhead server"),
        (["report", "nowhere"], "nowhere must be the folder of a sweep, it has no sweep.json"),
        (["smoke", "--rate", "50"], "--p99 must be given with --rate: a rate is held within a limit"),
        (["smoke", "--families", "smok"], "--families must be of .*, was 'smok'"),
        (["smoke", "--batch", "0"], "preset smoke: batch.0: .* greater than or equal to 1, was 0"),
        (["smoke", "--p99", "20"], "--p99: must be a time above 0 with its unit"),
        (
            ["smoke", "--p99", "20ms", "--headroom", "1"],
            "--headroom: must be a share below 100%, such as 30%",
        ),
    ],
)
def test_refusals(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SweepError, match=message):
        call(*arguments)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_sweep_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_sweep(what: Sweep, out: Path, **_: object) -> None:
        if out.name == "run":
            measured(RunFolder(out), what)
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead_load.sweep.sweeping.run_sweep", run_sweep)
    file = tmp_path / "one.toml"
    file.write_text(SWEEP)
    for out in ("run", "nothing"):
        assert main(["sweep", str(file), "--out", str(tmp_path / out)]) == 130

    kept, nothing = capsys.readouterr().err.splitlines()
    path = tmp_path / "run"
    assert kept == (
        f"interrupted: 2 runs are kept in {path}; give the same command again to go on, or "
        f"`polyhead sweep report {path}` to see what they say"
    )
    assert nothing == "interrupted before the first run: give the same command again to start over"


def test_a_sweep_in_which_every_run_is_void_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_sweep(what: Sweep, out: Path, **_: object) -> RunFolder:
        folder = RunFolder(out)
        measured(folder, what)
        every = [one.model_copy(update={"void": ("it rained",)}) for one in folder.journal().measurements]
        lines = [one.model_dump_json(exclude_defaults=True) for one in every]
        (out / "cells.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return folder

    monkeypatch.setattr("polyhead_load.sweep.sweeping.run_sweep", run_sweep)
    file = tmp_path / "one.toml"
    file.write_text(SWEEP)

    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 1

    said = capsys.readouterr()
    assert "it rained" in said.out
    assert "polyhead sweep: no run counts, so nothing was measured" in said.err
    assert (tmp_path / "out" / "report.html").is_file()


def test_what_flags_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sweep] = []

    def run_sweep(what: Sweep, *_: object, **_more: object) -> None:
        asked.append(what)
        raise SweepError("enough")

    monkeypatch.setattr("polyhead_load.sweep.sweeping.run_sweep", run_sweep)
    monkeypatch.chdir(tmp_path)
    more = (
        "--families",
        "heads-h2,heads-h4",
        "--tokens",
        "64,median=29,sigma=0.6,low=8,high=128",
        "--batch",
        "1,20",
        "--outputs",
        "pooled,output+attention",
        "--rounds",
        "3",
        "--search-seconds",
        "5",
    )
    with pytest.raises(SweepError, match="enough"):
        call("heads", "--rate", "50", "--p99", "20ms", "--headroom", "20%", "--foreign-cpu", "0.5", *more)

    assert asked[0].target == ServiceTarget(rate=50, p99="20ms", headroom=0.2)
    assert asked[0].gates.foreign_cpu == 0.5
    assert asked[0].labels("family") == ["heads-h2", "heads-h4"]
    assert asked[0].compared == {"family": "heads-h2"}
    assert asked[0].labels("tokens") == ["64", "8–128, median 29"]
    assert asked[0].batch == (1, 20)
    assert (asked[0].rounds, asked[0].search_seconds) == (3, 5)
    assert asked[0].labels("outputs") == ["pooled", "output+attention"]


def test_a_sweep_of_all_families_of_a_repository(tmp_path: Path) -> None:
    for version in ("a/1", "a/2", "b/1", "unfinished/1"):
        (tmp_path / "ours" / version).mkdir(parents=True)
        if not version.startswith("un"):
            (tmp_path / "ours" / version / "manifest.json").touch()

    name, sweep = read_sweep(str(tmp_path / "ours"))

    assert name == "all-ours"
    assert sweep.families == {"a": {}, "b": {}}


@pytest.mark.slow
def test_a_whole_sweep(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Server, generator, records, report; and once more, which has nothing left to do."""
    file = tmp_path / "one.toml"
    file.write_text(SWEEP)
    out = tmp_path / "out"

    call(file, "--models", repository, "--out", out)

    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert (
        len({(*(line[name] for name in ("family", "outputs", "load")), line["block"]) for line in lines}) == 3
    )
    assert Counter(line["load"] for line in lines if not line.get("void")) == (
        {"single": 1, "20%": 1, "throughput": 1}
    )
    report = json.loads((out / "report.json").read_text())
    assert [sum("void" not in run for run in row["runs"]) for row in report["rows"]] == [1] * 2, report[
        "void"
    ]
    assert report["providers"] == {"tiny-tokens": "CPUExecutionProvider"}
    assert "A small encoder" in capsys.readouterr().out
    before = (out / "cells.jsonl").read_bytes()

    call(file, "--models", repository, "--out", out)

    assert (out / "cells.jsonl").read_bytes() == before
    assert "all is measured already" in capsys.readouterr().err
