"""Files that appear whole or not at all, whenever the program or the machine stops."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends well, and vanishes when it does not.

    Its bytes are on the disk before it does, and its name is when this returns.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as open() would have made it
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Wait until the names in a folder are on the disk; nothing where folders cannot be opened (Windows) or synced."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as some network file systems say
            raise
    finally:
        os.close(handle)
