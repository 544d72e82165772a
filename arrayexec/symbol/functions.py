"""Functions over symbols and numbers that are no single operator, under MXNet's names."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from .algebra import with_either, with_number
from .operators import apply
from .symbol import Symbol

Shape = int | Sequence[int]


def _new(op: str, shape: Shape, dtype: Any, name: str | None, attributes: dict[str, Any]) -> Symbol:
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return apply(op, (), {"shape": dims, "dtype": dtype, "name": name, **attributes})


def zeros(shape: Shape, dtype: Any = "float32", name: str | None = None, **attributes: Any) -> Symbol:
    """Zeros of ``shape``; a dim 0 follows from the use."""
    return _new("_zeros", shape, dtype, name, attributes)


def ones(shape: Shape, dtype: Any = "float32", name: str | None = None, **attributes: Any) -> Symbol:
    """Ones of ``shape``."""
    return _new("_ones", shape, dtype, name, attributes)


def full(shape: Shape, val: float, dtype: Any = "float32", name: str | None = None, **attributes: Any) -> Symbol:
    """``val`` everywhere, of ``shape``."""
    return _new("_full", shape, dtype, name, {"value": float(val), **attributes})


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, infer_range: bool = False,
    name: str | None = None, dtype: Any = "float32",
) -> Symbol:  # fmt: skip
    """start, start + step, … before ``stop`` (0 … start if None), each ``repeat`` times: shape (n * repeat,)."""
    words = {"start": start, "stop": stop, "step": step, "repeat": repeat, "infer_range": infer_range}
    return apply("_arange", (), {**words, "dtype": dtype, "name": name})


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, dtype: Any = "float32"
) -> Symbol:
    """``num`` values at equal distances from ``start`` to ``stop``, or just before it without ``endpoint``."""
    words = {"start": start, "stop": stop, "num": num, "endpoint": endpoint}
    return apply("_linspace", (), {**words, "dtype": dtype, "name": name})


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = "float32", name: str | None = None) -> Symbol:
    """(N, M), M = 0 meaning N: 1 on the k-th diagonal, 0 elsewhere."""
    return apply("_eye", (), {"N": N, "M": M, "k": k, "dtype": dtype, "name": name})


def split_v2(
    ary: Symbol, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False,
    name: str | None = None,
) -> Symbol:  # fmt: skip
    """``ary`` cut along ``axis`` before every one of the indices, or in so many equal sections: one output a piece."""
    if isinstance(indices_or_sections, int):
        cuts: dict[str, Any] = {"indices": (), "sections": indices_or_sections}
    else:
        cuts = {"indices": (0, *indices_or_sections), "sections": 0}
    return apply("_split_v2", (ary,), {**cuts, "axis": axis, "squeeze_axis": squeeze_axis, "name": name})


def _of_two(op: str, reverse: str, plain: Callable[[Any, Any], Any], doc: str) -> Callable[[Any, Any], Any]:
    forward = with_either(op, op, f"{op}_scalar", f"{op}scalar")
    backward = with_number(reverse, reverse.replace("_scalar", "scalar"))

    def function(left: Any, right: Any) -> Any:
        if isinstance(left, Symbol):
            return forward(left, right)
        return backward(right, left) if isinstance(right, Symbol) else plain(left, right)

    function.__name__, function.__doc__ = op[1:], doc
    return function


maximum = _of_two("_maximum", "_maximum_scalar", max, "Elementwise larger one of symbols or numbers.")
minimum = _of_two("_minimum", "_minimum_scalar", min, "Elementwise smaller one of symbols or numbers.")
hypot = _of_two("_hypot", "_hypot_scalar", math.hypot, "Elementwise sqrt(left² + right²) of symbols or numbers.")
power = pow = _of_two("_power", "_rpower_scalar", builtins.pow, "Elementwise left to the power of right.")
