"""One plan as a run of locust, in this process."""

import math
from pathlib import Path

from locust.env import Environment

from polyhead_load.errors import LoadError
from polyhead_load.plan import Plan
from polyhead_load.records import Recorder
from polyhead_load.session import Session
from polyhead_load.users import ClosedLoop, OpenLoop, PolyheadUser


def run(plan: Plan, folder: Path) -> None:
    """Puts the load on, waits for the last answer, and writes the records.

    Args:
        plan: The load.
        folder: Where the records go.

    Raises:
        LoadError: The server does not take such requests, cannot be reached, or answers with something else;
            where the load was put on, the records are written all the same.
        OSError: The records cannot be written.
    """
    if not math.isfinite(plan.seconds):
        raise LoadError(f"seconds must be finite, was {plan.seconds}: nobody would end the run")
    folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(user_classes=[OpenLoop if plan.mode == "open" else ClosedLoop])
    recorder = Recorder()
    session = Session([plan], request_event=environment.events.request, recorder=recorder)
    PolyheadUser.session = session
    runner = environment.create_local_runner()
    users = plan.users if plan.mode == "closed" else 1
    runner.spawn_users({environment.user_classes[0].__name__: users}, wait=True)
    window = session.close()
    runner.quit()
    recorder.write(folder, window)
    if session.fault is not None:
        raise LoadError(session.fault)
