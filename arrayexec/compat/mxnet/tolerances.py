"""When two arrays count as equal, and in which words they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...context import asnumpy
from .array import unwrap

_RTOL = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-5}
_ATOL = {"float16": 1e-1, "float32": 1e-3, "float64": 1e-20}
_EPS = {"float16": 2.0**-6, "float32": 2.0**-9, "float64": 2.0**-14}


def default_rtols() -> dict[Any, float]:
    """Relative tolerance of every type of real numbers; whole numbers have 0."""
    return {np.dtype(name): value for name, value in _RTOL.items()}


def default_atols() -> dict[Any, float]:
    """Absolute tolerance of every type of real numbers; whole numbers have 0."""
    return {np.dtype(name): value for name, value in _ATOL.items()}


def default_numeric_eps() -> dict[Any, float]:
    """The step of numeric derivatives in every type."""
    return {np.dtype(name): value for name, value in _EPS.items()}


def get_rtol(rtol: float | None = None, dtype: Any = np.float64) -> float:
    """``rtol``, or that of a type."""
    return _RTOL.get(np.dtype(dtype).name, 0.0) if rtol is None else rtol


def get_atol(atol: float | None = None, dtype: Any = np.float64) -> float:
    """``atol``, or that of a type."""
    return _ATOL.get(np.dtype(dtype).name, 0.0) if atol is None else atol


def get_tols(x: Any, y: Any, rtol: float | None, atol: float | None) -> tuple[float, float]:
    """The tolerances given, else the wider ones of two arrays' types (lists count as float64)."""
    kinds = [np.dtype(getattr(one, "dtype", np.float64)) for one in (x, y)]
    return max(get_rtol(rtol, kind) for kind in kinds), max(get_atol(atol, kind) for kind in kinds)


def on_host(value: Any) -> np.ndarray[Any, Any]:
    """The NumPy array of an NDArray, of an array of any device, of lists and numbers."""
    plain = unwrap(value)
    return np.asarray(asnumpy(plain) if hasattr(plain, "shape") else plain)


def mismatch(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], rtol: float | None, atol: float | None, equal_nan: bool = False,
    names: Sequence[str] = ("a", "b"),
) -> str:  # fmt: skip
    """Where ``|a − b| <= atol + rtol · |b|`` does not hold, in words; an empty text where it holds everywhere."""
    relative, absolute = get_tols(a, b, rtol, atol)
    try:
        one, other = np.broadcast_arrays(a, b)
    except ValueError:
        return f"{names[0]} has the shape {a.shape}, but {names[1]} has {b.shape}"
    wrong = ~np.isclose(one, other, relative, absolute, equal_nan)
    if not wrong.any():
        return ""
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64))
        error = apart / (absolute + relative * np.abs(np.asarray(other, np.float64)))
    error = np.where(wrong, np.where(np.isnan(error), np.inf, error), 0.0)
    place = np.unravel_index(int(error.argmax()), one.shape) if one.ndim else ()
    where = ", ".join(str(int(i)) for i in place)
    return (
        f"{names[0]} and {names[1]} differ in {int(wrong.sum())} of {wrong.size} elements by more than "
        f"rtol={relative:g}, atol={absolute:g}; at ({where}), the worst: "
        f"{names[0]}={one[place]:.8g}, {names[1]}={other[place]:.8g}\n{names[0]}: {one}\n{names[1]}: {other}"
    )
