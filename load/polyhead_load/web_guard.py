"""Protect locust's web interface, which has no authentication, and check what its form says.

locust itself answers pages of every site and takes every option from the form, even those that the form does
not show. With a server's token at hand, that would be enough to have it sent anywhere. Options are checked
only when a run has begun, when the form has its answer.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, request
from locust.argument_parser import ui_extra_args_dict

from polyhead_client.arguments import DEFAULT_TARGET
from polyhead_client.options import OPEN_ACCESS
from polyhead_load.errors import LoadError
from polyhead_load.options import ACCESS, plans_of

_FORM_OPTIONS = frozenset({"host", "user_classes", "run_time", "spawn_rate", "profile"})
"""locust's own options in the form."""


class WebGuard:
    """Holds runs to the server and the secrets with which locust was started.

    Args:
        options: locust's options. It changes them to those of each form.
        host: The server's address, if one was given.
    """

    def __init__(self, options: Namespace, host: str | None) -> None:
        self._options = options
        self._host = host or DEFAULT_TARGET
        self._access = {name: getattr(options, name) for name in ACCESS}
        self._hidden = set(vars(options)) - _FORM_OPTIONS

    def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of a run before it begins.

        Raises:
            LoadError: The secrets differ from those at the start, or would go to another server.
        """
        for name, value in self._access.items():
            if options[name] != value:
                raise LoadError(f"--{name.replace('_', '-')} must be given when locust is started")
        self._check_host(options["host"])

    def protect(self, app: Flask) -> None:
        """Make the web interface answer what is forbidden with 403, and wrong options with 400."""
        app.before_request(self._reject)

    def _reject(self) -> Response | None:
        for check, status in ((self._check_request, 403), (self._check_options, 400)):
            try:
                check()
            except LoadError as error:
                return Response(f"{error}\n", status, mimetype="text/plain")
        return None

    def _check_request(self) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise LoadError(f"Origin must be this interface's own, http://{request.host}, was {origin}")
        form = request.form
        for name in (self._hidden & set(form)) - set(ui_extra_args_dict()):
            raise LoadError(f"{name} must be given when locust is started, and not in the web interface")
        if "host" in form:
            self._check_host(form["host"])

    def _check_options(self) -> None:
        """Check the form of a new run, as locust would take it over."""
        if not request.path.endswith("/swarm"):
            return
        options = Namespace(**vars(self._options))
        for name in set(request.form) & set(ui_extra_args_dict()):
            present, given = getattr(options, name, None), request.form[name]
            try:
                value = type(present)(given) if isinstance(present, int | float) else given
            except ValueError:
                raise LoadError(f"--{name.replace('_', '-')} must be a number, was {given!r}") from None
            setattr(options, name, given == "true" if isinstance(present, bool) else value)
        plans_of(options, address=None)

    def _check_host(self, host: str | None) -> None:
        has_secret = any(self._access.values()) or OPEN_ACCESS.token()  # which may be in the environment
        if has_secret and (host or DEFAULT_TARGET) != self._host:
            raise LoadError(
                f"host must be {self._host}, for which locust was given a token or certificates, "
                f"was {host or DEFAULT_TARGET}"
            )
