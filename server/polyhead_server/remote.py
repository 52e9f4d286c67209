"""Folders behind URLs: object storage, HTTP, whatever fsspec knows. Light: settings import it."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 2**20

_SECRETS = re.compile(r"""(?<=\?)[^\s'"<>)]+|(?<=://)[^\s/@]+(?=@)""")
"""What may be secret of the URLs in a driver's message: queries, and names with passwords."""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder behind a URL. Like a `Path` where the two are used alike."""

    url: str

    def __truediv__(self, name: str) -> "RemoteFolder":
        path, query = self._split()
        return RemoteFolder(f"{path}/{name}{query}")

    def __str__(self) -> str:
        """Return the URL without a password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._split()[0].rpartition("/")[2]

    def names(self) -> list[str]:
        """Return the names in the folder.

        Raises:
            StartError: fsspec does not know the URL, or needs another package for it.
            OSError: There is no such folder, or the storage does not answer; `strerror` says which.
        """
        with self._storage() as (storage, path):
            storage.invalidate_cache()  # or a repository that is polled would never change
            return [entry.rstrip("/").rpartition("/")[2] for entry in storage.ls(path, detail=False)]

    def read(self, name: str, *, limit: int) -> bytes:
        """Return the content of a file in the folder.

        Raises:
            StartError: As `names`.
            OSError: As `names`, or it has more bytes than the limit.
        """
        with (self / name)._storage() as (storage, path), storage.open(path, "rb") as file:
            content = bytes(file.read(limit + 1))
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it must have at most {limit} bytes", name)
        return content

    def download(self, name: str, target: Path, limit: int) -> None:
        """Write at most so many bytes, and one, of a file in the folder to a local one.

        Raises:
            OSError: As `read`, or from the local file system.
        """
        with (self / name)._storage() as (storage, path), storage.open(path, "rb") as file:
            left = limit + 1
            with target.open("wb") as copy:
                while left and (chunk := file.read(min(left, _CHUNK))):
                    copy.write(chunk)
                    left -= len(chunk)

    def _split(self) -> tuple[str, str]:
        """Return the URL as far as its path goes, and the rest. Only in HTTP does a query begin with `?`."""
        path, mark, query = self.url.partition("?") if self.url.startswith("http") else (self.url, "", "")
        return path.rstrip("/"), mark + query

    @contextmanager
    def _storage(self) -> Iterator[tuple[Any, str]]:
        """Open the storage; turn what its driver raises into errors whose messages are ours."""
        from polyhead_server.errors import StartError

        try:
            import fsspec

            storage, path = fsspec.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # says what to install, or which protocols there are
            raise StartError(f"--models {self} cannot be opened: {error}") from error
        try:
            yield storage, path
        except Exception as error:  # drivers have their own
            if isinstance(error, OSError) and error.strerror:
                raise
            if isinstance(error, FileNotFoundError):
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from error
            raise OSError(errno.EIO, _reason(error), str(self)) from error


def _reason(error: Exception) -> str:
    """Say what went wrong in our own words: the index shows it. The log has the driver's."""
    from polyhead_server.observability.logs import LOGGER

    said = _SECRETS.sub("…", str(error))
    LOGGER.warning("the storage of --models failed: %s: %s", type(error).__name__, said)
    return f"its storage did not answer as expected ({type(error).__name__}); the server's log says more"


def location(models: str) -> Path | RemoteFolder:
    """Return where a repository is: a folder, or a URL such as `s3://bucket/models`."""
    return RemoteFolder(models) if "://" in models else Path(models)
