"""Say what configurations are chosen for: a limit on p99, a rate, and headroom."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from polyhead_load.errors import SweepError
from polyhead_load.sweep.loads import SEARCHED, read_seconds
from polyhead_load.sweep.validation import Table, in_words


def _check_time(text: str) -> str:
    read_seconds(text)
    return "".join(text.split())


def _share(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*%", value.strip())
    if match is None:
        raise ValueError(f"must be a share below 100%, such as 30%, was {value!r}")
    return float(match[1]) / 100


class ServiceTarget(Table):
    """What a configuration must carry to be chosen."""

    p99: Annotated[str, AfterValidator(_check_time)]
    """The latency that 99 of 100 requests must keep, such as 50ms or 0.2s."""
    rate: Annotated[float, Field(ge=1e-6, le=1e12)] | None = None
    """Requests a second of all callers together."""
    headroom: Annotated[float, BeforeValidator(_share), Field(ge=0, lt=1)] = 0.3
    """The share of a machine's capacity that is left free.

    With 30 %, one of four machines may fail, or be replaced, while the others carry 93 % of their capacity.
    It also absorbs callers that come in bursts, requests that are not spread evenly, and slower machines.
    """

    @property
    def limit(self) -> float:
        """Return p99 in seconds."""
        return read_seconds(self.p99)

    @property
    def load(self) -> str:
        """Return how the runs of its search are called, such as `p99 50ms`."""
        return f"{SEARCHED}{self.p99}"

    def __str__(self) -> str:
        rate = "" if self.rate is None else f"{self.rate:,g} requests/s with "
        return f"{rate}a p99 of {self.p99}"


def choose_target(held: ServiceTarget | None, **flags: float | str | None) -> ServiceTarget | None:
    """Return a sweep's target with what flags say instead; None where there is none.

    Raises:
        SweepError: A flag is out of range, or there is no limit.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if not given:
        return held
    target = ({} if held is None else held.model_dump()) | given
    if "p99" not in target:
        raise SweepError(
            f"--p99 must be given with --{next(iter(given))}: a rate is held within a limit, such as 50ms"
        )
    try:
        return ServiceTarget.model_validate(target)
    except ValidationError as error:
        raise SweepError(f"--{in_words(error, ServiceTarget)}") from error
