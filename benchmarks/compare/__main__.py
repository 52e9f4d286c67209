"""`make compare`: polyhead beside other servers and engines, and its own choices beside each other.

Each part writes a page. Peers and other engines have environments of their own, and take turns with polyhead.
"""

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.contenders import ContenderError
from benchmarks.page import begun, options
from polyhead_load.errors import SweepError

_PARTS = {
    "peers": ("peers", 1.5, 3),
    "natural": ("texts", 1.5, 3),
    "engines": ("texts", 0.5, 3),
    "int8": ("int8", 0.0, 1),
    "heads": ("heads", 12.0, 1),
    "groups": ("heads", 12.0, 1),
}
"""Of each part its module, and the seconds and the number of samples."""


def main() -> int:
    """Run the parts one after the other, and return 0 if every condition of all holds."""
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    for name in ("triton", "sentences"):
        parser.add_argument(f"--{name}-venv", type=Path, default=Path(f".venv-peer-{name}"))
    parser.add_argument("--rated-documents", type=Path, metavar="FOLDER", default=Path(".rated-documents"))
    chosen = parser.parse_args()
    failed = 0
    for part in chosen.parts:
        module, seconds, rounds = _PARTS[part]
        begins = begun(chosen, seconds=seconds, rounds=rounds)
        begins.part = part
        failed |= import_module(f"benchmarks.compare.{module}").run(begins)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ContenderError, SweepError) as error:
        sys.exit(str(error))
