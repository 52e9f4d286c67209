"""`make soak`: half an hour of mixed load, then bursts of callers, large JSON and hostile connections."""

import sys
from collections.abc import Callable, Mapping

from benchmarks.page import begun, finish, options
from benchmarks.soak import crowds, delays, mixed
from benchmarks.soak.findings import Findings
from benchmarks.soak.requests import ENCODERS, TINY_ENCODERS

_PARTS: Mapping[str, Callable[..., Findings]] = {
    "mixed": mixed.run,
    "crowds": crowds.run,
    "json": delays.run_json,
    "hostile": delays.run_hostile,
}
_TINY_SECONDS = 10.0


def main() -> int:
    """Run the parts one after the other, report, and return 0 if every condition holds."""
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--rate", type=float, default=25.0, help="calls a second of the mixed load")
    parser.add_argument("--seed", type=int, default=0)
    chosen = begun(parser.parse_args(), seconds=1800.0, rounds=1)
    if chosen.tiny:
        chosen.seconds = max(chosen.seconds, _TINY_SECONDS)
    encoders = TINY_ENCODERS if chosen.tiny else ENCODERS
    found = [_PARTS[part](chosen, encoders) for part in chosen.parts]
    return finish(
        chosen,
        "soak",
        "make soak",
        "Soak",
        [line for each in found for line in each.lines],
        conditions=[one for each in found for one in each.conditions],
        facts={name: value for each in found for name, value in each.facts.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
