"""Operators that choose or take apart: where, slice_like, reshape_like, diag, split_v2, assignments to slices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..dims import ANY, UNKNOWN, distinct, drop, replace
from ..errors import AttributeValueError, format_shape
from ..registry import Many, Op, Sample, Temp, register_op
from .checks import check_axis, check_rank
from .reduce import Scratch
from .shape import Equation, Slice, balance, move


@register_op
class where(Op):
    """``out`` = ``x`` where ``condition`` is not 0 (NaN is not), else ``y``: all of one shape, x and y of one type.

    A condition with one dim chooses rows: condition (n,), x, y and out (n, …).
    """

    no_gradient = ("condition",)
    rows = "parallel"
    examples = (
        {"condition": Sample((2, 3), 0, 1, True), "x": (2, 3), "y": (2, 3)},
        {"condition": Sample((3,), 0, 1, True), "x": (3, 2, 2), "y": (3, 2, 2)},
    )

    def infer(self, s: Any) -> None:
        s.out = s.x
        s.out = s.y
        s.x = s.y = s.out
        if s.condition is ANY:
            s.condition = s.out if len(s.out) == 1 else ANY  # of more dims it may choose values or rows
        elif len(s.condition) == 1:
            s.condition = s.out[:1]
            s.x = s.y = s.out = replace(s.out, 0, s.condition[0])
        else:
            s.condition = s.out
            s.x = s.y = s.out = s.condition

    # Values are chosen as whole numbers of their bits: many times faster than a copy with where=, and NaN stays NaN.

    def temps(self, s: Any) -> Scratch:
        return {"mask": (s.condition, _bits(s.dtype("out")))}

    def choice(self, xp: Any, condition: Any, mask: Any, rank: int) -> Any:
        """All bits where ``condition`` is true, none elsewhere; to be stretched over ``rank`` axes."""
        xp.not_equal(condition, 0, out=mask)
        xp.negative(mask, out=mask)
        return mask.reshape(*mask.shape, *(1,) * (rank - mask.ndim))

    def forward(self, xp: Any, condition: Any, x: Any, y: Any, out: Any, mask: Temp) -> None:
        chosen, kind = self.choice(xp, condition, mask, out.ndim), mask.dtype
        x, y, out = x.view(kind), y.view(kind), out.view(kind)
        xp.bitwise_xor(x, y, out=out)
        xp.bitwise_and(out, chosen, out=out)
        xp.bitwise_xor(out, y, out=out)

    def backward(self, xp: Any, dout: Any, condition: Any, dx: Any, dy: Any, mask: Temp) -> None:
        chosen, bits = self.choice(xp, condition, mask, dout.ndim), dout.view(mask.dtype)
        if dx is not None:
            xp.bitwise_and(bits, chosen, out=dx.view(mask.dtype))
        if dy is not None:
            xp.invert(mask, out=mask)
            xp.bitwise_and(bits, chosen, out=dy.view(mask.dtype))

    def gradient(self, sym: Any, dout: Any, condition: Any) -> Mapping[str, Any]:
        nothing = sym.zeros_like(dout)
        return {"x": sym.where(condition, dout, nothing), "y": sym.where(condition, nothing, dout)}


def _bits(kind: Any) -> str:
    """Type of whole numbers as wide as ``kind``."""
    return f"int{8 * np.dtype(kind).itemsize}"


@register_op
class slice_like(Op):
    """``out`` = the first values of ``data`` along ``axes`` (default: all), as many as ``shape_like`` has there.

    shape_like gives its shape alone: its type is free and its gradient zero.
    """

    axes: tuple[int, ...] = ()
    linear = ("data",)
    no_gradient = ("shape_like",)
    examples = (
        {"data": (4, 5), "shape_like": (2, 3)},
        {"data": (4, 5, 2), "shape_like": (7, 3), "axes": (-2,)},
    )

    def infer(self, s: Any) -> None:
        if not self.axes:
            s.out = s.shape_like
            s.shape_like = s.out
            s.data = s.out = (UNKNOWN,) * len(s.out if s.data is ANY else s.data)
        s.out = s.data = (UNKNOWN,) * len(s.out if s.data is ANY else s.data)
        for axis in self.axes:
            check_axis(s, "data", axis)
        axes = [axis % len(s.data) for axis in self.axes] or range(len(s.data))
        for axis in axes:
            check_axis(s, "shape_like", axis)  # counted from data's end, if from the end
            s.shape_like = replace(s.shape_like, axis, s.out[axis])
        s.out = tuple(s.shape_like[i] if i in axes else dim for i, dim in enumerate(s.data))
        s.data = tuple(UNKNOWN if i in axes else dim for i, dim in enumerate(s.out))
        if any(dim is not UNKNOWN and few is not UNKNOWN and few > dim for few, dim in zip(s.out, s.data, strict=True)):
            s.fail("data", f"must be at least {format_shape(s.out)} in every dim, but it is {format_shape(s.data)}")

    def forward(self, xp: Any, data: Any, shape_like: Any, out: Any) -> None:
        xp.copyto(out, data[tuple(map(slice, out.shape))])

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        ddata.fill(0)
        xp.copyto(ddata[tuple(map(slice, dout.shape))], dout)


@register_op
class reshape_like(Op):
    """``out`` = ``lhs`` with its dims lhs_begin:lhs_end in the shape of the dims rhs_begin:rhs_end of ``rhs``.

    Without bounds it has rhs's shape. rhs gives its shape alone: its type is free and its gradient zero.
    """

    lhs_begin: int | None = None
    lhs_end: int | None = None
    rhs_begin: int | None = None
    rhs_end: int | None = None
    linear = ("lhs",)
    inplace: ClassVar[Mapping[str, str]] = {"out": "lhs", "dlhs": "dout"}
    no_gradient = ("rhs",)
    examples = (
        {"lhs": (2, 6), "rhs": (3, 4)},
        {"lhs": (2, 12, 5), "rhs": (7, 3, 4, 9), "lhs_begin": 1, "lhs_end": 2, "rhs_begin": 1, "rhs_end": -1},
    )

    def infer(self, s: Any) -> None:
        bounds = slice(self.lhs_begin, self.lhs_end), slice(self.rhs_begin, self.rhs_end)
        if bounds == (slice(None), slice(None)):
            s.out = s.rhs
            s.rhs = s.out
        start, stop, _ = bounds[0].indices(len(s.lhs))
        first, last, _ = bounds[1].indices(len(s.rhs))
        made, rest = max(last - first, 0), len(s.lhs) - max(stop, start)
        s.out = (*s.lhs[:start], *s.rhs[first : first + made], *s.lhs[len(s.lhs) - rest :])
        s.rhs = (*s.rhs[:first], *s.out[start : start + made], *s.rhs[first + made :])
        lhs, out = list(s.lhs), list(s.out)
        pairs: list[Equation] = [((i,), (i,)) for i in range(start)]
        pairs += [((len(lhs) - i,), (len(out) - i,)) for i in range(1, rest + 1)]
        pairs.append((tuple(range(start, len(lhs) - rest)), tuple(range(start, start + made))))
        for pair in pairs:
            if not balance(lhs, out, pair):
                s.fail("lhs", f"must have as many values as {format_shape(s.out)}, but it is {format_shape(s.lhs)}")
        s.lhs, s.out = tuple(lhs), tuple(out)
        s.rhs = (*s.rhs[:first], *s.out[start : start + made], *s.rhs[first + made :])

    def is_view(self, train: bool) -> bool:
        return True

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:
        move(xp, lhs, out)

    def backward(self, xp: Any, dout: Any, dlhs: Any) -> None:
        move(xp, dout, dlhs)


def diagonal(xp: Any, array: Any, k: int, axis1: int, axis2: int) -> Any:
    """View of the k-th diagonal, along the last axis, to be written: NumPy's own must not be."""
    start, shape, strides = [slice(None)] * array.ndim, list(array.shape), list(array.strides)
    axis1, axis2 = axis1 % array.ndim, axis2 % array.ndim
    start[axis1], start[axis2] = slice(max(-k, 0), None), slice(max(k, 0), None)
    count = max(min(shape[axis1] - max(-k, 0), shape[axis2] - max(k, 0)), 0)
    rest = [i for i in range(array.ndim) if i not in (axis1, axis2)]
    return xp.lib.stride_tricks.as_strided(
        array[tuple(start)],
        (*(shape[i] for i in rest), count),
        (*(strides[i] for i in rest), strides[axis1] + strides[axis2]),
    )


@register_op
class diag(Op):
    """``out`` = the k-th diagonal of ``data`` over ``axis1`` and ``axis2``, as the last axis behind the others.

    k > 0 lies above, k < 0 below the main diagonal. A vector becomes a square matrix with it as the k-th diagonal.
    """

    k: int = 0
    axis1: int = 0
    axis2: int = 1
    linear = ("data",)
    examples = (
        {"data": (3, 4), "k": 1},
        {"data": (2, 3, 4), "axis1": 2, "axis2": -2, "k": -1},
    )

    def infer(self, s: Any) -> None:
        if len(s.data) == 1:
            s.out = (s.data[0] + abs(self.k),) * 2
            if s.out[0] is not UNKNOWN and s.out[0] < abs(self.k):
                s.fail("out", f"must be at least {abs(self.k)} in every dim, but it is {format_shape(s.out)}")
            s.data = (s.out[0] - abs(self.k),)
            return
        check_axis(s, "data", self.axis1)
        check_axis(s, "data", self.axis2)
        axis1, axis2 = self.axis1 % len(s.data), self.axis2 % len(s.data)
        if axis1 == axis2:
            s.fail("data", f"must have two different axes {self.axis1}, {self.axis2}, but it is {format_shape(s.data)}")
        rest = [i for i in range(len(s.data)) if i not in (axis1, axis2)]
        s.out = (*(s.data[i] for i in rest), UNKNOWN)
        places = {i: place for place, i in enumerate(rest)}
        s.data = tuple(s.out[places[i]] if i in places else UNKNOWN for i in range(len(s.data)))
        rows, columns = s.data[axis1] - max(-self.k, 0), s.data[axis2] - max(self.k, 0)
        if min(rows, columns) < 1 and s.data[axis1] * s.data[axis2] > 0:
            s.fail("data", f"must have a diagonal {self.k}, but it is {format_shape(s.data)}")
        s.out = (*s.out[:-1], max(min(rows, columns), 0))

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        if data.ndim == 1:
            out.fill(0)
            xp.copyto(diagonal(xp, out, self.k, 0, 1), data)
        else:
            xp.copyto(out, xp.diagonal(data, self.k, self.axis1, self.axis2))

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        if ddata.ndim == 1:
            xp.copyto(ddata, xp.diagonal(dout, self.k))
        else:
            ddata.fill(0)
            xp.copyto(diagonal(xp, ddata, self.k, self.axis1, self.axis2), dout)


@register_op
class _split_v2(Op):
    """The outputs are ``data`` cut along ``axis`` before each of ``indices`` (the first: 0), or in ``sections``.

    A number of ``sections`` makes equal ones; ``squeeze_axis`` drops an axis of 1.
    """

    indices: tuple[int, ...] = ()
    axis: int = 1
    squeeze_axis: bool = False
    sections: int = 0
    examples = (
        {"data": (2, 6), "indices": (0, 1, 4)},
        {"data": (6, 2), "axis": 0, "sections": 3},
        {"data": (2, 3, 2), "axis": -1, "sections": 2, "squeeze_axis": True},
    )

    def __post_init__(self) -> None:
        rising = all(a <= b for a, b in itertools.pairwise(self.indices)) and self.indices[:1] == (0,)
        if self.sections < 0 or not (self.sections or rising):
            raise AttributeValueError(
                "_split_v2: attribute 'indices' must begin with 0 and not fall, or 'sections' must be at least 1, "
                f"but they are {self.indices} and {self.sections}"
            )

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return self.sections or len(self.indices)

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"out{i}" for i in range(self.count)) if self.count > 1 else ("out",)

    def lengths(self, whole: Any) -> list[Any]:
        """Lengths of the pieces of an axis of length ``whole``."""
        if self.sections:
            return [whole // self.sections] * self.sections
        return [b - a for a, b in itertools.pairwise((*self.indices, whole))]

    def infer(self, s: Any) -> None:
        if s.data is ANY:
            piece = next((shape for shape in s.out if shape is not ANY), ANY)
            s.data = (UNKNOWN,) * (len(piece) + self.squeeze_axis)
        check_axis(s, "data", self.axis)
        axis = self.axis % len(s.data)
        whole = s.data[axis]
        if whole is not UNKNOWN and self.sections and whole % self.sections:
            s.fail("data", f"must be a multiple of {self.sections} in dim {axis}, but it is {format_shape(s.data)}")
        if whole is not UNKNOWN and not self.sections and whole < self.indices[-1]:
            s.fail("data", f"must be at least {self.indices[-1]} long in dim {axis}, but it is {format_shape(s.data)}")
        lengths = self.lengths(whole)
        if self.squeeze_axis:
            if any(length is not UNKNOWN and length != 1 for length in lengths):
                s.fail("data", f"must give pieces of 1 in dim {axis} to squeeze them, but it is {format_shape(s.data)}")
            s.out = (drop(s.data, axis),) * self.count
            for shape in distinct(s.out):
                s.data = (*shape[:axis], self.count, *shape[axis:])
            return
        s.out = tuple(replace(s.data, axis, length) for length in lengths)
        for shape in distinct(replace(shape, axis, UNKNOWN) for shape in s.out):
            s.data = shape
        sizes = [shape[axis] for shape in s.out]
        if all(size is not UNKNOWN for size in sizes):
            s.data = replace(s.data, axis, sum(sizes))

    def pieces(self, whole: Any) -> list[Any]:
        """Views of ``whole``, one an output."""
        lined = whole.swapaxes(0, self.axis)
        ends = list(itertools.accumulate(self.lengths(lined.shape[0]), initial=0))
        views = [lined[a:b].swapaxes(0, self.axis) for a, b in itertools.pairwise(ends)]
        return [view.squeeze(self.axis) for view in views] if self.squeeze_axis else views

    def forward(self, xp: Any, data: Any, out: Many) -> None:
        for piece, target in zip(self.pieces(data), out, strict=True):
            xp.copyto(target, piece)

    def backward(self, xp: Any, dout: Many, ddata: Any) -> None:
        for piece, gradient in zip(self.pieces(ddata), dout, strict=True):
            xp.copyto(piece, gradient)

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        pieces = [sym.expand_dims(one, axis=self.axis) for one in dout] if self.squeeze_axis else dout
        return {"data": sym.Concat(*pieces, dim=self.axis)}


@register_op(aliases=("_crop_assign",))
class _slice_assign(Slice):
    """``out`` = ``lhs`` with ``rhs`` at ``[begin[0]:end[0]:step[0], …]``."""

    inplace: ClassVar[Mapping[str, str]] = {"out": "lhs", "dlhs": "dout"}
    linear: ClassVar[tuple[str, ...]] = ()  # what is written counts, too
    examples = (
        {"lhs": (4, 5, 2), "rhs": (2, 4, 2), "begin": (1, None), "end": (3, 4)},
        {"lhs": (4, 5), "rhs": (2, 2), "begin": (None, 4), "end": (None, 0), "step": (2, -2)},
    )

    def infer(self, s: Any) -> None:
        s.out = s.lhs
        s.lhs = s.out
        check_rank(s, "lhs", len(self.begin))
        self.said(s, "lhs", "rhs")

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:  # type: ignore[override]
        xp.copyto(out, lhs)
        xp.copyto(out[self.parts(out.ndim)], rhs)

    def backward(self, xp: Any, dout: Any, dlhs: Any, drhs: Any) -> None:  # type: ignore[override]
        parts = self.parts(dout.ndim)
        if drhs is not None:
            xp.copyto(drhs, dout[parts])
        if dlhs is not None:
            xp.copyto(dlhs, dout)
            dlhs[parts].fill(0)

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        bounds = {"begin": self.begin, "end": self.end, "step": self.step}
        return {"lhs": sym._slice_assign_scalar(dout, **bounds), "rhs": sym.slice(dout, **bounds)}


@register_op(aliases=("_crop_assign_scalar",))
class _slice_assign_scalar(Slice):
    """``out`` = ``data`` with the number ``scalar`` at ``[begin[0]:end[0]:step[0], …]``."""

    scalar: float = 0.0
    inplace: ClassVar[Mapping[str, str]] = {"out": "data", "ddata": "dout"}
    linear: ClassVar[tuple[str, ...]] = ()  # what is written is a constant
    examples = (
        {"data": (4, 5), "begin": (1, None), "end": (3, 4), "scalar": 2.5},
        {"data": (4, 5), "begin": (None, 4), "end": (None, 0), "step": (2, -2)},
    )

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_rank(s, "data", len(self.begin))

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)
        out[self.parts(out.ndim)].fill(self.scalar)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)
        ddata[self.parts(ddata.ndim)].fill(0)

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        return {"data": sym._slice_assign_scalar(dout, begin=self.begin, end=self.end, step=self.step)}
