"""What the export image starts, on folders of this machine in the place of the image's and the volume's."""

import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.deploy.compose_file import ROOT

FAMILIES = ("minilm", "teaching-h1", "teaching-h2", "teaching-h4", "teaching-h8")


class Places(NamedTuple):
    """The image's models, and the volume."""

    image: Path
    volume: Path

    def export(self) -> subprocess.CompletedProcess[str]:
        """Starts the container's script."""
        script = (ROOT / "deploy" / "export.sh").read_text()
        # The longer path first: it ends in the other.
        for path, own in (("/opt/models", self.image), ("/models", self.volume)):
            script = script.replace(f'"{path}/', f'"{shlex.quote(str(own))}/')
        return subprocess.run(
            ["sh", "-c", script, "export.sh"], capture_output=True, text=True, check=False, env={}
        )

    def held(self) -> dict[str, str]:
        """What the volume holds: paths and contents."""
        files = (path for path in self.volume.rglob("*") if path.is_file())
        return {str(path.relative_to(self.volume)): path.read_text() for path in files}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places(tmp_path / "image", tmp_path / "volume")
    places.volume.mkdir()
    for family in FAMILIES:
        (places.image / family / "1").mkdir(parents=True)
        (places.image / family / "1" / "manifest.json").write_text(f"manifest of {family}")
        (places.image / family / "1" / "weights.bin").write_text(f"weights of {family}")
    return places


def test_an_empty_volume_is_filled_once(places: Places) -> None:
    first, second = places.export(), places.export()

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.splitlines() == [f"{family} is there now" for family in FAMILIES]
    assert second.stdout.splitlines() == [f"{family} is there already" for family in FAMILIES]
    assert len(places.held()) == 2 * len(FAMILIES)


def test_what_differs_from_the_image_stays_and_is_said(places: Places) -> None:
    places.export()
    (places.volume / "teaching-h2" / "1" / "manifest.json").write_text("an older manifest")
    second = places.export()

    assert second.returncode == 0
    difference = (
        "teaching-h2 is there already, and differs from this image's; remove it from the volume to renew it"
    )
    assert [line for line in second.stdout.splitlines() if "differs" in line] == [difference]
    assert places.held()["teaching-h2/1/manifest.json"] == "an older manifest"


def test_a_start_that_was_interrupted_is_begun_again(places: Places) -> None:
    left_over = places.volume / ".minilm" / "1"
    left_over.mkdir(parents=True)
    (left_over / "weights.bin").write_text("wei")

    assert places.export().returncode == 0

    assert places.held()["minilm/1/weights.bin"] == "weights of minilm"
    assert len(places.held()) == 2 * len(FAMILIES), "nothing is nested, and nothing left"
