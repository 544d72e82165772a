"""Values from nothing: constants of a given shape, and of another value's shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..attribute_text import TYPE_CODES
from ..context import copyto
from ..dims import ANY, UNKNOWN, from_user, replace
from ..errors import AttributeValueError, format_shape
from ..registry import Op, register_op
from .checks import check_axis, check_least
from .order import index_limit

FLOAT32 = np.dtype("float32")


def count_up(xp: Any, flat: Any, start: float, step: float, repeat: int = 1) -> None:
    """``flat`` = start, start + step, …, each ``repeat`` times, computed in float64."""
    block = 16384 if xp is np else 1 << 20  # in the cache; a launch must be worth its while
    if repeat == 1 and flat.size > 1 and _exact(start, step, flat):
        begin = flat[:block]
        xp.copyto(begin, xp.arange(start, start + (len(begin) - 0.5) * step, step, dtype=flat.dtype))
        for first in range(block, flat.size, block):
            part = flat[first : first + block]
            xp.add(begin[: len(part)], int(first * step), out=part)
        return
    for first in range(0, flat.size, block):
        _count(xp, flat[first : first + block], first, start, step, repeat)


def _count(xp: Any, part: Any, first: int, start: float, step: float, repeat: int) -> None:
    values = xp.arange(first, first + part.size, dtype="float64")
    if repeat > 1:
        xp.floor_divide(values, repeat, out=values)
    if step != 1:
        xp.multiply(values, step, out=values)
    if start != 0:
        xp.add(values, start, out=values)
    xp.copyto(part, values, casting="unsafe")


def _exact(start: float, step: float, flat: Any) -> bool:
    """Whether all values are whole numbers that the type of ``flat`` holds, so that nothing is rounded on the way."""
    if flat.dtype.kind not in "iuf" or not (float(start).is_integer() and float(step).is_integer()):
        return False
    return step > 0 and start >= 0 and start + flat.size * step <= min(index_limit(flat.dtype), 2**53)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Filled(Op):
    """Base of _zeros, _ones and _full. A dim of 0 (or no shape at all) is unknown: the users of the value say it.

    They say the type, too, where none is given; float32 if they do not.
    """

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    ctx: str = ""
    hints = ("ctx",)
    number: ClassVar[float] = 0

    def infer(self, s: Any) -> None:
        s.out = from_user(self.shape)

    def types(self, t: Any) -> None:
        if self.dtype is not None:
            t.out = self.dtype

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.number)


@register_op
class _zeros(_Filled):
    """``out`` = 0 everywhere; dims of 0 in ``shape`` are filled in by inference."""

    examples = ({"shape": (2, 3), "dtype": "float64"},)


@register_op
class _ones(_Filled):
    """``out`` = 1 everywhere; dims of 0 in ``shape`` are filled in by inference."""

    number = 1
    examples = ({"shape": (2, 3), "dtype": "float64"},)


@register_op
class _zeros_without_dtype(_Filled):
    """``out`` = 0 everywhere; dims of 0 in ``shape`` are filled in by inference, and so is a ``dtype`` of -1."""

    dtype: int = -1  # type: ignore[assignment]
    examples = ({"shape": (2, 3), "dtype": 1},)

    def __post_init__(self) -> None:
        if not -1 <= self.dtype < len(TYPE_CODES):
            raise AttributeValueError(
                f"_zeros_without_dtype: attribute 'dtype' must be -1 or a type code below {len(TYPE_CODES)}, "
                f"but it is {self.dtype}"
            )

    def types(self, t: Any) -> None:
        if self.dtype >= 0:
            t.out = TYPE_CODES[self.dtype]


@register_op
class _full(_Filled):
    """``out`` = ``value`` everywhere; dims of 0 in ``shape`` are filled in by inference."""

    value: float
    examples = ({"shape": (2, 3), "value": 2.5, "dtype": "float64"},)

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.value)


@register_op
class _arange(Op):
    """``out`` (n,) = start, start + step, … before ``stop``, each ``repeat`` times in a row.

    Without ``stop`` the values are 0 … start, or, with ``infer_range``, start and as many as the users of ``out`` say.
    """

    start: float
    stop: float | None = None
    step: float = 1.0
    repeat: int = 1
    infer_range: bool = False
    dtype: np.dtype[Any] = FLOAT32
    ctx: str = ""
    hints = ("ctx", "infer_range")  # infer_range shows only where another node says the shape: tests/ops has it
    examples = (
        {"start": 1.0, "stop": 7.5, "step": 2.0, "dtype": "float64"},
        {"start": 3.0, "repeat": 2, "dtype": "int32"},
    )

    def __post_init__(self) -> None:
        start, stop = self.bounds()
        if self.repeat < 1 or self.step == 0 or (stop is not None and not 0 < (stop - start) / self.step < math.inf):
            raise AttributeValueError(
                "_arange: there must be values, and an end: 'step' leads from 'start' to 'stop', 'repeat' is at least "
                f"1, but start={start}, stop={stop}, step={self.step}, repeat={self.repeat}"
            )

    def bounds(self) -> tuple[float, float | None]:
        """Where the values start and stop; None where inference says it."""
        if self.stop is None and not self.infer_range:
            return 0.0, self.start
        return self.start, self.stop

    def infer(self, s: Any) -> None:
        start, stop = self.bounds()
        if stop is not None:
            s.out = (math.ceil((stop - start) / self.step) * self.repeat,)
        elif len(s.out) != 1 or s.out[0] % self.repeat:
            s.fail("out", f"must have one dim, a multiple of repeat={self.repeat}, but it is {format_shape(s.out)}")

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def forward(self, xp: Any, out: Any) -> None:
        count_up(xp, out, self.bounds()[0], self.step, self.repeat)


@register_op
class _linspace(Op):
    """``out`` (num,) = values at equal distances from ``start`` to ``stop``, or just before it without ``endpoint``.

    Computed in float64; one value is ``start``.
    """

    start: float
    stop: float
    num: int
    endpoint: bool = True
    dtype: np.dtype[Any] = FLOAT32
    ctx: str = ""
    hints = ("ctx",)
    examples = (
        {"start": 1.0, "stop": 2.0, "num": 5},
        {"start": 1.0, "stop": -2.0, "num": 4, "endpoint": False, "dtype": "float64"},
    )

    def __post_init__(self) -> None:
        check_least(self, "num")

    def infer(self, s: Any) -> None:
        s.out = (self.num,)

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def forward(self, xp: Any, out: Any) -> None:
        steps = self.num - 1 if self.endpoint else self.num
        count_up(xp, out, self.start, (self.stop - self.start) / max(steps, 1))
        if self.endpoint and self.num > 1:
            out[-1:].fill(self.stop)  # exactly


@register_op
class _eye(Op):
    """``out`` (N, M) = 1 on the k-th diagonal (above the main one for k > 0), 0 elsewhere; M = 0 means N."""

    N: int
    M: int = 0
    k: int = 0
    dtype: np.dtype[Any] = FLOAT32
    ctx: str = ""
    hints = ("ctx",)
    examples = ({"N": 3}, {"N": 2, "M": 4, "k": 1, "dtype": "int32"})

    def __post_init__(self) -> None:
        check_least(self, "N")
        check_least(self, "M", least=0)

    def infer(self, s: Any) -> None:
        s.out = (self.N, self.M or self.N)

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(0)
        rows, columns = out.shape
        first, count = max(self.k, 0) + columns * max(-self.k, 0), min(rows + min(self.k, 0), columns - max(self.k, 0))
        if count > 0:
            out.reshape(-1)[first : first + (count - 1) * (columns + 1) + 1 : columns + 1].fill(1)


class _Measure(Op):
    """Base of shape_array and size_array: what is known when the arrays are bound."""

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def types(self, t: Any) -> None:
        t.out = "int64"

    def numbers(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What ``out`` holds for data of ``shape``."""
        return shape

    def prepare(self, known: Any, context: Any) -> Any:
        return np.array(self.numbers(known.data), np.int64)

    def forward(self, xp: Any, prepared: Any, out: Any) -> None:
        if xp is np:
            out[:] = prepared
        else:
            copyto(out, prepared)


@register_op
class shape_array(_Measure):
    """``out`` (number of dims,) = the dims of ``data``, int64."""

    examples = ({"data": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.data = (UNKNOWN,) * s.out[0] if s.data is ANY and s.out[0] is not UNKNOWN else ANY
        s.out = (len(s.data),)


@register_op
class size_array(_Measure):
    """``out`` (1,) = the number of values of ``data``, int64."""

    examples = ({"data": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.out = (1,)

    def numbers(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (math.prod(shape),)


@register_op
class _identity_with_attr_like_rhs(Op):
    """``out`` = ``lhs``, in the shape that it shares with ``rhs``, whose values do not count."""

    no_gradient = ("rhs",)
    passes = ("lhs",)
    inplace: ClassVar[Mapping[str, str]] = {"out": "lhs", "dlhs": "dout"}
    rows = "parallel"
    examples = ({"lhs": (2, 3), "rhs": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.out = s.lhs
        s.out = s.rhs
        s.lhs = s.rhs = s.out

    def is_view(self, train: bool) -> bool:
        return True

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:
        xp.copyto(out, lhs)

    def backward(self, xp: Any, dout: Any, dlhs: Any) -> None:
        xp.copyto(dlhs, dout)


class _Like(Op):
    """Base of zeros_like and ones_like."""

    rows = "parallel"
    examples = ({"data": (2, 3)},)
    number: ClassVar[float] = 0

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.number)


@register_op
class zeros_like(_Like):
    """``out`` = 0 in the shape and type of ``data``, whose values do not count."""


@register_op
class ones_like(_Like):
    """``out`` = 1 in the shape and type of ``data``, whose values do not count."""

    number = 1


@register_op(name="_contrib_arange_like")
class ArangeLike(Op):
    """``out`` = start, start + step, … each ``repeat`` times in a row: as many as data has, or has along ``axis``.

    data (…), out in data's shape, or (n,) with n = data's length along axis; the values of data do not count.
    """

    start: float = 0.0
    step: float = 1.0
    repeat: int = 1
    axis: int | None = None
    ctx: str = ""
    hints = ("ctx",)
    examples = (
        {"data": (2, 3), "start": 2.0, "step": 0.5},
        {"data": (2, 6), "axis": -1, "repeat": 2},
    )

    def __post_init__(self) -> None:
        check_least(self, "repeat")

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def infer(self, s: Any) -> None:
        if self.axis is None:
            s.out = s.data
            s.data = s.out
        else:
            check_axis(s, "data", self.axis)
            s.out = (s.data[self.axis],)
            s.data = replace(s.data, self.axis, s.out[0])

    def forward(self, xp: Any, out: Any) -> None:
        count_up(xp, out.reshape(-1), self.start, self.step, self.repeat)
