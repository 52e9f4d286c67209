"""`polyhead load`: locust with a locustfile for polyhead servers."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="load", help_flags=[])

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
"""For `locust -f`."""

_LOCUSTS = {
    "--host": "The server, host:port. Default: 127.0.0.1:8001",
    "--users": "How many callers send, each its next request after an answer",
    "--headless": "Start at once, without a web interface",
    "--run-time": "When to end: 30s, 5m, 1h",
    "--stop-timeout": "How long to wait at the end for answers under way: 30s. Default: 0",
    "--processes": "How many processes send, if one is not enough",
    "--web-port": "Where the web interface listens. Default: 8089",
    "--print-stats": "Print locust's tables, too, which take 160 columns",
    "--csv": "Write numbers to files whose names begin like this",
    "--html": "Write a page with charts to this file",
}
"""The options of locust that most runs need."""


@app.default
def load(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    file: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Put load on a server with locust, and watch it in a browser.

    Parameters
    ----------
    arguments
        Options of locust, and ours.
    file
        Print where the locustfile is, for `locust -f`.
    """
    if file:
        sys.stdout.write(f"{LOCUSTFILE}\n")
        return
    if find_spec("locust") is None:  # an import would take a second, and here nothing uses it
        raise ModuleNotFoundError("locust is not installed", name="locust")
    if {"-h", "--help"}.intersection(arguments):
        sys.stdout.write(_help())
        return
    sys.stdout.flush()
    # locust takes over the process, with its signals and its exit code.
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *arguments]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is involved


def _help() -> str:
    """Return our options, and those of locust's that most runs need."""
    import configargparse

    from polyhead_load.options import add_options

    parser = configargparse.ArgumentParser(
        prog="polyhead load",
        usage="polyhead load [options]",
        description="Put load on a server with locust, and watch it in a browser, or --headless.",
        epilog="Each of ours may be a variable, such as POLYHEAD_LOAD_RATE. All of locust's options work: "
        "`locust --help`. `polyhead load --file` prints the path of the locustfile, for `locust -f`.",
        add_env_var_help=False,
        add_config_file_help=False,
        add_help=False,
    )
    add_options(parser)
    group = parser.add_argument_group("of locust")
    for flag, text in _LOCUSTS.items():
        is_switch = flag in {"--headless", "--print-stats"}
        group.add_argument(flag, help=text, **{"action": "store_true"} if is_switch else {})
    return str(parser.format_help())
