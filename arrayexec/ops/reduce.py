"""Reductions over axes, and the positions of extremes.

``axis`` is one axis, several, or none (also ``()``): then everything is reduced and the result is ``(1,)``, or all ones
with ``keepdims``. Negative axes count from the end; ``exclude`` reduces all the other axes. Sums of 16-bit numbers are
kept in 32 bits until they are stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ..dims import ANY, UNKNOWN, drop
from ..errors import TypeInferenceError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .broadcast import axis_in, like
from .checks import check_numbers, holds
from .precision import mean_type, wide

Scratch = Mapping[str, tuple[tuple[int, ...], Any]]


def total_of(s: Any, kind: Any) -> tuple[tuple[int, ...], Any]:
    """Scratch for a result that is gathered in type ``kind``: empty if the output itself is of that type."""
    return (s.out if kind != s.dtype("out") else (0,)), kind


def fold_into(fold: Any, data: Any, axes: tuple[int, ...], out: Any, total: Any) -> Any:
    """``out`` = fold(data) over the axes, in the type of total and in its memory if out's is another: that is returned.

    NumPy would put a wider sum down in a narrow ``out`` again and again, rounding each time.
    """
    place = out if total.dtype == out.dtype else total
    fold(data, axis=axes, dtype=total.dtype, keepdims=True, out=place.reshape(kept(data.shape, axes)))
    return place


def put(xp: Any, place: Any, out: Any) -> None:
    """Store what was gathered in other memory than ``out``."""
    if place is not out:
        xp.copyto(out, place, casting="unsafe")


def axes_of(axis: tuple[int, ...] | None, rank: int, exclude: bool = False) -> tuple[int, ...]:
    """The reduced axes, counted from the front; all of them if none is named."""
    if not axis:
        return tuple(range(rank))
    named = {i % rank for i in axis}
    return tuple(i for i in range(rank) if (i in named) != exclude)


def kept(shape: tuple[int, ...], axes: Iterable[int]) -> tuple[int, ...]:
    """``shape`` with 1 at the reduced axes."""
    return tuple(1 if i in axes else dim for i, dim in enumerate(shape))


def infer_reduced(
    s: Any, axis: tuple[int, ...] | None, keepdims: bool, exclude: bool = False, some: str = "", name: str = "out"
) -> None:
    """Rule of a reduction to the output ``name``; with ``some`` (of what), nothing to reduce is refused."""
    out = getattr(s, name)
    if keepdims:
        s.data = like(out)
    if s.data is ANY:
        if not keepdims and not axis:
            setattr(s, name, (1,))
        if keepdims or exclude or not axis or len({i < 0 for i in axis}) > 1 or (len(out) == 1 and out[0] == 1):
            return  # a result of one value may come from any number of dims
        s.data = (UNKNOWN,) * (len(out) + len(set(axis)))
    rank = len(s.data)
    for i in axis or ():
        axis_in(s, "data", i, rank)
    axes = axes_of(axis, rank, exclude)
    if some and any(s.data[i] is not UNKNOWN and s.data[i] == 0 for i in axes):
        s.fail("data", f"must have numbers to take the {some} of, but it is {format_shape(s.data)}")
    if keepdims:
        setattr(s, name, kept(s.data, axes))
        rest = getattr(s, name)
        s.data = tuple(dim if i in axes else its for i, (dim, its) in enumerate(zip(s.data, rest, strict=True)))
        return
    setattr(s, name, tuple(dim for i, dim in enumerate(s.data) if i not in axes) or (1,))
    left = iter(getattr(s, name))
    s.data = tuple(dim if i in axes else next(left) for i, dim in enumerate(s.data))


def rows_of(axis: tuple[int, ...] | None, exclude: bool = False) -> str | None:
    """``parallel`` if it is certain, whatever the rank, that the first axis is not reduced."""
    if not axis:
        return None
    return "parallel" if (0 in axis if exclude else all(i > 0 for i in axis)) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reduction(Op):
    """Base: attributes and shapes."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    exclude: bool = False
    some = ""

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        """Rows are independent if the first axis is not reduced."""
        return rows_of(self.axis, self.exclude)

    def infer(self, s: Any) -> None:
        infer_reduced(s, self.axis, self.keepdims, self.exclude, self.some)

    def axes(self, data: Any) -> tuple[int, ...]:
        """The reduced axes of ``data``."""
        return axes_of(self.axis, data.ndim, self.exclude)

    def spread(self, sym: Any, value: Any, data: Any) -> Any:
        """Symbol of a result's shape, repeated along the reduced axes of ``data``."""
        return sym._gradient_sum_data(value, data, axis=self.axis, keepdims=self.keepdims, exclude=self.exclude)

    def over(self, data: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The reduced axes of ``data``, and the result's shape with ones in their places."""
        return self.axes(data), kept(data.shape, self.axes(data))


_EXAMPLES: tuple[Mapping[str, Any], ...] = (
    {"data": (2, 3, 4)}, {"data": (2, 3, 4), "axis": 1}, {"data": (2, 3, 4), "axis": (0, -1), "keepdims": True},
    {"data": (2, 3, 4), "axis": 1, "exclude": True},
)  # fmt: skip


@register_op(name="sum", aliases=("sum_axis",))
class Sum(_Reduction):
    """``out = sum of data`` over the axes; 0 of none."""

    examples = _EXAMPLES
    linear = ("data",)

    def temps(self, s: Any) -> Scratch:
        return {"total": total_of(s, wide(s.dtype("out")))}

    def forward(self, xp: Any, data: Any, out: Any, total: Temp) -> None:
        put(xp, fold_into(xp.sum, data, self.axes(data), out, total), out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout.reshape(self.over(ddata)[1]))


@register_op(name="mean")
class Mean(_Reduction):
    """``out = sum of data / number of elements`` over the axes; NaN of none, cut towards zero for whole numbers."""

    linear = ("data",)
    examples = (*_EXAMPLES, {"data": Sample((3, 4), -9, 9, True), "axis": 0})

    def temps(self, s: Any) -> Scratch:
        kind = mean_type(s.dtype("out"))  # float16 has no such number as the count may be
        return {"total": total_of(s, kind), "share": (s.out, kind)}

    def forward(self, xp: Any, data: Any, out: Any, total: Temp) -> None:
        axes = self.axes(data)
        place = fold_into(xp.sum, data, axes, out, total)
        xp.divide(place, float(math.prod(data.shape[i] for i in axes)), out=place)
        put(xp, place, out)

    def backward(self, xp: Any, dout: Any, ddata: Any, share: Temp) -> None:
        axes, shape = self.over(ddata)
        xp.divide(dout, float(math.prod(ddata.shape[i] for i in axes)), out=share, dtype=share.dtype)
        xp.copyto(ddata, share.reshape(shape), casting="unsafe")


class _Extreme(_Reduction):
    """Base of max and min: every element that equals the result gets the whole gradient."""

    examples = _EXAMPLES
    fold = ""

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        axes, shape = self.over(data)
        getattr(xp, self.fold)(data, axis=axes, keepdims=True, out=out.reshape(shape))

    def backward(self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any) -> None:
        shape = self.over(data)[1]
        xp.equal(data, out.reshape(shape), out=ddata)
        xp.multiply(ddata, dout.reshape(shape), out=ddata)

    def gradient(self, sym: Any, dout: Any, data: Any, out: Any) -> Mapping[str, Any]:
        return {"data": (data == self.spread(sym, out, data)) * self.spread(sym, dout, data)}


@register_op(name="max", aliases=("max_axis",))
class Max(_Extreme):
    """``out = largest element`` over the axes. Of equal largest ones each gets the whole gradient.

    NaN if one is: then nobody gets any. None to choose from is refused.
    """

    some, fold = "largest", "max"


@register_op(name="min", aliases=("min_axis",))
class Min(_Extreme):
    """``out = smallest element`` over the axes. Of equal smallest ones each gets the whole gradient.

    NaN if one is: then nobody gets any. None to choose from is refused.
    """

    some, fold = "smallest", "min"


class _Product(_Reduction):
    """Base of the products: an element's gradient is the product of all others, also where there are zeros."""

    def temps(self, s: Any) -> Scratch:
        kind = wide(s.dtype("out"))
        return {
            "mask": (s.data, bool), "rest": (s.out, kind), "zeros": (s.out, np.int32), "total": total_of(s, kind)
        }  # fmt: skip

    def easy(self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any, rest: Any) -> bool:
        """``ddata`` = dout · out / data, and True, where no factor is zero; a device is not asked."""
        shape = self.over(data)[1]
        if xp is not np or rest.dtype != out.dtype or data.dtype.kind != "f" or not out.all():
            return False
        xp.multiply(dout, out, out=rest)
        xp.divide(rest.reshape(shape), data, out=ddata)
        return True

    def gradient_of(self, xp: Any, dout: Any, data: Any, ddata: Any, mask: Any, rest: Any, zeros: Any) -> None:
        """ddata from ``ddata``, which holds the factors: data, or what stands for it."""
        axes, shape = self.over(data)
        rest, zeros, dout = rest.reshape(shape), zeros.reshape(shape), dout.reshape(shape)
        xp.equal(data, 0, out=mask)
        xp.copyto(ddata, 1, where=mask, casting="unsafe")
        xp.prod(ddata, axis=axes, dtype=rest.dtype, keepdims=True, out=rest)
        xp.sum(mask, axis=axes, dtype=zeros.dtype, keepdims=True, out=zeros)
        xp.divide(rest, ddata, out=ddata, casting="unsafe")
        xp.multiply(ddata, dout, out=ddata)
        xp.not_equal(mask, zeros, out=mask)  # a zero among the other factors
        xp.copyto(ddata, 0, where=mask, casting="unsafe")


_FACTORS = Sample((2, 3, 4), 0.5, 1.5)


@register_op(name="prod")
class Prod(_Product):
    """``out = product of data`` over the axes, 1 of none; the gradient is right with any number of zeros.

    The gradient as a Symbol divides by data: at zeros it is NaN.
    """

    examples = tuple({**example, "data": _FACTORS} for example in _EXAMPLES)

    def forward(self, xp: Any, data: Any, out: Any, total: Temp) -> None:
        put(xp, fold_into(xp.prod, data, self.axes(data), out, total), out)

    def backward(
        self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any, mask: Temp, rest: Temp, zeros: Temp
    ) -> None:
        if self.easy(xp, dout, data, out, ddata, rest):
            return
        xp.copyto(ddata, data)
        self.gradient_of(xp, dout, data, ddata, mask, rest, zeros)

    def gradient(self, sym: Any, dout: Any, data: Any, out: Any) -> Mapping[str, Any]:
        return {"data": self.spread(sym, dout * out, data) / data}


@register_op(name="nansum")
class NanSum(_Reduction):
    """``out = sum of data`` over the axes, NaN counted as 0, and 0 of none; the gradient of NaN is 0."""

    examples = _EXAMPLES

    def types(self, t: Any) -> None:
        t.same()
        check_numbers(t, "data")

    def temps(self, s: Any) -> Scratch:
        kind = s.dtype("data")
        return {"plain": (s.data, kind), "hole": (s.data, bool), "total": total_of(s, wide(kind))}

    def forward(self, xp: Any, data: Any, out: Any, plain: Temp, hole: Temp, total: Temp) -> None:
        xp.isnan(data, out=hole)
        xp.copyto(plain, data)
        xp.copyto(plain, 0, where=hole)
        put(xp, fold_into(xp.sum, plain, self.axes(data), out, total), out)

    def backward(self, xp: Any, dout: Any, data: Any, ddata: Any, hole: Temp) -> None:
        xp.copyto(ddata, dout.reshape(self.over(data)[1]))
        xp.isnan(data, out=hole)
        xp.copyto(ddata, 0, where=hole)

    def gradient(self, sym: Any, dout: Any, data: Any) -> Mapping[str, Any]:
        return {"data": (data == data) * self.spread(sym, dout, data)}  # NaN equals nothing


@register_op(name="nanprod")
class NanProd(_Product):
    """``out = product of data`` over the axes, NaN counted as 1, and 1 of none; the gradient of NaN is 0."""

    examples = tuple({**example, "data": _FACTORS} for example in _EXAMPLES)

    def types(self, t: Any) -> None:
        t.same()
        check_numbers(t, "data")

    def temps(self, s: Any) -> Scratch:
        return {**super().temps(s), "plain": (s.data, s.dtype("data"))}

    def forward(self, xp: Any, data: Any, out: Any, plain: Temp, mask: Temp, total: Temp) -> None:
        xp.isnan(data, out=mask)
        xp.copyto(plain, data)
        xp.copyto(plain, 1, where=mask)
        put(xp, fold_into(xp.prod, plain, self.axes(data), out, total), out)

    def backward(
        self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any, mask: Temp, rest: Temp, zeros: Temp
    ) -> None:
        if not self.easy(xp, dout, data, out, ddata, rest):
            xp.isnan(data, out=mask)
            xp.copyto(ddata, data)
            xp.copyto(ddata, 1, where=mask)
            self.gradient_of(xp, dout, data, ddata, mask, rest, zeros)
        xp.isnan(data, out=mask)
        xp.copyto(ddata, 0, where=mask)


@register_op(name="norm")
class Norm(Op):
    """``out = sqrt(sum of data ** 2)``, or ``sum of |data|`` for ord=1, over the axes, in the type ``out_dtype``.

    The norm of none is 0. At norm 0 the gradient of ord=2 is NaN; that of ord=1 is 0 where data is 0.
    """

    ord: Literal[2, 1] = 2
    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    out_dtype: np.dtype[Any] | None = None
    examples = (
        {"data": (2, 3, 4)},
        {"data": (2, 3, 4), "axis": 1, "ord": 1},
        {"data": (2, 3, 4), "axis": (1, 2), "keepdims": True},
        {"data": Sample((2, 3), 3.0, 9.0), "out_dtype": "int32"},
    )  # fmt: skip

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        """Rows are independent if the first axis is not reduced."""
        return rows_of(self.axis)

    def infer(self, s: Any) -> None:
        infer_reduced(s, self.axis, self.keepdims)

    def types(self, t: Any) -> None:
        if self.out_dtype is None:
            t.same()
        t.out = self.out_dtype
        check_numbers(t, "data")

    def temps(self, s: Any) -> Scratch:
        kind = np.result_type(mean_type(s.dtype("data")), s.dtype("out"))
        return {"terms": (s.data, kind), "total": total_of(s, kind), "share": (s.out, kind)}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return ("dout", "data", "out") if self.ord == 2 else ("dout", "data")

    def forward(self, xp: Any, data: Any, out: Any, terms: Temp, total: Temp) -> None:
        axes = axes_of(self.axis, data.ndim)
        (xp.square if self.ord == 2 else xp.abs)(data, out=terms, dtype=terms.dtype, casting="unsafe")
        place = fold_into(xp.sum, terms, axes, out, total)
        if self.ord == 2:
            xp.sqrt(place, out=place)
        put(xp, place, out)

    def backward(self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any, share: Temp) -> None:
        shape = kept(data.shape, axes_of(self.axis, data.ndim))
        if self.ord == 2:
            xp.divide(dout, out, out=share, casting="unsafe")
            xp.multiply(data, share.reshape(shape), out=ddata, casting="unsafe")
        else:
            xp.sign(data, out=ddata)
            xp.multiply(ddata, dout.reshape(shape), out=ddata, casting="unsafe")

    def gradient(self, sym: Any, dout: Any, data: Any, out: Any) -> Mapping[str, Any] | None:
        if self.out_dtype is not None:
            return None
        size, slope = (dout / out, data) if self.ord == 2 else (dout, sym.sign(data))
        return {"data": sym._gradient_sum_data(size, data, axis=self.axis, keepdims=self.keepdims) * slope}


class _Search(Op):
    """Base of argmax and argmin: positions are written in data's type; one that it cannot hold is refused."""

    axis: Any = 1
    keepdims: Any = False
    find = "argmax"

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        """Rows are independent if the first axis is not searched."""
        return rows_of(self._axes)

    @property
    def _axes(self) -> tuple[int, ...] | None:
        return None if self.axis is None else (self.axis,)

    def infer(self, s: Any) -> None:
        infer_reduced(s, self._axes, self.keepdims, some="largest or smallest")

    def temps(self, s: Any) -> Scratch:
        moved = s.data if self.axis is None else (*drop(s.data, self.axis), s.data[self.axis])
        return {"moved": (moved, s.dtype("data")), "place": (s.out, np.int64)}

    def forward(self, xp: Any, data: Any, out: Any, moved: Temp, place: Temp) -> None:
        # NumPy itself would copy data that are not in line or may not be written
        rows = data if self.axis is None else xp.moveaxis(data, self.axis, -1)
        if not rows.flags.c_contiguous or (xp is np and not rows.flags.writeable):
            xp.copyto(moved, rows)
            rows = moved
        rows = rows.reshape(1, -1) if self.axis is None else rows
        if not holds(out.dtype, rows.shape[-1] - 1):
            raise TypeInferenceError(
                f"{self.form.name}: data must be of a type that holds the positions up to {rows.shape[-1] - 1}, but "
                f"it is {out.dtype.name}; cast it to a wider one"
            )
        getattr(xp, self.find)(rows, axis=-1, out=place.reshape(rows.shape[:-1]))
        xp.copyto(out, place, casting="unsafe")


_SEARCHES = ({"data": (3, 5)}, {"data": (3, 5, 2), "axis": 1}, {"data": (3, 5), "axis": 0, "keepdims": True})


@register_op(name="argmax")
class ArgMax(_Search):
    """``out = position of the largest element`` along axis, or in the flattened data; the first of equals, or NaN."""

    axis: int | None = None
    keepdims: bool = False
    examples = _SEARCHES


@register_op(name="argmin")
class ArgMin(_Search):
    """``out = position of the smallest element`` along axis, or in the flattened data; the first of equals, or NaN."""

    axis: int | None = None
    keepdims: bool = False
    find = "argmin"
    examples = _SEARCHES


@register_op(name="argmax_channel")
class ArgMaxChannel(_Search):
    """``out = position of the largest element`` along axis 1; the first one of equals, or NaN."""

    examples = ({"data": (3, 5)}, {"data": (2, 3, 4)})
