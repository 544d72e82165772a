"""Triangular products and solutions, factors, inverses and determinants of square matrices in the last two axes.

Data are float32 or float64. What LAPACK refuses (a singular matrix, one that is not positive definite) is an
ArgumentError that counts the matrix on the host; a GPU gives NaN there. LAPACK's results are made a few small matrices
at a time, or one large one, and then copied to where they belong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..dims import ANY, UNKNOWN
from ..errors import ArgumentError
from ..registry import Op, Sample, Temp, register_op
from .checks import check_rank
from .dot import turned
from .linalg import keep_triangle, same_stack, square, stacked

Array = Any

PIECE = 4096  # values of matrices that are worked on at a time
BLOCK = 32  # rows that a substitution solves together


def check_lapack(t: Any, name: str) -> None:
    """One type for all; refuse one that LAPACK does not know."""
    t.same()
    kind = getattr(t, name)
    if kind is not None and kind not in (np.float32, np.float64):
        t.fail(name, f"must be of type float32 or float64, but it is {kind.name}")


def pieces(*pairs: tuple[Array | None, int], several: float = 1) -> Iterator[Any]:
    """Number of the first matrix, then slices of the arrays: each has its last axes, as many as its pair says, kept.

    The axes before are one. None stays None. A piece has ``several`` times PIECE values where little is made of them.
    """
    first = next(array for array, _ in pairs if array is not None)
    count = math.prod(first.shape[: first.ndim - pairs[0][1]])
    flat = [
        array if array is None else array.reshape(count, *array.shape[array.ndim - kept :]) for array, kept in pairs
    ]
    largest = max((array.size // max(count, 1) for array in flat if array is not None), default=1)
    step = max(1, int(several * PIECE) // max(largest, 1)) if isinstance(first, np.ndarray) else max(count, 1)
    for start in range(0, count, step):
        yield start, *(array if array is None else array[start : start + step] for array in flat)


def lapack(op: Op, must: str, start: int, function: Callable[..., Any], *stacks: Array) -> Any:
    """``function`` of stacks of matrices; ArgumentError names the first matrix that it refuses."""
    try:
        return function(*stacks)
    except np.linalg.LinAlgError:
        for number in range(len(stacks[0])):
            try:
                function(*(stack[number : number + 1] for stack in stacks))
            except np.linalg.LinAlgError as error:
                fact = f"{op.form.name}: matrix {start + number} of its input must {must}, but LAPACK found"
                raise ArgumentError(f"{fact}: {error}") from None
        raise


def substitute(xp: Any, triangle: Array, values: Array, lower: bool) -> None:
    """Solve ``triangle · x = values`` in place, block by block of rows; only the triangle is read.

    LinAlgError if there is a zero on the diagonal.
    """
    size = triangle.shape[-1]
    starts = range(0, size, BLOCK)
    for start in starts if lower else reversed(starts):
        rows = slice(start, min(start + BLOCK, size))
        done = slice(0, start) if lower else slice(rows.stop, size)
        block = values[..., rows, :]
        if done.start < done.stop:
            xp.subtract(block, xp.matmul(triangle[..., rows, done], values[..., done, :]), out=block)
        corner = triangle[..., rows, rows]
        corner = keep_triangle(xp, corner, xp.empty_like(corner, order="C"), lower)
        xp.copyto(block, xp.linalg.solve(corner, block))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Triangular(Op):
    """Base of trmm and trsm: A (…, n, n), of which a triangle is read; B and out (…, n, k), or (…, k, n) rightside."""

    transpose: bool = False
    rightside: bool = False
    lower: bool = True
    alpha: float = 1.0

    def infer(self, s: Any) -> None:
        same_stack(s, "A", "B", "out")
        square(s, "A")
        s.out = s.B
        s.B = s.out
        size = s.B[-1] if self.rightside else s.B[-2]
        s.A = stacked(s.A[:-2], size, size)
        size = s.A[-1]
        s.B = stacked(s.B[:-2], UNKNOWN, size) if self.rightside else stacked(s.B[:-2], size, UNKNOWN)
        s.out = s.B

    def types(self, t: Any) -> None:
        check_lapack(t, "A")

    def slope(self, xp: Any, values: Array, arriving: Array, dA: Array) -> Array:
        """``dA`` = gradient of ``op(A) · values`` (or ``values · op(A)``) for the triangle of A, 0 beside it."""
        left, right = (turned(values), arriving) if self.rightside else (arriving, turned(values))
        if self.transpose:
            left, right = turned(right), turned(left)
        xp.matmul(left, right, out=dA)
        return keep_triangle(xp, dA, dA, self.lower)


@register_op(aliases=("linalg_trmm",))
class _linalg_trmm(_Triangular):
    """``out = alpha · op(A) · B``, or ``alpha · B · op(A)`` with ``rightside``; op transposes if ``transpose``.

    A (…, n, n) counts as its lower triangle (upper without ``lower``): the gradient beside it is 0. B and out
    (…, n, k), or (…, k, n) with ``rightside``.
    """

    examples = (
        {"A": (2, 3, 3), "B": (2, 3, 2), "alpha": 1.5},
        {"A": (3, 3), "B": (2, 3), "transpose": True, "rightside": True},
        {"A": (3, 3), "B": (3, 2), "lower": False, "transpose": True},
        {"A": (2, 3, 3), "B": (2, 4, 3), "rightside": True},
    )

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"triangle": (s.A, s.dtype("A"))}

    def forward(self, xp: Any, A: Array, B: Array, out: Array, triangle: Temp) -> None:
        factor = turned(keep_triangle(xp, A, triangle, self.lower), self.transpose)
        xp.matmul(*((B, factor) if self.rightside else (factor, B)), out=out)
        xp.multiply(out, self.alpha, out=out)

    def backward(self, xp: Any, dout: Array, A: Array, B: Array, dA: Array, dB: Array, triangle: Temp) -> None:
        if dB is not None:
            factor = turned(keep_triangle(xp, A, triangle, self.lower), not self.transpose)
            xp.matmul(*((dout, factor) if self.rightside else (factor, dout)), out=dB)
            xp.multiply(dB, self.alpha, out=dB)
        if dA is not None:
            xp.multiply(self.slope(xp, B, dout, dA), self.alpha, out=dA)


@register_op(aliases=("linalg_trsm",))
class _linalg_trsm(_Triangular):
    """``out`` solves ``op(A) · out = alpha · B``, or ``out · op(A) = alpha · B``, with ``rightside``.

    A (…, n, n) counts as its lower triangle (upper without ``lower``), transposed by op if ``transpose``: the gradient
    beside it is 0. B and out (…, n, k), or (…, k, n) with ``rightside``. A zero on the diagonal is an error.
    """

    examples = (
        {"A": Sample((2, 3, 3), 1.0, 2.0), "B": (2, 3, 2), "alpha": 1.5},
        {"A": Sample((3, 3), 1.0, 2.0), "B": (2, 3), "transpose": True, "rightside": True},
        {"A": Sample((3, 3), 1.0, 2.0), "B": (3, 2), "lower": False, "transpose": True},
        {"A": Sample((2, 3, 3), 1.0, 2.0), "B": (2, 4, 3), "rightside": True},
    )

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"solved": (s.B, s.dtype("B"))}

    def _solve(self, xp: Any, A: Array, values: Array, transpose: bool) -> None:
        """Solve op(A) · x = values in place, or x · op(A) = values."""
        if self.rightside:
            transpose = not transpose
        for start, matrix, piece in pieces((A, 2), (values, 2)):
            lapack(
                self, "have no zero on its diagonal", start,
                lambda a, b: substitute(xp, turned(a, transpose), turned(b, self.rightside), self.lower != transpose),
                matrix, piece,
            )  # fmt: skip

    def forward(self, xp: Any, A: Array, B: Array, out: Array) -> None:
        xp.multiply(B, self.alpha, out=out)
        self._solve(xp, A, out, self.transpose)

    def backward(self, xp: Any, dout: Array, A: Array, out: Array, dA: Array, dB: Array, solved: Temp) -> None:
        xp.copyto(solved, dout)
        self._solve(xp, A, solved, not self.transpose)
        if dB is not None:
            xp.multiply(solved, self.alpha, out=dB)
        if dA is not None:
            xp.negative(self.slope(xp, out, solved, dA), out=dA)


class _Square(Op):
    """Base of what maps square matrices A (…, n, n) to square matrices."""

    def infer(self, s: Any) -> None:
        same_stack(s, "A", "out")
        square(s, "A")
        s.out = s.A
        s.A = s.out
        square(s, "A")

    def types(self, t: Any) -> None:
        check_lapack(t, "A")


@register_op(aliases=("linalg_potrf",))
class _linalg_potrf(_Square):
    """``out`` = the Cholesky factor: lower triangular with ``out · outᵀ = A``, or upper with ``outᵀ · out = A``.

    A and out (…, n, n). A must be symmetric and positive definite, which is checked, and only the triangle that
    ``lower`` says is read; the gradient is that of a symmetric A, symmetric itself.
    """

    lower: bool = True
    examples = ({"A": Sample((1, 1, 1), 1.0, 2.0)}, {"A": Sample((1, 1, 1), 1.0, 2.0), "lower": False})
    hints = ("lower",)  # it shows in matrices of two rows: tests/ops has them

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        for start, matrix, factor in pieces((A, 2), (out, 2), several=2):
            found = lapack(self, "be positive definite", start, xp.linalg.cholesky, turned(matrix, not self.lower))
            xp.copyto(factor, turned(found, not self.lower))

    def backward(self, xp: Any, dout: Array, out: Array, dA: Array) -> None:
        for _, arriving, factor, gradient in pieces((dout, 2), (out, 2), (dA, 2)):
            lower, arriving = turned(factor, not self.lower), turned(arriving, not self.lower)
            middle = xp.tril(xp.matmul(turned(lower), arriving))
            middle *= 1 - 0.5 * xp.eye(middle.shape[-1], dtype=middle.dtype)
            xp.add(middle, turned(middle), out=gradient)
            xp.multiply(gradient, 0.5, out=gradient)
            substitute(xp, turned(lower), gradient, False)
            substitute(xp, turned(lower), turned(gradient), False)


@register_op(aliases=("linalg_potri",))
class _linalg_potri(_Square):
    """``out = (A · Aᵀ)⁻¹`` of a lower triangular A, or ``(Aᵀ · A)⁻¹`` of an upper one: A and out (…, n, n).

    Only the triangle that ``lower`` says is read, and the gradient beside it is 0. A zero on the diagonal is an error.
    """

    lower: bool = True
    examples = ({"A": Sample((2, 3, 3), 1.0, 2.0)}, {"A": Sample((3, 3), 1.0, 2.0), "lower": False})

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        for start, matrix, result in pieces((A, 2), (out, 2)):
            inverse = xp.empty(matrix.shape, matrix.dtype)

            def invert(triangle: Array, place: Array) -> None:
                xp.copyto(place, xp.eye(place.shape[-1], dtype=place.dtype))
                substitute(xp, triangle, place, True)

            lapack(self, "have no zero on its diagonal", start, invert, turned(matrix, not self.lower), inverse)
            xp.matmul(turned(inverse), inverse, out=result)

    def backward(self, xp: Any, dout: Array, A: Array, out: Array, dA: Array) -> None:
        for _, arriving, matrix, result, gradient in pieces((dout, 2), (A, 2), (out, 2), (dA, 2)):
            triangle = keep_triangle(xp, matrix, xp.empty(matrix.shape, matrix.dtype), self.lower)
            right = xp.matmul(result, turned(triangle, not self.lower))
            both = xp.matmul(arriving + turned(arriving), right)
            xp.copyto(gradient, turned(xp.matmul(result, both), not self.lower))
            xp.negative(keep_triangle(xp, gradient, gradient, self.lower), out=gradient)


@register_op(aliases=("linalg_inverse",))
class _linalg_inverse(_Square):
    """``out = A⁻¹``: A and out (…, n, n). A singular matrix is an error."""

    examples = ({"A": Sample((2, 4, 4), -2.0, 4.0)}, {"A": Sample((3, 3), -2.0, 4.0)})

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"half": (s.A, s.dtype("A"))}

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        for start, matrix, result in pieces((A, 2), (out, 2)):
            xp.copyto(result, lapack(self, "have an inverse", start, xp.linalg.inv, matrix))

    def backward(self, xp: Any, dout: Array, out: Array, dA: Array, half: Temp) -> None:
        xp.matmul(turned(out), dout, out=half)
        xp.matmul(half, turned(out), out=dA)
        xp.negative(dA, out=dA)


class _Number(Op):
    """Base of what maps each square matrix A (…, n, n) to a number: (…), or (1,) of a single matrix."""

    def infer(self, s: Any) -> None:
        check_rank(s, "A", 2)
        square(s, "A")
        if s.A is not ANY:
            for name in self.form.forward.parameters[2:]:
                setattr(s, name, s.A[:-2] or (1,))
                if len(s.A) > 2:
                    s.A = stacked(getattr(s, name), UNKNOWN, UNKNOWN)

    def types(self, t: Any) -> None:
        check_lapack(t, "A")


@register_op(aliases=("linalg_sumlogdiag",))
class _linalg_sumlogdiag(_Number):
    """``out`` = the sum of the logarithms on the diagonal: A (…, n, n), out (…), or (1,) of a single matrix.

    A zero there gives -infinity, a negative number NaN.
    """

    examples = ({"A": Sample((2, 3, 3), 0.5, 2.0)}, {"A": Sample((3, 3), 0.5, 2.0)})

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"line": (s.A[:-1], s.dtype("A"))}

    def forward(self, xp: Any, A: Array, out: Array, line: Temp) -> None:
        xp.log(xp.diagonal(A, 0, -2, -1), out=line)
        line.reshape(out.size, A.shape[-1]).sum(axis=-1, out=out.reshape(-1))

    def backward(self, xp: Any, dout: Array, A: Array, dA: Array, line: Temp) -> None:
        dA.fill(0)
        size = A.shape[-1]
        xp.copyto(line, xp.diagonal(A, 0, -2, -1))
        place = dA.reshape(dout.size, size * size)[:, :: size + 1]
        xp.divide(dout.reshape(-1, 1), line.reshape(dout.size, size), out=place)


def _cofactors(xp: Any, matrix: Array) -> Array:
    """Cofactors of each matrix, of a singular one too: products of all singular values but one, turned back."""
    left, values, right = xp.linalg.svd(matrix)
    size = values.shape[-1]
    others = xp.where(xp.eye(size, dtype="bool"), 1.0, values[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(left) * xp.linalg.det(right)
    return xp.matmul(left * (sign[..., None] * others)[..., None, :], right).astype(matrix.dtype)


@register_op(aliases=("linalg_det",))
class _linalg_det(_Number):
    """``out`` = the determinant: A (…, n, n), out (…), or (1,) of a single matrix. The gradient are its cofactors."""

    listed = ("output0",)
    examples = ({"A": (2, 3, 3)}, {"A": (2, 2)})

    def total_outputs(self) -> int:
        return 3

    def forward(self, xp: Any, A: Array, out: Array) -> None:
        for _, matrix, result in pieces((A, 2), (out, 0), several=2):
            xp.copyto(result, xp.linalg.det(matrix))

    def backward(self, xp: Any, dout: Array, A: Array, out: Array, dA: Array) -> None:
        for _, arriving, matrix, result, gradient in pieces((dout, 0), (A, 2), (out, 0), (dA, 2)):
            try:
                factors = turned(xp.linalg.inv(matrix))
            except np.linalg.LinAlgError:  # the determinant of a singular matrix has a gradient, too
                xp.multiply(_cofactors(xp, matrix), arriving[:, None, None], out=gradient)
            else:
                xp.multiply(factors, (arriving * result)[:, None, None], out=gradient)


@register_op(aliases=("linalg_slogdet",))
class _linalg_slogdet(_Number):
    """``out0`` = sign, ``out1`` = logarithm of the absolute value of the determinant: A (…, n, n), both (…), or (1,).

    A singular matrix gives 0 and -infinity, and no gradient: an error. The gradient of the sign is zero.
    """

    outputs = ("out0", "out1")
    examples = ({"A": (2, 3, 3)}, {"A": (2, 2)})

    def total_outputs(self) -> int:
        return 4

    def forward(self, xp: Any, A: Array, out0: Array, out1: Array) -> None:
        for _, matrix, sign, logarithm in pieces((A, 2), (out0, 0), (out1, 0), several=2):
            found = xp.linalg.slogdet(matrix)
            xp.copyto(sign, found[0])
            xp.copyto(logarithm, found[1])

    def backward(self, xp: Any, dout1: Array, A: Array, dA: Array) -> None:
        for start, arriving, matrix, gradient in pieces((dout1, 0), (A, 2), (dA, 2)):
            inverse = lapack(self, "have an inverse, if a gradient is wanted,", start, xp.linalg.inv, matrix)
            xp.multiply(turned(inverse), arriving[:, None, None], out=gradient)


@register_op(aliases=("linalg_gelqf",))
class _linalg_gelqf(Op):
    """``A = out1 · out0``, out1 lower triangular and the rows of out0 orthonormal.

    A and out0 (…, m, n) with m ≤ n, out1 (…, m, m). A of less than full rank has no gradient: an error.
    """

    outputs = ("out0", "out1")
    examples = ({"A": (2, 2, 3)}, {"A": (3, 3)})

    def infer(self, s: Any) -> None:
        same_stack(s, "A", "out0", "out1")
        s.out0 = s.A
        s.A = s.out0
        square(s, "out1")
        s.out1 = stacked(s.A[:-2], s.A[-2], s.A[-2])
        s.A = stacked(s.out1[:-1], UNKNOWN)
        s.out0 = s.A
        if s.A[-2] > s.A[-1]:
            s.fail("A", f"must have as many columns as rows or more, but they are {s.A[-1]} and {s.A[-2]}")

    def types(self, t: Any) -> None:
        check_lapack(t, "A")

    def forward(self, xp: Any, A: Array, out0: Array, out1: Array) -> None:
        for _, matrix, rows, lower in pieces((A, 2), (out0, 2), (out1, 2), several=1.5):
            columns, upper = xp.linalg.qr(turned(matrix))
            xp.copyto(rows, turned(columns))
            xp.copyto(lower, turned(upper))

    def backward(self, xp: Any, dout0: Array, dout1: Array, out0: Array, out1: Array, dA: Array) -> None:
        for start, drows, dlower, rows, lower, gradient in pieces(
            (dout0, 2), (dout1, 2), (out0, 2), (out1, 2), (dA, 2)
        ):
            middle = xp.matmul(turned(lower), dlower) - xp.matmul(drows, turned(rows))
            middle = xp.tril(middle) + turned(xp.tril(middle, -1))
            xp.matmul(middle, rows, out=gradient)
            xp.add(gradient, drows, out=gradient)
            lapack(
                self, "have full rank, if a gradient is wanted,", start,
                lambda a, b: substitute(xp, turned(a), b, False), lower, gradient,
            )  # fmt: skip


@register_op(aliases=("linalg_syevd",))
class _linalg_syevd(Op):
    """``out0 · A = diag(out1) · out0``: rows of out0 are eigenvectors, out1 the eigenvalues in ascending order.

    A and out0 (…, n, n), out1 (…, n). A must be symmetric: its lower triangle is read, and the gradient is that of a
    symmetric A, symmetric itself. The largest component of an eigenvector is positive. Vectors of equal eigenvalues
    are not unique: what the gradient says of turning one into another counts as 0.
    """

    outputs = ("out0", "out1")
    examples = ({"A": Sample((1, 1, 1), 1.0, 2.0)},)

    def infer(self, s: Any) -> None:
        same_stack(s, "A", "out0")
        square(s, "A")
        s.out0 = s.A
        s.A = s.out0
        square(s, "A")
        s.out1 = s.A[:-1]
        s.A = stacked(s.out1, s.out1[-1])

    def types(self, t: Any) -> None:
        check_lapack(t, "A")

    def forward(self, xp: Any, A: Array, out0: Array, out1: Array) -> None:
        for _, matrix, rows, values in pieces((A, 2), (out0, 2), (out1, 1)):
            found = xp.linalg.eigh(matrix)
            vectors = turned(found[1])
            xp.copyto(values, found[0])
            largest = xp.argmax(xp.abs(vectors), axis=-1)
            signs = xp.sign(xp.take_along_axis(vectors, largest[..., None], axis=-1))
            xp.multiply(vectors, signs, out=rows)

    def backward(self, xp: Any, dout0: Array, dout1: Array, out0: Array, out1: Array, dA: Array) -> None:
        for _, drows, dvalues, rows, values, gradient in pieces(
            (dout0, 2), (dout1, 1), (out0, 2), (out1, 1), (dA, 2)
        ):
            gap = values[:, :, None] - values[:, None, :]
            apart = gap != 0
            middle = xp.where(apart, xp.matmul(drows, turned(rows)) / xp.where(apart, gap, 1), 0)
            middle = (middle + turned(middle)) * 0.5
            middle += xp.eye(middle.shape[-1], dtype=middle.dtype) * dvalues[:, :, None]
            xp.copyto(gradient, xp.matmul(turned(rows), xp.matmul(middle, rows)))
