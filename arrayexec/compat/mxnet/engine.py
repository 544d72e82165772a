"""``mx.engine``: there is no queue of operations on arrays to be grouped, so that these change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["bulk", "set_bulk_size"]


def set_bulk_size(size: int) -> int:
    """Gives 0, the size that is in force."""
    return 0


@contextlib.contextmanager
def bulk(size: int) -> Iterator[None]:
    """A block of code."""
    yield
