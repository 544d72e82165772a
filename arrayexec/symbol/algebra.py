"""Arithmetic and comparisons of symbols: one operator node each, named as MXNet names them."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, CompositionError
from .compose import make_node
from .graph import Entry


def single(symbol: Any, must: str) -> Entry:
    """The one output of a symbol; else CompositionError that it ``must`` be one."""
    heads: tuple[Entry, ...] = symbol.heads
    if len(heads) != 1:
        raise CompositionError(f"{must}, but {symbol!r} has {len(heads)} outputs; take one: symbol[0]")
    return heads[0]


def with_number(op: str, hint: str | None = None) -> Callable[[Any, Any], Any]:
    """Method that applies ``op`` to a symbol and a number; a node without a name is counted under ``hint``."""
    hint = hint or op

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            other = int(other)
        if not isinstance(other, numbers.Real | np.number):
            advice = "; make it a Variable and hand the array to bind" if isinstance(other, np.ndarray) else ""
            raise ArgumentError(
                f"{self!r} goes together with symbols and numbers, not with {type(other).__name__}{advice}"
            )
        left = single(self, f"{op} takes one value")
        return type(self)(make_node(op, (left,), {}, {"scalar": other}, hint=hint).outputs)

    return method


def with_either(op: str, hint: str, scalar_op: str, scalar_hint: str | None = None) -> Callable[[Any, Any], Any]:
    """Method that applies ``op`` to two symbols of one shape, ``scalar_op`` to a symbol and a number."""
    number = with_number(scalar_op, scalar_hint)

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, Algebra):
            return number(self, other)
        inputs = [single(symbol, f"{op} takes one value") for symbol in (self, other)]
        kind: Any = type(other) if isinstance(other, type(self)) else type(self)
        return kind(make_node(op, inputs, {}, {}, hint=hint).outputs)

    return method


class Algebra:
    """The operators of Python. Shapes must be equal (``broadcast_add`` and its kin are the others); comparisons give
    1 or 0 in the type of the operands."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy then leaves array + symbol to us, who refuse it in words
    __hash__ = object.__hash__

    __add__ = __radd__ = with_either("elemwise_add", "_plus", "_plus_scalar", "_plusscalar")
    __sub__ = with_either("elemwise_sub", "_minus", "_minus_scalar", "_minusscalar")
    __rsub__ = with_number("_rminus_scalar", "_rminusscalar")
    __mul__ = __rmul__ = with_either("elemwise_mul", "_mul", "_mul_scalar", "_mulscalar")
    __truediv__ = with_either("elemwise_div", "_div", "_div_scalar", "_divscalar")
    __rtruediv__ = with_number("_rdiv_scalar", "_rdivscalar")
    __mod__ = with_either("_mod", "_mod", "_mod_scalar", "_modscalar")
    __rmod__ = with_number("_rmod_scalar", "_rmodscalar")
    __pow__ = with_either("_power", "_power", "_power_scalar", "_powerscalar")
    __rpow__ = with_number("_rpower_scalar")
    __eq__ = with_either("_equal", "_equal", "_equal_scalar")
    __ne__ = with_either("_not_equal", "_not_equal", "_not_equal_scalar")
    __gt__ = with_either("_greater", "_greater", "_greater_scalar")
    __ge__ = with_either("_greater_equal", "_greater_equal", "_greater_equal_scalar")
    __lt__ = with_either("_lesser", "_lesser", "_lesser_scalar")
    __le__ = with_either("_lesser_equal", "_lesser_equal", "_lesser_equal_scalar")

    def __neg__(self) -> Any:
        return self * -1.0

    def __abs__(self) -> Any:
        return type(self)(make_node("abs", (single(self, "abs takes one value"),), {}, {}).outputs)  # type: ignore[call-arg]
