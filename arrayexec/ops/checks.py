"""What the rules of many operators refuse in the same words."""

from __future__ import annotations

from typing import Any

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
