"""When those who are refused are told to come back.

If all came back when the queue has room, one would get it and the others be refused again, a thousand times
over. So each gets a time of its own, as far from the one before as the work in between takes.
"""

import random
from collections.abc import Callable

SHORTEST_SECONDS = 0.02
LONGEST_SECONDS = 5.0


class Appointments:
    """The times that were given away.

    Args:
        chance: A number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._next = 0.0

    def give(self, now: float, *, room_at: float, seconds: float) -> float:
        """Gives the next one away.

        Args:
            now: The time.
            room_at: When the queue will have room, if nobody comes.
            seconds: How long the refused work takes.

        Returns:
            Seconds from now. When all the time that there is has been given away, maybe to callers who never
            come: a random time in its later half.
        """
        appointment = max(self._next, room_at)
        last = now + LONGEST_SECONDS
        if appointment + seconds > last:
            self._next = last
            return LONGEST_SECONDS * (1 + self._chance()) / 2
        self._next = appointment + seconds
        return max(SHORTEST_SECONDS, appointment - now)
