"""The processors that a container grants."""

from pathlib import Path

import pytest

from polyhead_proto.system.cgroups import ControlGroups
from polyhead_server.engine.cpus import available_cpus


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [([], 6), (["max 100000"], 6), (["250000 100000"], 2), (["50000 100000"], 1), (["3 1", "900 100"], 3)],
)
def test_the_tightest_of_affinity_and_quotas_counts(quotas: list[str], expected: int, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/" + "/".join("g" * len(quotas)) + "\n")
    folder = tmp_path
    for quota in quotas:
        folder /= "g"
        folder.mkdir()
        (folder / "cpu.max").write_text(quota)

    groups = ControlGroups(membership=tmp_path / "membership", root=tmp_path)

    assert available_cpus(affinity=6, groups=groups) == expected


def test_this_machine_has_at_least_one() -> None:
    assert available_cpus() >= 1
