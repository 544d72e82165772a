"""``mx.util``: which rules arrays follow, which is always the same here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...context import num_gpus as get_gpu_count

__all__ = ["get_gpu_count", "getenv", "is_np_array", "is_np_shape", "makedirs", "setenv", "use_np_shape"]


def is_np_shape() -> bool:
    """False: a dim 0 is unknown."""
    return False


def is_np_array() -> bool:
    """False: arrays are NDArrays."""
    return False


def use_np_shape(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: shapes follow one rule."""
    return func


def makedirs(d: str) -> None:
    """Make a folder and those above it, where they are missing."""
    os.makedirs(os.path.expanduser(d), exist_ok=True)


def getenv(name: str) -> str | None:
    """The value of an environment variable."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it with None."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
