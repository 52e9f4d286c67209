"""Workers spread over GPUs."""

from dataclasses import replace
from pathlib import Path

from polyhead_server import Settings
from polyhead_server.workers.assignment import Assignment
from polyhead_server.workers.supervisor import settings_of

SETTINGS = Settings(models=Path("m"), device="cuda", workers=6)


def test_every_card_has_as_many_workers() -> None:
    devices = [settings_of(worker, SETTINGS, (0, 2, 3)).device for worker in range(6)]

    assert devices == ["cuda:0", "cuda:2", "cuda:3"] * 2


def test_without_cards_each_worker_decides() -> None:
    assert settings_of(1, SETTINGS, ()) == SETTINGS


def test_nothing_else_changes_on_the_way_to_a_worker() -> None:
    mine = settings_of(1, SETTINGS, (4, 5))
    assert mine == replace(SETTINGS, device="cuda:5", workers=3)  # that share this card
    assignment = Assignment(settings=mine, worker=1, files=(3, 4), late=False)

    assert Assignment.from_line(assignment.to_line()).settings == mine
