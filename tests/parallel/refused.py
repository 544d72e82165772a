"""What is refused, and in which words; without pytest, since ranks run scripts on machines that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refused(error: type[Exception], call: Callable[..., object], *values: Any, **options: Any) -> str:
    """The text of the ``error`` that ``call(*values, **options)`` raises."""
    try:
        call(*values, **options)
    except error as caught:
        return str(caught)
    raise AssertionError(f"no {error.__name__} was raised")
