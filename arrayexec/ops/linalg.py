"""Products of matrices as BLAS names them, the Khatri-Rao product, and diagonals and triangles put in and taken out.

Matrices lie in the last two axes; any number of axes before them counts the matrices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..dims import ANY, UNKNOWN, Shape, product, replace
from ..errors import format_shape
from ..registry import Many, Op, Temp, register_op, signature_of
from .checks import check_rank
from .dot import multiply, room_for, turned
from .precision import wide
from .transposed import gradients

Array = Any


def stacked(lead: Shape, *dims: Any) -> Shape:
    """``lead`` and then ``dims``; of unknown rank if ``lead`` is."""
    return lead + dims


def same_stack(s: Any, *names: str) -> None:
    """Say that all have as many dims, and the same ones before the last two."""
    for name in names:
        check_rank(s, name, 2)
    for source in names:
        for target in names:
            setattr(s, target, stacked(getattr(s, source)[:-2], UNKNOWN, UNKNOWN))


def square(s: Any, name: str) -> None:
    """Say that the last two dims of a value are equal."""
    shape = getattr(s, name)
    for dim in (shape[-1], shape[-2]):
        setattr(s, name, stacked(shape[:-2], dim, dim))


def keep_triangle(xp: Any, source: Array, target: Array, lower: bool) -> Array:
    """``target`` = the lower or upper triangle of ``source``, which it may be, and 0 beside it; returns it."""
    size = target.shape[-1]
    below = xp.tri(size, k=-1, dtype="bool")
    if target is not source:
        xp.copyto(target, source)
    xp.copyto(target, 0, where=below.T if lower else below)
    return target


def _scale(xp: Any, array: Array, factor: float) -> None:
    if factor != 1:
        xp.multiply(array, factor, out=array, casting="unsafe")


class _Product(Op):
    """Base of gemm and gemm2: out = alpha · op(A) · op(B) and what is added; ``axis`` counts the rows."""

    def infer(self: Any, s: Any) -> None:
        names = (*signature_of(self).inputs, "out")
        for name in names:
            shape = getattr(s, name)
            if shape is not ANY and (self.axis == -1 or not -len(shape) <= self.axis < len(shape) - 1):
                must = f"must have its rows in axis {self.axis}, before the last"
                s.fail(name, f"{must}, but it is {format_shape(shape)}")
            for other in names:
                setattr(s, other, ANY if shape is ANY else (UNKNOWN,) * len(shape))
        if s.out is ANY:
            return
        axis = self.axis % len(s.out)
        for source in names:
            lead = replace(replace(getattr(s, source), axis, UNKNOWN), -1, UNKNOWN)
            for other in names:
                setattr(s, other, lead)
        (row, inner), (other_inner, column) = self._places(axis)
        s.B = replace(s.B, other_inner, s.A[inner])
        s.A = replace(s.A, inner, s.B[other_inner])
        for name in names[2:]:
            setattr(s, name, replace(replace(getattr(s, name), axis, s.A[row]), -1, s.B[column]))
            s.A = replace(s.A, row, getattr(s, name)[axis])
            s.B = replace(s.B, column, getattr(s, name)[-1])
        for name in names[2:]:
            setattr(s, name, s.out)
            s.out = getattr(s, name)

    def _places(self: Any, axis: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Axes of rows and columns of op(A), and of op(B)."""
        return ((-1, axis) if self.transpose_a else (axis, -1)), ((-1, axis) if self.transpose_b else (axis, -1))

    def _rows(self: Any, xp: Any, array: Array) -> Array:
        return array if self.axis % array.ndim == array.ndim - 2 else xp.moveaxis(array, self.axis, -2)

    def temps(self: Any, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        axis = self.axis % len(s.A)
        (row, inner), (_, column) = self._places(axis)
        stack, m, k, n = (*s.A[:axis], *s.A[axis + 1 : -1]), s.A[row], s.A[inner], s.B[column]
        return {"room": room_for(s.dtype("A"), (stack, m, k, n), (stack, m, n, k), (stack, k, m, n))}

    def _multiply(self: Any, xp: Any, A: Array, B: Array, out: Array, room: Array) -> None:
        a, b = turned(self._rows(xp, A), self.transpose_a), turned(self._rows(xp, B), self.transpose_b)
        multiply(xp, a, b, self._rows(xp, out), room)
        _scale(xp, out, self.alpha)

    def _backward(self: Any, xp: Any, dout: Array, A: Array, B: Array, dA: Array, dB: Array, room: Array) -> None:
        arriving = self._rows(xp, dout)
        if dA is not None:
            left, right = arriving, turned(self._rows(xp, B), not self.transpose_b)
            self._transposed(xp, left, right, dA, self.transpose_a, room)
        if dB is not None:
            left, right = turned(self._rows(xp, A), not self.transpose_a), arriving
            self._transposed(xp, left, right, dB, self.transpose_b, room)

    def _transposed(
        self: Any, xp: Any, left: Array, right: Array, out: Array, transposed: bool, room: Array
    ) -> None:  # fmt: skip
        if transposed:
            left, right = turned(right), turned(left)
        multiply(xp, left, right, self._rows(xp, out), room)
        _scale(xp, out, self.alpha)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("B", "A"), ("A", "B")) if user in want]


@register_op(aliases=("linalg_gemm",))
class _linalg_gemm(_Product):
    """``out = alpha · op(A) · op(B) + beta · C``, where op is the transpose if ``transpose_a``, ``transpose_b`` say so.

    op(A) (…, m, k), op(B) (…, k, n), C and out (…, m, n). ``axis`` is where the rows lie, columns lie in the last axis.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    axis: int = -2
    examples = (
        {"A": (2, 3, 4), "B": (2, 4, 5), "alpha": 1.5, "beta": -0.5},
        {"A": (4, 3), "B": (5, 4), "transpose_a": True, "transpose_b": True},
        {"A": (3, 2, 4), "B": (4, 2, 5), "axis": 0},
    )

    def infer(self, s: Any) -> None:
        s.out = s.C
        s.C = s.out
        super().infer(s)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {**super().temps(s), "scaled": (s.C if self.beta != 1 else (0,), s.dtype("out"))}

    def forward(self, xp: Any, A: Array, B: Array, C: Array, out: Array, scaled: Temp, room: Temp) -> None:
        self._multiply(xp, A, B, out, room)
        if self.beta != 1:
            C = xp.multiply(C, self.beta, out=scaled, casting="unsafe")
        xp.add(out, C, out=out)

    def backward(
        self, xp: Any, dout: Array, A: Array, B: Array, dA: Array, dB: Array, dC: Array, room: Temp
    ) -> None:  # fmt: skip
        self._backward(xp, dout, A, B, dA, dB, room)
        if dC is not None:
            xp.multiply(dout, self.beta, out=dC, casting="unsafe")

    def gradient(self, sym: Any, dout: Any, A: Any, B: Any) -> Mapping[str, Any]:
        given = {name: getattr(self, name) for name in _linalg_gemm2.form.attributes}
        return {**gradients(sym, _linalg_gemm2(**given), dout, A=A, B=B), "C": dout * self.beta}


@register_op(aliases=("linalg_gemm2",))
class _linalg_gemm2(_Product):
    """``out = alpha · op(A) · op(B)``, where op is the transpose if ``transpose_a``, ``transpose_b`` say so.

    op(A) (…, m, k), op(B) (…, k, n), out (…, m, n). ``axis`` is where the rows lie, columns lie in the last axis.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    axis: int = -2
    linear = ("A", "B")
    examples = (
        {"A": (2, 3, 4), "B": (2, 4, 5), "alpha": 1.5},
        {"A": (4, 3), "B": (5, 4), "transpose_a": True, "transpose_b": True},
        {"A": (3, 2, 4), "B": (5, 2, 4), "axis": 0, "transpose_b": True},
    )

    def forward(self, xp: Any, A: Array, B: Array, out: Array, room: Temp) -> None:
        self._multiply(xp, A, B, out, room)

    def backward(self, xp: Any, dout: Array, A: Array, B: Array, dA: Array, dB: Array, room: Temp) -> None:
        self._backward(xp, dout, A, B, dA, dB, room)


@register_op(aliases=("linalg_syrk",))
class _linalg_syrk(Op):
    """``out = alpha · A · Aᵀ``, or ``alpha · Aᵀ · A`` with ``transpose``: A (…, m, n), out (…, m, m) or (…, n, n)."""

    transpose: bool = False
    alpha: float = 1.0
    examples = ({"A": (2, 3, 4), "alpha": 1.5}, {"A": (3, 4), "transpose": True})

    def infer(self, s: Any) -> None:
        same_stack(s, "A", "out")
        square(s, "out")
        axis = -1 if self.transpose else -2
        s.out = stacked(s.A[:-2], s.A[axis], s.A[axis])
        s.A = replace(s.A, axis, s.out[-1])

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        stack, m, n = s.A[:-2], s.A[-2], s.A[-1]
        room = room_for(s.dtype("A"), (stack, m, n, m), (stack, n, m, n), (stack, m, m, n), (stack, m, n, n))
        return {"both": (s.out, s.dtype("out")), "room": room}

    def forward(self, xp: Any, A: Array, out: Array, room: Temp) -> None:
        multiply(xp, turned(A, self.transpose), turned(A, not self.transpose), out, room)
        _scale(xp, out, self.alpha)

    def backward(self, xp: Any, dout: Array, A: Array, dA: Array, both: Temp, room: Temp) -> None:
        xp.add(dout, turned(dout), out=both)
        multiply(xp, *((A, both) if self.transpose else (both, A)), dA, room)
        _scale(xp, dA, self.alpha)

    def gradient(self, sym: Any, dout: Any, A: Any) -> Mapping[str, Any]:
        pair, turned_one = ((A, dout), "transpose_b") if self.transpose else ((dout, A), "transpose_a")
        parts = [sym._linalg_gemm2(*pair, alpha=self.alpha, **{turned_one: turn}) for turn in (False, True)]
        return {"A": parts[0] + parts[1]}


@register_op
class khatri_rao(Op):
    """``out`` = the Kronecker products of the columns: arg0 (m, k), arg1 (n, k), … give out (m · n · …, k).

    Row i·n + j of two matrices is the product of rows i and j. It has a gradient.
    """

    num_args: int
    examples = (
        {"arg0": (2, 3), "arg1": (3, 3), "arg2": (2, 3), "num_args": 3},
        {"arg0": (2, 3), "num_args": 1},
    )

    def infer(self, s: Any) -> None:
        for name, shape in (*((f"arg{i}", shape) for i, shape in enumerate(s.args)), ("out", s.out)):
            if shape is not ANY and len(shape) != 2:
                s.fail(name, f"must have 2 dims, but it is {format_shape(shape)}")
        s.args = ((UNKNOWN, s.out[1]),) * len(s.args)
        for shape in s.args:
            s.out = (UNKNOWN, shape[1])
        s.args = ((UNKNOWN, s.out[1]),) * len(s.args)
        s.out = (product([shape[0] for shape in s.args]), s.out[1])
        unknown = [i for i, shape in enumerate(s.args) if shape[0] is UNKNOWN]
        if len(unknown) == 1:  # the one that is missing follows from the result
            rest = product([shape[0] for i, shape in enumerate(s.args) if i != unknown[0]])
            if rest > 0 and s.out[0] % rest:
                s.fail("out", f"must have a multiple of {rest} rows, but it has {s.out[0]}")
            rows = s.out[0] // rest if rest > 0 else UNKNOWN
            s.args = tuple((rows if i in unknown else UNKNOWN, UNKNOWN) for i in range(len(s.args)))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind = wide(s.dtype("out"))  # a narrow result would be rounded again and again while it is summed
        largest = 0 if kind == s.dtype("out") else max(math.prod(shape) for shape in s.args)
        return {"product": (s.out, kind), "total": ((largest,), kind)}

    def forward(self, xp: Any, args: Many, out: Array) -> None:
        first, *others = _spread(args)
        view = out.reshape(*(len(array) for array in args), out.shape[1])
        xp.copyto(view, first)
        for array in others:
            xp.multiply(view, array, out=view)

    def backward(self, xp: Any, dout: Array, args: Many, dargs: Many, product: Temp, total: Temp) -> None:
        spread, shape = _spread(args), (*(len(array) for array in args), dout.shape[1])
        view = product.reshape(shape)
        for place, gradient in enumerate(dargs):
            if gradient is None:
                continue
            left = dout.reshape(shape)
            for other, array in enumerate(spread):
                if other != place:
                    left = xp.multiply(left, array, out=view)
            axes = tuple(axis for axis in range(len(args)) if axis != place)
            place = total[: gradient.size].reshape(gradient.shape) if total.size else gradient
            xp.sum(left, axis=axes, dtype=place.dtype, out=place)
            if place is not gradient:
                xp.copyto(gradient, place, casting="same_kind")


def _spread(args: Sequence[Array]) -> list[Array]:
    """Each matrix with an axis of its own for its rows."""
    count = len(args)
    return [
        array.reshape(*((1,) * i), array.shape[0], *((1,) * (count - 1 - i)), array.shape[1])
        for i, array in enumerate(args)
    ]


def _diagonal(matrices: Array, offset: int) -> Array:
    """A diagonal of C-contiguous square matrices, to be written."""
    size = matrices.shape[-1]
    start, count = (offset if offset >= 0 else -offset * size), size - abs(offset)
    flat = matrices.reshape(*matrices.shape[:-2], size * size)
    return flat[..., start : start + count * (size + 1) : size + 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Diagonal(Op):
    """Base of extractdiag and makediag: a vector (…, n - |offset|) and square matrices (…, n, n)."""

    offset: int = 0

    def _infer(self, s: Any, vector: str, matrix: str) -> None:
        check_rank(s, matrix, 2)
        square(s, matrix)
        beyond = abs(self.offset)
        size = getattr(s, vector)[-1] + beyond
        setattr(s, matrix, stacked(getattr(s, vector)[:-1], size, size))
        lead, size = getattr(s, matrix)[:-2], getattr(s, matrix)[-1]
        if lead is ANY:
            return
        setattr(s, vector, stacked(lead, UNKNOWN))
        if size <= beyond:
            s.fail(matrix, f"must have more than {beyond} columns for offset={self.offset}, but it has {size}")
        setattr(s, vector, stacked(lead, size - beyond))


@register_op(aliases=("linalg_extractdiag",))
class _linalg_extractdiag(_Diagonal):
    """``out`` = a diagonal of A, ``offset`` places above the main one (below if negative): A (…, n, n), out (…, m)."""

    linear = ("A",)
    examples = ({"A": (2, 3, 3)}, {"A": (3, 3), "offset": 1}, {"A": (3, 3), "offset": -2})

    def infer(self, s: Any) -> None:
        self._infer(s, "out", "A")

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        xp.copyto(out, xp.diagonal(A, self.offset, -2, -1))

    def backward(self, xp: Any, dout: Array, dA: Array) -> None:
        dA.fill(0)
        xp.copyto(_diagonal(dA, self.offset), dout)


@register_op(aliases=("linalg_makediag",))
class _linalg_makediag(_Diagonal):
    """``out`` = matrices of zeros with A on a diagonal: A (…, m), out (…, n, n) with n = m + |offset|."""

    linear = ("A",)
    examples = ({"A": (2, 3)}, {"A": (2, 3), "offset": 1}, {"A": (2, 2), "offset": -2})

    def infer(self, s: Any) -> None:
        self._infer(s, "A", "out")

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        out.fill(0)
        xp.copyto(_diagonal(out, self.offset), A)

    def backward(self, xp: Any, dout: Array, dA: Array) -> None:
        xp.copyto(dA, xp.diagonal(dout, self.offset, -2, -1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Triangle(Op):
    """Base of extracttrian and maketrian: a vector (…, m(m+1)/2) and square matrices (…, n, n), m = n - |offset|."""

    offset: int = 0
    lower: bool = True

    def _infer(self, s: Any, vector: str, matrix: str) -> None:
        check_rank(s, matrix, 2)
        square(s, matrix)
        beyond = abs(self.offset)
        setattr(s, matrix, stacked(getattr(s, vector)[:-1], UNKNOWN, UNKNOWN))
        lead, size = getattr(s, matrix)[:-2], getattr(s, matrix)[-1]
        if lead is not ANY:
            setattr(s, vector, stacked(lead, UNKNOWN))
        if size is UNKNOWN:
            count = getattr(s, vector)[-1]
            side = (math.isqrt(8 * count + 1) - 1) // 2
            if side * (side + 1) // 2 != count:
                s.fail(vector, f"must hold 1, 3, 6, 10, … values, as a triangle does, but it holds {count}")
            size = side + beyond
            setattr(s, matrix, stacked(lead, size, size))
        if size <= beyond:
            s.fail(matrix, f"must have more than {beyond} columns for offset={self.offset}, but it has {size}")
        side = size - beyond
        setattr(s, vector, stacked(lead, side * (side + 1) // 2))

    def _lines(self, size: int) -> Iterable[tuple[tuple[Any, ...], slice]]:
        """A row of the lower triangle or a column of the upper one in the matrix, and where it lies in the vector."""
        beyond, place = abs(self.offset), 0
        below = self.offset < 0 or (self.offset == 0 and self.lower)
        for line in range(size - beyond):
            places = (line + beyond, slice(line + 1)) if below else (slice(line + 1), line + beyond)
            yield (..., *places), slice(place, place + line + 1)
            place += line + 1


@register_op(aliases=("linalg_extracttrian",))
class _linalg_extracttrian(_Triangle):
    """``out`` = a triangle of A, a lower one row by row, an upper one column by column.

    A (…, n, n), out (…, m(m+1)/2) with m = n - |offset|.
    The lower triangle, or the upper one without ``lower``; from the diagonal ``offset`` on, upwards if it is positive
    and downwards if it is negative, whatever ``lower`` says.
    """

    linear = ("A",)
    examples = (
        {"A": (2, 3, 3)},
        {"A": (3, 3), "lower": False},
        {"A": (3, 3), "offset": 1},
        {"A": (3, 3), "offset": -1},
    )

    def infer(self, s: Any) -> None:
        self._infer(s, "out", "A")

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        for line, places in self._lines(A.shape[-1]):
            xp.copyto(out[..., places], A[line])

    def backward(self, xp: Any, dout: Array, dA: Array) -> None:
        dA.fill(0)
        for line, places in self._lines(dA.shape[-1]):
            xp.copyto(dA[line], dout[..., places])


@register_op(aliases=("linalg_maketrian",))
class _linalg_maketrian(_Triangle):
    """``out`` = matrices of zeros with A in a triangle, as extracttrian reads it: A (…, m(m+1)/2), out (…, n, n)."""

    linear = ("A",)
    examples = ({"A": (2, 6)}, {"A": (6,), "lower": False}, {"A": (3,), "offset": 1}, {"A": (3,), "offset": -1})

    def infer(self, s: Any) -> None:
        self._infer(s, "A", "out")

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        out.fill(0)
        for line, places in self._lines(out.shape[-1]):
            xp.copyto(out[line], A[..., places])

    def backward(self, xp: Any, dout: Array, dA: Array) -> None:
        for line, places in self._lines(dout.shape[-1]):
            xp.copyto(dA[..., places], dout[line])
