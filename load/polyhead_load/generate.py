"""Run one plan in a process of its own: `python -m polyhead_load.generate --plan PLAN.json --out FOLDER`.

Writes FOLDER/records.npz and FOLDER/generator.json, which docs/load.md describes.
"""

import math
import sys
from pathlib import Path

from cyclopts import App
from gevent import monkey

from polyhead_load.errors import LoadError
from polyhead_load.load_plan import LoadPlan

app = App(name="polyhead_load.generate", help="Put one load on a server, and record every request.")


@app.default
def generate(*, plan: Path, out: Path) -> int:
    """Put one load on a server, and record every request.

    Parameters
    ----------
    plan
        A file with the plan, JSON.
    out
        The folder for the records; made where it is missing.

    Returns
    -------
    The exit status: 0 where the load was put on, however it was answered.
    """
    try:
        run(LoadPlan.from_json(plan.read_bytes()), out)
    except (LoadError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def run(plan: LoadPlan, folder: Path) -> None:
    """Put the load on, wait for the last answer, and write the records.

    Raises:
        LoadError: The server does not take such requests, cannot be reached, or answers with something else;
            in that last case the records are written all the same.
        OSError: The records cannot be written.
    """
    # These need the standard library as gevent patches it.
    from locust.env import Environment

    from polyhead_load.records import Window, write_run
    from polyhead_load.session import Session
    from polyhead_load.users import ClosedLoop, OpenLoop, PolyheadUser

    if not math.isfinite(plan.seconds):
        raise LoadError(f"seconds must be finite, was {plan.seconds}: the run would never end")
    folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(user_classes=[OpenLoop if plan.mode == "open" else ClosedLoop])
    session = Session([plan], request_event=environment.events.request, record=True)
    PolyheadUser.session = session
    runner = environment.create_local_runner()
    users = plan.users if plan.mode == "closed" else 1
    runner.spawn_users({environment.user_classes[0].__name__: users}, wait=True)
    window = session.close() or Window(started_unix=0, seconds=0, cpu_seconds=0)
    runner.quit()
    write_run(folder, session.records, window)
    if session.fault is not None:
        raise LoadError(session.fault)


if __name__ == "__main__":
    monkey.patch_all()
    sys.exit(app(result_action="return_value"))
