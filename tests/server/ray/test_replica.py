"""When a replica is healthy. With handles that stand for Serve's."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_runtime import infer_request, output_of
from tests.servers import quick_settings

from polyhead_server.errors import ErrorReply, StartError
from polyhead_server.settings import Settings

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")

from ray.serve.exceptions import DeploymentUnavailableError

from polyhead_server.ray.replica import FamilyReplica


class Others:
    """Stands for a handle, and the replicas behind it."""

    def __init__(self) -> None:
        self.serving: list[object] = []
        self.asked = 0

    def broadcast(self, *_: object) -> "Others":
        self.asked += 1
        return self

    async def results_async(self, **_: object) -> list[object]:
        if not self.serving:
            raise DeploymentUnavailableError("tiny")
        return self.serving


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    """Other replicas of the family, for a replica that is in this process and leaves it as it is."""
    found = Others()
    replica = "polyhead_server.ray.replica."
    for name in ("configure", "give_memory_back", "flush_denormals", "remove_abandoned_copies"):
        monkeypatch.setattr(replica + name, lambda *_: None)
    monkeypatch.setattr(replica + "_with_resources", lambda settings: settings)
    monkeypatch.setattr(replica + "_OTHERS_SECONDS", 0.05)
    monkeypatch.setattr("ray.serve.get_deployment_handle", lambda _: found)
    return found


@pytest.fixture
def broken(repository: Path, tmp_path: Path) -> Path:
    """A repository whose tiny family cannot be loaded."""
    models = shutil.copytree(repository, tmp_path / "models")
    (models / "tiny" / "1" / "weights.bin").write_bytes(b"bad")
    return models


async def started(settings: Settings) -> Any:
    """A replica, made as Serve makes it."""
    replica: Any = object.__new__(FamilyReplica)
    await replica.__init__(settings, "tiny")
    return replica


async def test_a_replica_that_serves_asks_no_others(repository: Path, others: Others) -> None:
    replica = await started(quick_settings(repository))
    await replica.check_health()

    assert output_of(bytes(await replica.infer(infer_request(), 10, "id"))).size
    assert others.asked == 0


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_a_family_that_none_serves_leaves_a_replica_that_says_why(
    broken: Path, others: Others, mode: str
) -> None:
    replica = await started(quick_settings(broken, repository_mode=mode))
    await replica.check_health()
    others.serving = [False, None, OSError("a replica that has just ended")]
    await replica.check_health()
    assert not await replica.serving("")

    reply = await replica.infer(infer_request(), 10, "id")

    assert isinstance(reply, ErrorReply)
    assert reply.code.name == "UNAVAILABLE"
    assert "weights.bin must have" in reply.message


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_a_replica_that_cannot_load_what_another_serves_is_replaced(
    broken: Path, others: Others, mode: str
) -> None:
    others.serving = [False, True]

    replica = await started(quick_settings(broken, repository_mode=mode))
    with pytest.raises(StartError, match=r"^tiny cannot be loaded here, and another replica serves it$"):
        await replica.check_health()


async def test_a_replica_stays_when_its_family_is_removed_before_others_notice(
    repository: Path, tmp_path: Path, others: Others
) -> None:
    models = shutil.copytree(repository, tmp_path / "models")
    others.serving = [True]

    replica = await started(quick_settings(models, repository_mode="poll", poll_seconds=0.01))
    await replica.check_health()
    shutil.rmtree(models / "tiny")
    async with asyncio.timeout(240):
        while await replica.serving("tiny") is not None:  # noqa: ASYNC110 - a poll changes it
            await asyncio.sleep(0.01)
    await replica.check_health()

    reply = await replica.infer(infer_request(), 10, "id")

    assert isinstance(reply, ErrorReply)
    assert reply.code.name == "NOT_FOUND"
    assert others.asked == 0


async def test_a_replica_that_has_never_seen_the_family_that_another_serves_is_replaced(
    repository: Path, tmp_path: Path, others: Others
) -> None:
    """Such as on a node whose folder is another one."""
    models = shutil.copytree(repository, tmp_path / "models")
    shutil.rmtree(models / "tiny")
    others.serving = [True]

    replica = await started(quick_settings(models, repository_mode="poll"))
    with pytest.raises(StartError, match="another replica serves it"):
        await replica.check_health()
