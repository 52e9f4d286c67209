"""Write a version beside its place in the model repository, and move it there once it is complete.

So a reader of the repository sees all of a version or nothing, and an export that fails or is killed changes
nothing that is there.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from polyhead_export.errors import ExportError, FamilyExistsError
from polyhead_proto.system.locked_folders import abandoned_folders, locked_folder

_PREFIX = ".export-"
"""A leading dot hides a folder from servers."""
_NEW = "new"
_OLD = "old"


@contextmanager
def staged(repository: Path) -> Iterator[Path]:
    """Make an empty folder in a repository, on the same file system as the families, for `publish`.

    What killed exports left is removed first, and a version that was being replaced is moved back.

    Args:
        repository: The folder of all families; created if missing.

    Yields:
        The folder, which is removed at the end of the block.

    Raises:
        ExportError: The repository is no folder, or cannot be written.
    """
    with ExitStack() as stack:
        try:
            repository.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(repository)
            new = stack.enter_context(locked_folder(_PREFIX, repository)) / _NEW
            new.mkdir()
        except OSError as error:
            raise ExportError(
                f"the model repository must be a folder that can be written, {repository} is not "
                f"({error.strerror}): make it one, or name another"
            ) from error
        new.chmod(0o755)
        yield new


def publish(new: Path, target: Path, *, replace: bool) -> None:
    """Move a complete version to its place.

    Args:
        new: The folder that `staged` gave.
        target: The version's place.
        replace: Whether to replace a version that is there.

    Raises:
        FamilyExistsError: The version is there and is not to be replaced, or another export wrote it at the
            same time.
    """
    target.parent.mkdir(exist_ok=True)
    if not replace:
        check_absent(target)  # another export may have made it meanwhile
    old = new.with_name(_OLD) / target.parent.name / target.name
    old.parent.mkdir(parents=True)
    try:
        with suppress(FileNotFoundError):
            target.rename(old)
        new.rename(target)
    except BaseException as error:
        if old.exists() and not target.exists():
            old.rename(target)
        if isinstance(error, OSError) and error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
            raise FamilyExistsError(
                f"{target} was written by another export meanwhile: repeat this one to replace that"
            ) from error
        raise


def check_place(target: Path) -> None:
    """Check that a version can be moved to its place, before work is put into it.

    Raises:
        ExportError: The family or the version is something else than a folder, or the family's folder cannot
            be written.
    """
    try:
        for folder in (target.parent, target):
            if folder.exists() and not folder.is_dir():
                raise ExportError(f"{folder} must be a folder, is a file: move it away")
    except OSError as error:  # such as a name that is too long for the file system
        raise ExportError(f"{target} cannot be a folder ({error.strerror}): give another name") from error
    if target.parent.exists() and not os.access(target.parent, os.W_OK | os.X_OK):
        raise ExportError(f"{target.parent} must be a folder that can be written, is not: change its mode")


def check_absent(target: Path) -> None:
    """Check that a version is not there yet.

    Raises:
        FamilyExistsError: It is.
    """
    if target.exists():
        raise FamilyExistsError(
            f"{target} exists already: name another version, or replace it with --if-exists replace, or "
            'if_exists="replace"'
        )


def _remove_abandoned(repository: Path) -> None:
    for staging in abandoned_folders(_PREFIX, repository):
        with suppress(OSError):
            for old in (staging / _OLD).glob("*/*"):
                target = repository / old.parent.name / old.name
                if not target.exists():  # killed between the two renames of `publish`
                    old.rename(target)
            shutil.rmtree(staging, ignore_errors=True)
