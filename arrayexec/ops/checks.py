"""What the rules of many operators refuse in the same words."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dims import ANY, UNKNOWN
from ..errors import AttributeValueError, format_shape


def check_least(op: Any, *names: str, least: int = 1) -> None:
    """Refuse attributes of these names that are below ``least``."""
    for name in names:
        value = getattr(op, name)
        if value < least:
            raise AttributeValueError(f"{op.form.name}: attribute '{name}' must be at least {least}, but it is {value}")


def check_sizes(op: Any, name: str) -> None:
    """Refuse an attribute that is no height and width."""
    sizes = getattr(op, name)
    if len(sizes) != 2 or min(sizes) < 1:
        raise AttributeValueError(f"{op.form.name}: attribute '{name}' must hold two sizes >= 1, but it is {sizes}")


def check_pixels(s: Any, name: str = "data") -> None:
    """Refuse images (n, c, h, w) without pixels."""
    shape = getattr(s, name)
    if any(dim is not UNKNOWN and dim == 0 for dim in shape[2:]):
        s.fail(name, f"must have pixels, but it is {format_shape(shape)}")


def check_rank(s: Any, name: str, least: int, most: int | None = None) -> None:
    """Refuse a value ``name`` of known rank outside [least, most]."""
    shape = getattr(s, name)
    if shape is not ANY and not least <= len(shape) <= (most or len(shape)):
        words = f"{least} dims" if most == least else f"at least {least} dims"
        s.fail(name, f"must have {words}, but it is {format_shape(shape)}")


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
