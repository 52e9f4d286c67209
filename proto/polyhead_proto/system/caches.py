"""Where on this machine to keep what can be made or downloaded again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of polyhead's caches: in `XDG_CACHE_HOME`, or in `~/.cache`. It may not exist yet.

    Raises:
        FileNotFoundError: There is no home, as in a container for a user that it does not know.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(
            "XDG_CACHE_HOME must be set to a folder for caches: there is no home with one"
        ) from error
    return Path(cache) / "polyhead"
