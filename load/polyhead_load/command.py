"""`polyhead load`: locust with a locustfile for polyhead servers."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="load")

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
"""For `locust -f`."""


@app.default
def load(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    file: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Put load on a server with locust, and watch it in a browser.

    All options are locust's, and those that polyhead adds to it: `polyhead load -- --help` lists them.

        polyhead load --host 127.0.0.1:8001 --model minilm --users 8

        polyhead load --headless --run-time 1m --rate 50 --tokens 64 --outputs output+attention

    Parameters
    ----------
    arguments
        Options of locust.
    file
        Print where the locustfile is, for `locust -f`.
    """
    if file:
        sys.stdout.write(f"{LOCUSTFILE}\n")
        return
    import locust  # noqa: F401 - fails here, with the name of the extra, where it is not installed

    command = [sys.executable, "-m", "polyhead_load", *arguments]
    sys.stdout.flush()
    # locust takes over the process, with its signals and its exit code.
    os.execv(sys.executable, command)  # noqa: S606 - no shell is involved
