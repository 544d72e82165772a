"""What the rules of many operators refuse in the same words."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dims import ANY
from ..errors import format_shape


def check_axis(s: Any, name: str, axis: int, shape: Any = None) -> None:
    """Refuse a value ``name`` (one of a ``Many``: of ``shape``) of known rank that has no axis ``axis``."""
    shape = getattr(s, name) if shape is None else shape
    if shape is not ANY and not -len(shape) <= axis < len(shape):
        s.fail(name, f"must have an axis {axis}, but it is {format_shape(shape)}")


def check_floating(t: Any, name: str) -> None:
    """Refuse a value ``name`` whose type is known and has no fractions."""
    kind = getattr(t, name)
    if kind is not None and kind.kind in "iub":
        t.fail(name, f"must be of a floating type, but it is {kind.name}")


def check_numbers(t: Any, name: str) -> None:
    """Refuse a value ``name`` of truth values: they are not subtracted and have no sign."""
    if getattr(t, name) == np.bool_:
        t.fail(name, "must hold numbers, but it is bool; Cast it")


@functools.cache
def holds(kind: np.dtype[Any], number: int) -> bool:
    """Whether ``kind`` holds the whole numbers from 0 to ``number``, each as itself."""
    largest = np.array([max(number - 1, 0), number], np.int64)  # where two neighbours differ, all below do
    with np.errstate(all="ignore"):
        return all(float(value) == n for value, n in zip(largest.astype(kind), largest.tolist(), strict=True))
