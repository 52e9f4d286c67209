"""The `polyhead` command.

Its sub-commands are the entry points of the group `polyhead.commands`. Each is imported only when it runs, so
that a command whose extra is missing does not affect the others.
"""

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points, version

from cyclopts import App, ArgumentCollection, CycloptsError, CycloptsPanel, Parameter
from cyclopts.config import Env

GROUP = "polyhead.commands"

_PREFIX = "POLYHEAD_"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# What each command does, in a line. To import them all for it would take the help seconds.
_SUMMARIES = {
    "describe": "Show the shapes and the costs of an encoder: parameters, FLOPs, bytes.",
    "doctor": "Say whether a server would run here, on what, and what to do if not.",
    "explore": "Serve a web page on which to look at the heads of a served encoder.",
    "export": "Export encoders to ONNX, checked against PyTorch, into a model repository.",
    "heads": "Find out over a corpus what each head of a model does, and which are alike.",
    "infer": "Run an encoder on sentences, and show what comes out.",
    "load": "Put load on a server with locust, and watch it in a browser.",
    "prune": "Export an encoder without some of its attention heads.",
    "serve": "Serve a model repository over gRPC.",
    "similarity": "Show which tokens make two texts similar.",
    "sweep": "Measure what each head configuration costs in latency, and report it.",
    "trace": "Find the places that carry what makes two texts differ.",
    "view": "Draw the attention heads of a layer as heat maps.",
}

# The extra that the commands of a package need; other commands need none.
_EXTRAS = {
    "polyhead_export": "export",
    "polyhead_load": "load",
    "polyhead_model": "export",
    "polyhead_server": "server",
    "polyhead_view": "view",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after `polyhead`; None means those of the process.

    Returns:
        The exit status: 0 for success, 1 for an expected failure, printed as one line, 130 for Ctrl-C.
        An invalid command line exits with 2.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Else it prints a line to the terminal whenever a server closes an idle connection.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    commands = {point.name: point for point in entry_points(group=GROUP)}
    called = commands.get(arguments[0]) if arguments else None
    name = "polyhead" if called is None else f"polyhead {called.name}"
    try:
        imported: Collection[str] = ()
        if called is None:  # what commands of others do, only they can tell
            imported = commands if "--install-completion" in arguments else commands.keys() - _SUMMARIES
        app = build_app(commands.values(), imported=imported, called=None if called is None else called.name)
        status = app(arguments, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed it: `polyhead infer ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        if (missing := _missing_extra(called, error)) is None:
            raise
        print_error(f"{name} needs the {missing} extra: pip install 'polyhead[{missing}]'")
        return 1
    except Exception as error:
        if not _is_expected(error):
            raise
        print_error(f"{name}: {_in_one_line(error)}")
        return 1
    return status if isinstance(status, int) else 0


def build_app(
    commands: Iterable[EntryPoint], *, imported: Collection[str] = (), called: str | None = None
) -> App:
    """Build the command line; flags may also be given as POLYHEAD_<COMMAND>_<FLAG>.

    Args:
        commands: The sub-commands.
        imported: The names of those to import now, for their help and their flags.
        called: The one that is about to be called, or asked for its help, which it then has itself.
    """
    variable = f"{_PREFIX}{(called or 'command').upper()}_OPTION"
    app = App(
        name="polyhead",
        help="Serve multi-head-attention encoders, with attention weights when you ask for them.",
        version=lambda: version("polyhead"),
        config=[_prefer_own, Env(_PREFIX)],
        # An option that is off has no flag to turn it off, and the variable of each is said once.
        default_parameter=Parameter(negative=(), show_env_var=False, show_default=_default),
        help_epilogue=f"Each option is also an environment variable: {variable} for --option.",
        help_format="markdown" if called else "plaintext",  # Markdown takes longer than all the rest
        error_formatter=_in_a_panel,
        suppress_keyboard_interrupt=False,
    )
    app.register_install_completion_command(help="Teach your shell to complete this command.")
    for point in sorted(commands, key=lambda point: point.name):
        if point.name not in imported:
            app.command(point.value, name=point.name, help=None if called else _SUMMARIES.get(point.name))
        elif (trouble := _trouble(point)) is not None:
            app.command(App(name=point.name, help=trouble))
        else:
            app.command(point.load(), name=point.name)
    return app


def _default(value: object) -> str | None:
    """Return how help shows a default; None where it says nothing."""
    return None if value is None or value is False or value == () else str(value)


def print_error(line: str) -> None:
    """Print one line to the standard error."""
    sys.stderr.write(f"{printable(line)}\n")


def printable(text: str) -> str:
    """Return a text in which control characters, which a terminal might obey, are escaped."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _in_a_panel(error: CycloptsError) -> object:
    """Return an error as it is shown, which repeats what was given."""
    return CycloptsPanel("\n".join(map(printable, str(error).split("\n"))))


def _prefer_own(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Ignore a variable of all commands, POLYHEAD_<FLAG>, where it is empty or the command has one itself."""
    for argument in arguments:
        own = _PREFIX + "_".join((*commands, argument.name.strip("-"))).replace("-", "_").upper()
        argument.tokens = [
            token
            for token in argument.tokens
            if token.source != "env" or (token.value and own not in os.environ)
        ]


def _trouble(point: EntryPoint) -> str | None:
    """Return why a command cannot be imported, or None if it can."""
    try:
        point.load()
    except ImportError as error:
        extra = _missing_extra(point, error)
        return f"(needs polyhead[{extra}])" if extra else f"(cannot be imported: {error})"
    return None


def _missing_extra(called: EntryPoint | None, error: ImportError) -> str | None:
    """Return the extra that a failed import needs, or None if an extra is not the cause."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    if called is None or cause is None or (cause.name or "").startswith("polyhead_"):
        return None
    return _EXTRAS.get(called.module.partition(".")[0])


def _is_expected(error: Exception) -> bool:
    """Return whether an error is for the user: our own, or one of the system. Others are bugs."""
    return isinstance(error, OSError) or type(error).__module__.startswith("polyhead_")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
