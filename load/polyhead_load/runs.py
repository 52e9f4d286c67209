"""Prepare and finish runs of locust: options, sessions, shares of workers, and records.

A run has one process, or a master and workers. The workers have the users; the master tells each of them
its share of the load, and they tell the master when they cannot send.
"""

import logging
import os
import sys
import time
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import gevent
from flask import Flask
from locust import events, stats
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from locust.web import WebUI

from polyhead_load.console import closing_lines, progress_line
from polyhead_load.errors import LoadError
from polyhead_load.load_plan import LoadPlan
from polyhead_load.options import add_options, is_open, plans_of
from polyhead_load.records import write_run
from polyhead_load.session import ALONE, Session, Share
from polyhead_load.users import Dispatcher, PolyheadUser
from polyhead_load.web_guard import protect

_LOG = logging.getLogger(__name__)

# Messages from the master to a worker, and back.
_SHARE, _ABORT = "polyhead_share", "polyhead_abort"

_WRONG_USAGE = 2
"""Exit code for wrong options."""

_PROGRESS_SECONDS = 10
"""Time between two lines of progress, and of which each tells."""


@cache
def register() -> None:
    """Add our options and listeners to locust, once in a process."""
    runs = LocustRuns()
    events.init_command_line_parser.add_listener(lambda parser, **_: add_options(parser))
    events.init.add_listener(runs.set_up)
    events.test_start.add_listener(runs.prepare)
    events.test_stop.add_listener(runs.finish)


class LocustRuns:
    """The runs of one process of locust, one after the other."""

    def __init__(self) -> None:
        self._share = ALONE
        self._is_aborted = False

    def set_up(self, environment: Environment, web_ui: WebUI | None, **_: Any) -> None:
        """Choose the users of each run by its options, once locust has started."""
        options: Any = environment.parsed_options
        dispatcher: Any = partial(Dispatcher, options)
        environment.dispatcher_class = dispatcher
        stats.PERCENTILES_TO_CHART = [0.5, 0.99]
        logging.getLogger("locust.stats_logger").disabled = not options.print_stats
        if isinstance(environment.runner, WorkerRunner):  # its options come with each run
            environment.runner.register_message(_SHARE, self._take_share)
            return
        if not options.json:
            environment.events.quit.add_listener(partial(self._conclude, environment))
        if web_ui is not None and isinstance(web_ui.app, Flask):
            protect(web_ui.app, options, environment.host)
        if isinstance(environment.runner, MasterRunner):
            environment.runner.register_message(_ABORT, self._take_abort)
        if is_open(options) and options.num_users is None:
            options.num_users = options.expect_workers if options.master else 1
        if options.headless:
            try:
                _plans(environment)
            except LoadError as error:
                _LOG.error("%s", error)
                sys.exit(_WRONG_USAGE)

    def prepare(self, environment: Environment, **_: Any) -> None:
        """Connect and build the requests, before the users of a run are started."""
        options: Any = environment.parsed_options
        runner = environment.runner
        self._is_aborted = False
        if options.headless and not isinstance(runner, WorkerRunner):
            gevent.spawn(_tell_progress, environment)
        try:
            plans = _plans(environment)
            if isinstance(runner, MasterRunner):
                _send_shares(runner)
                return
            PolyheadUser.session = Session(
                plans,
                request_event=environment.events.request,
                record=bool(options.records),
                share=self._share,
            )
        except LoadError as error:
            if isinstance(runner, WorkerRunner):
                runner.send_message(_ABORT, {"reason": str(error)})
            else:
                self._abort(environment, str(error))

    def finish(self, environment: Environment, **_: Any) -> None:
        """Write the records, when the users of a run have been stopped."""
        session, PolyheadUser.session = PolyheadUser.session, None
        window = None if session is None else session.close()
        options: Any = environment.parsed_options
        if session is None or window is None or not options.records:
            return
        started = datetime.fromtimestamp(window.started_unix).astimezone()
        # To the millisecond, so that the next run has another folder.
        stamp = started.strftime("%Y%m%d-%H%M%S.%f")[:-3]
        folder = Path(options.records) / f"{stamp}-{os.getpid()}-{self._share.index}"
        try:
            write_run(folder, session.records, window)
        except OSError as error:
            _LOG.error("the records cannot be written: %s", error)
            environment.process_exit_code = _WRONG_USAGE

    def _conclude(self, environment: Environment, **_: Any) -> None:
        """Print what came of the last run, if it could begin."""
        if not self._is_aborted:
            sys.stdout.writelines(f"{line}\n" for line in closing_lines(environment.stats))

    def _take_share(self, environment: Environment, msg: Any, **_: Any) -> None:
        self._share = Share(**msg.data)

    def _take_abort(self, environment: Environment, msg: Any, **_: Any) -> None:
        self._abort(environment, msg.data["reason"])

    def _abort(self, environment: Environment, reason: str) -> None:
        """End the run with a reason: once, however many workers reject it."""
        if self._is_aborted or environment.runner is None:
            return
        self._is_aborted = True
        _LOG.error("%s", reason)
        environment.process_exit_code = _WRONG_USAGE
        options: Any = environment.parsed_options
        # In a greenlet of its own: this one may be among those that are ended.
        gevent.spawn(environment.runner.quit if options.headless else environment.runner.stop)


def _plans(environment: Environment) -> list[LoadPlan]:
    """Return a plan for each model of the options.

    Raises:
        LoadError: An option is wrong.
    """
    options: Any = environment.parsed_options
    return plans_of(options, address=environment.host)


def _tell_progress(environment: Environment) -> None:
    """Print a line every ten seconds, until the process ends."""
    began = time.monotonic()
    while True:
        gevent.sleep(_PROGRESS_SECONDS)
        sys.stderr.write(f"{progress_line(environment.stats, time.monotonic() - began)}\n")


def _send_shares(runner: MasterRunner) -> None:
    """Send its share to each worker on which locust starts users."""
    workers = [*runner.clients.ready, *runner.clients.running, *runner.clients.spawning]
    for index, worker in enumerate(workers):
        runner.send_message(_SHARE, {"index": index, "count": len(workers)}, client_id=worker.id)
