"""Runs one plan in a process of its own: `python -m polyhead_load.generate --plan PLAN.json --out FOLDER`.

Writes FOLDER/records.npz and FOLDER/generator.json. docs/load.md says what they hold.
"""

import sys
from pathlib import Path

from cyclopts import App
from gevent import monkey

from polyhead_load.errors import LoadError
from polyhead_load.plan import Plan

app = App(name="polyhead_load.generate", help="Put one load on a server, and record every request.")


@app.default
def generate(*, plan: Path, out: Path) -> int:
    """Put one load on a server, and record every request.

    Parameters
    ----------
    plan
        A file with the plan, JSON.
    out
        The folder for the records; it is made where there is none.

    Returns
    -------
    The exit status: 0 where the load was put on, however it was answered.
    """
    from polyhead_load.generator import run  # which needs the standard library as gevent has it

    try:
        run(Plan.read(plan), out)
    except (LoadError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    monkey.patch_all()
    sys.exit(app(result_action="return_value"))
