"""Define locust's users: a closed loop, and an open loop with a dispatcher in each process."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from locust import User, task
from locust.dispatch import UsersDispatcher
from locust.exception import StopUser

from polyhead_client.arguments import DEFAULT_TARGET
from polyhead_load.options import is_open
from polyhead_load.schedule import Arrival
from polyhead_load.session import Session
from polyhead_load.timer import PreciseTimer


class PolyheadUser(User):
    """A user that sends through the session of its process."""

    abstract = True
    host = DEFAULT_TARGET

    session: ClassVar[Session | None] = None
    """The current session; None where there is nothing to send."""

    def on_start(self) -> None:
        """Start the clock with the first user."""
        self.opened = self.session
        if self.opened is not None:
            self.opened.begin()


class ClosedLoop(PolyheadUser):
    """Send the next request after the answer to the last."""

    @task
    def call(self) -> None:
        """Send one request, and wait for the answer."""
        if self.opened is None or self.opened.is_over:
            raise StopUser
        self.opened.call()


class OpenLoop(PolyheadUser):
    """Send at Poisson times, however long the answers take. Each process has one."""

    dispatched: ClassVar[Session | None] = None
    """The session of this process that has a dispatcher."""

    def on_start(self) -> None:
        """Begin the schedule."""
        super().on_start()
        if OpenLoop.dispatched is self.opened:
            self.opened = None
        if self.opened is not None:
            OpenLoop.dispatched = self.opened
            self._arrivals: Iterator[Arrival] = self.opened.arrivals()
            self._timer = PreciseTimer()

    @task
    def dispatch(self) -> None:
        """Send the next request when it is due."""
        if self.opened is None:
            raise StopUser
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.opened.wait_until_idle()
            raise StopUser
        self._timer.wait_until(self.opened.start + arrival.planned)
        self.opened.dispatch(arrival)

    def on_stop(self) -> None:
        """Wait for answers, where locust has time to stop (--stop-timeout)."""
        if self.opened is None:
            return
        self._timer.close()
        if self.environment.stop_timeout:
            self.opened.wait_until_idle()


def user_classes_for(classes: Sequence[type[User]], *, is_open: bool) -> list[type[User]]:
    """Return the classes without those of the other kind of loop, where both kinds are there."""
    wanted, other = (OpenLoop, ClosedLoop) if is_open else (ClosedLoop, OpenLoop)
    if not any(issubclass(one, wanted) for one in classes):
        return list(classes)
    return [one for one in classes if not issubclass(one, other)]


class Dispatcher(UsersDispatcher):
    """locust's dispatcher, with an open or a closed loop as the options of each run say.

    locust makes one for each run, when its options are known. An open loop has one user in each process.
    """

    def __init__(self, options: Namespace, worker_nodes: Any, user_classes: list[type[User]]) -> None:
        OpenLoop.fixed_count = len(worker_nodes)
        self._all_classes = user_classes_for(user_classes, is_open=is_open(options))
        super().__init__(worker_nodes=worker_nodes, user_classes=self._all_classes)

    def new_dispatch(
        self, target_user_count: int, spawn_rate: float, user_classes: list[type[User]] | None = None
    ) -> None:
        """Start or stop users at a rate."""
        if OpenLoop in (user_classes or self._all_classes) and target_user_count:
            target_user_count = max(target_user_count, OpenLoop.fixed_count)
            spawn_rate = max(spawn_rate, OpenLoop.fixed_count)
        super().new_dispatch(target_user_count, spawn_rate, user_classes)
