"""Sweeps from files and presets, and what is said about those that are none."""

import dataclasses
from pathlib import Path

import pytest

from polyhead_load.errors import SweepError
from polyhead_load.load_plan import Lengths
from polyhead_load.sweep.reading import preset_files, read_sweep
from polyhead_load.sweep.spec import Sweep
from polyhead_model import PRESETS, EncoderConfig

BASE = "tokens = [8]\n[families]\na = {heads = 1}\n"


@pytest.mark.parametrize("name", preset_files())
def test_presets_are_sweeps_of_encoders_and_survive_json(name: str) -> None:
    found, sweep = read_sweep(name)

    assert found == name
    assert Sweep.model_validate_json(sweep.model_dump_json()) == sweep
    for family in sweep.families:
        EncoderConfig(**sweep.encoder_of(family))


def test_the_models_are_those_that_the_model_package_knows() -> None:
    _, sweep = read_sweep("models")

    for family in sweep.families:
        encoder = EncoderConfig(**sweep.encoder_of(family))
        assert encoder == dataclasses.replace(PRESETS[family], vocabulary=1000)


def test_the_heads_are_those_of_the_mission() -> None:
    _, sweep = read_sweep("heads")

    encoders = [sweep.encoder_of(family) for family in sweep.families]
    assert [encoder["heads"] for encoder in encoders] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert {encoder["d_model"] for encoder in encoders} == {768}


def test_lengths_have_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text("tokens = [16, {median = 32, sigma = 0.6, low = 8, high = 64}]\n[families]\na = {}\n")

    name, sweep = read_sweep(str(file))

    assert (name, sweep.title) == ("mixed", "mixed")
    assert sweep.tokens == (16, Lengths(median=32, sigma=0.6, low=8, high=64))
    assert sweep.labels("tokens") == ["16", "8–64, median 32"]
    assert sweep.compared == {"tokens": "16"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lods = []\n" + BASE, r"there is no field 'lods'; did you mean 'loads'\? \(known: title, about, "),
        (BASE.replace("heads", "heds"), "families.a: there is no field 'heds' .*did you mean 'heads'"),
        ("[gates]\ndrfit = 1\n" + "[families]\na = {}\n", "'gates.drfit'; did you mean 'drift'"),
        ("outputs = ['poled']\n" + BASE, "outputs must be of .*pooled, .*, was 'poled'"),
        ("loads = ['5']\n" + BASE, "loads.0: must be single, a share such as 50% .*, was '5'"),
        ("loads = ['100%']\n" + BASE, "loads.0: must be below 100%"),
        ("baseline = {famly = 'a'}\n" + BASE, "baseline.famly: input should be 'family', 'tokens'"),
        ("baseline = {family = 'b'}\n" + BASE, "baseline.family must be one of a, was 'b'"),
        ("blocks = 0\n" + BASE, "blocks: input should be greater than or equal to 1, was 0"),
        ("tokens = [8]\n", "families must be given"),
        ("tokens = [8]\n[families]\n'a.b' = {}\n", "must start with a letter or digit"),
        (
            "tokens = [{median = 1, sigma = 1, low = 3, high = 2}]\n[families]\na = {}\n",
            r"tokens.high must be low \(3\)",
        ),
        (
            "tokens = [{medan = 1}]\n[families]\na = {}\n",
            "there is no field 'tokens.0.medan'; did you mean 'median'",
        ),
        ("loads = ['50%', '50.0%']\n" + BASE, "loads: all must differ"),
        ("loads = ['" + "9" * 400 + "/s']\n" + BASE, "loads.0: must be single, a share"),
        ("seconds = inf\n" + BASE, "seconds: input should be a finite number, was inf"),
        ("tokens", "must be a TOML file"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)

    with pytest.raises(SweepError, match=rf"mine\.toml:? .*{message}"):
        read_sweep(str(file))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        read_sweep("nowhere.toml")
