"""Protect locust's web interface, which has no authentication.

locust itself answers pages of every site and takes every option from the form, even those that the form does
not show. With a server's token at hand, that would be enough to have it sent anywhere.
"""

from argparse import Namespace
from urllib.parse import urlsplit

from flask import Flask, Response, request
from locust.argument_parser import ui_extra_args_dict

from polyhead_client.arguments import DEFAULT_TARGET
from polyhead_client.options import OPEN_ACCESS
from polyhead_load.options import ACCESS

_FORM_OPTIONS = frozenset({"host", "user_classes", "run_time", "spawn_rate", "profile"})
"""locust's own options in the form."""


def protect(app: Flask, options: Namespace, host: str | None) -> None:
    """Answer 403 to other sites' pages, options that the form does not show, and servers without our secrets.

    Args:
        app: The web interface.
        options: Those with which locust was started.
        host: The server with which it was started, if one was given.
    """
    hidden = set(vars(options)) - _FORM_OPTIONS
    has_secret = any(getattr(options, name) for name in ACCESS) or bool(OPEN_ACCESS.token())
    own = host or DEFAULT_TARGET

    @app.before_request
    def reject() -> Response | None:
        fault = _fault(hidden, own if has_secret else None)
        return None if fault is None else Response(f"{fault}\n", 403, mimetype="text/plain")


def _fault(hidden: set[str], only_host: str | None) -> str | None:
    """Return why the current request is forbidden, or None."""
    origin, form = request.headers.get("Origin"), request.form
    if origin is not None and urlsplit(origin).netloc != request.host:
        return f"Origin must be this interface's own, http://{request.host}, was {origin}"
    for name in (hidden & set(form)) - set(ui_extra_args_dict()):
        return f"{name} must be given when locust is started, and not in the web interface"
    if only_host is not None and "host" in form and (form["host"] or DEFAULT_TARGET) != only_host:
        return (
            f"host must be {only_host}, for which locust was given a token or certificates, "
            f"was {form['host'] or DEFAULT_TARGET}"
        )
    return None
