"""Products of matrices: the fully connected layer, dot and batch_dot.

All of them end in ``xp.matmul`` straight into the result. 16-bit values are multiplied in float32, piece by piece: sums
keep their precision, and no array library has a fast product of them on a processor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dims import ANY, UNKNOWN, product, replace
from ..registry import Op, Sample, Temp, register_op
from . import transposed
from .checks import check_least, check_rank
from .precision import narrow, wide, widen

Array = Any
LEAST = 256  # rows that one piece of a 16-bit product has: enough for BLAS to be at its speed
PIECE = 1 << 18  # values that one piece takes where that makes more rows, or several matrices of a stack


def room_for(kind: Any, *products: tuple[Sequence[int], int, int, int]) -> tuple[tuple[int, ...], Any]:
    """Scratch in which :func:`multiply` works: each product is (axes of the stack, m, k, n) for (m, k) · (k, n)."""
    if wide(kind) is kind:
        return (0,), kind
    sizes = [0]
    for stack, m, k, n in products:
        whole = m * k + k * n + m * n
        several = min(stack[-1] if stack else 1, PIECE // max(whole, 1)) * whole
        sizes.append(max(min(whole, _streamed(m, k, n), _summed(m, k, n)), several))
    return (max(sizes),), "float32"


def _streamed(m: int, k: int, n: int) -> int:
    """Values in :func:`multiply` with the smaller matrix whole, and rows of the other in pieces."""
    few, many = min(m, n), max(m, n)
    return few * k + min(many, max(LEAST, PIECE // max(k + few, 1))) * (k + few)


def _summed(m: int, k: int, n: int) -> int:
    """Values in :func:`multiply` with the result whole, twice, and pieces of what is summed over."""
    return 2 * m * n + min(k, max(LEAST, PIECE // max(m + n, 1))) * (m + n)


def multiply(xp: Any, left: Array, right: Array, out: Array, room: Array, bias: Array = None) -> None:
    """``out = left · right`` for matrices or equal stacks of them; 16-bit ones in ``room``, which is empty for others.

    Of a pair of matrices the smaller goes there whole, and rows of the other and of the result piece by piece; or the
    result is summed over pieces of both, where that is less. ``bias`` (n,) is added to every row of one (m, n).
    """
    if not room.size or not out.size or (xp is not np and out.dtype == np.float16):  # a GPU has fast ones of its own
        xp.matmul(left, right, out=out)
        if bias is not None:
            xp.add(out, bias, out=out)
        return
    (m, k), n = left.shape[-2:], right.shape[-1]
    whole = m * k + k * n + m * n
    if out.ndim > 2:
        several = room.size // whole if out.ndim == 3 else 0
        if several > 1:
            for start in range(0, len(out), several):
                part = slice(start, start + several)
                _through(xp, left[part], _widened(xp, right[part], room), out[part], room[several * k * n :])
        else:
            for one, other, result in zip(left, right, out, strict=True):
                multiply(xp, one, other, result, room)
        return
    added = None if bias is None else xp.broadcast_to(bias.astype("float32"), out.shape)
    if _summed(m, k, n) < min(whole, _streamed(m, k, n)):
        _sum(xp, left, right, out, room, added)
        return
    if m < n:
        left, right, out, m, n = right.T, left.T, out.T, n, m
        added = None if added is None else added.T
    kept, rest = _widened(xp, right, room), room[k * n :]
    rows = max(1, rest.size // (k + n))
    for start in range(0, m, rows):
        part = slice(start, start + rows)
        _through(xp, left[part], kept, out[part], rest, None if added is None else added[part])


def _sum(xp: Any, left: Array, right: Array, out: Array, room: Array, added: Array) -> None:
    """``out = left · right + added``, over one piece after the other of the axis that is summed over."""
    (m, k), n = left.shape, right.shape[1]
    total, product = room[: 2 * m * n].reshape(2, m, n)
    rest = room[2 * m * n :]
    count = rest.size // (m + n)
    for start in range(0, k, count):
        part = slice(start, start + count)
        one = _widened(xp, left[:, part], rest)
        xp.matmul(one, _widened(xp, right[part], rest[one.size :]), out=product if start else total)
        if start:
            xp.add(total, product, out=total)
    if added is not None:
        xp.add(total, added, out=total)
    narrow(xp, total, out)


def _widened(xp: Any, source: Array, room: Array) -> Array:
    """A copy of ``source`` at the start of ``room``, its last two axes in the order in which they lie in memory."""
    flat, shape = room[: source.size], source.shape
    if source.strides[-1] > source.strides[-2]:
        copy = flat.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
    else:
        copy = flat.reshape(shape)
    widen(xp, source, copy)
    return copy


def _through(xp: Any, left: Array, right: Array, out: Array, room: Array, added: Array = None) -> None:
    """``out = left · right + added`` for a ``right`` that is wide already."""
    product = room[left.size :][: out.size].reshape(out.shape)
    if out.strides[-1] > out.strides[-2]:
        product = product.reshape(*out.shape[:-2], *out.shape[:-3:-1]).swapaxes(-1, -2)
    xp.matmul(_widened(xp, left, room), right, out=product)
    if added is not None:
        xp.add(product, added, out=product)
    narrow(xp, product, out)


@register_op
class FullyConnected(Op):
    """``out = data · weightᵀ + bias``.

    data (n, …), weight (num_hidden, k), bias (num_hidden,), out (n, num_hidden), where k is the product of
    the dims after n. With ``flatten=False`` data (…, k) gives out (…, num_hidden).
    """

    num_hidden: int
    no_bias: bool = False
    flatten: bool = True
    rows = "sum"
    linear = ("data", "weight")
    examples = (
        {"data": (4, 3, 5), "num_hidden": 2},
        {"data": (4, 3, 5), "num_hidden": 2, "flatten": False},
        {"data": (4, 5), "num_hidden": 3, "no_bias": True},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_hidden")

    def inputs(self) -> tuple[str, ...]:
        return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

    def infer(self, s: Any) -> None:
        s.bias = units = (self.num_hidden,)
        if not self.flatten:
            s.weight = (self.num_hidden, s.data[-1])
            s.out = s.data[:-1] + units
            features = (s.weight[1],)
            s.data = s.out[:-1] + features
            return
        s.weight = (self.num_hidden, product(s.data[1:]))
        s.out = (s.data[0], self.num_hidden)
        s.data = replace(s.data, 0, s.out[0])
        unknown = [axis for axis, dim in enumerate(s.data) if axis and dim is UNKNOWN]
        if len(unknown) == 1:  # the one feature dim that is missing follows from the weight
            axis = unknown[0]
            rest = product(s.data[1:axis] + s.data[axis + 1 :])
            if rest > 0 and s.weight[1] % rest:
                s.fail("data", f"must have {s.weight[1]} values a row like the weight, but has a multiple of {rest}")
            s.data = replace(s.data, axis, s.weight[1] // rest if rest > 0 else UNKNOWN)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("weight", "data"), ("data", "weight")) if user in want]

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        (h, k), n = s.weight, s.data[0] if self.flatten else math.prod(s.data[:-1])
        return {"room": room_for(s.dtype("data"), ((), n, k, h), ((), n, h, k), ((), h, n, k))}

    def forward(self, xp: Any, data: Array, weight: Array, bias: Array, out: Array, room: Temp) -> None:
        rows = out.reshape(-1, self.num_hidden)
        multiply(xp, data.reshape(len(rows), weight.shape[1]), weight.T, rows, room, bias)

    def backward(
        self, xp: Any, dout: Array, data: Array, weight: Array, ddata: Array, dweight: Array, dbias: Array, room: Temp
    ) -> None:
        arriving = dout.reshape(-1, self.num_hidden)
        if ddata is not None:
            multiply(xp, arriving, weight, ddata.reshape(len(arriving), weight.shape[1]), room)
        if dweight is not None:
            multiply(xp, arriving.T, data.reshape(len(arriving), dweight.shape[1]), dweight, room)
        if dbias is not None:
            xp.sum(arriving, axis=0, dtype=wide(dbias.dtype), out=dbias)

    def gradient(self, sym: Any, dout: Any, data: Any, weight: Any, bias: Any) -> Mapping[str, Any]:
        plain = dataclasses.replace(self, no_bias=True)
        found = transposed.gradients(sym, plain, dout, data=data, weight=weight)
        return found if bias is None else {**found, "bias": sym._sum_like(dout, bias)}


@register_op
class dot(Op):
    """``out = lhs · rhs``: contracts the last axis of lhs with the first of rhs.

    lhs (…, k), rhs (k, …), out: the axes that are left, lhs' first; (1,) for two vectors. ``transpose_a``
    contracts the first axis of lhs, ``transpose_b`` the last of rhs.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    forward_stype: str | None = None
    hints = ("forward_stype",)
    linear = ("lhs", "rhs")
    examples = (
        {"lhs": (2, 3), "rhs": (3, 4)},
        {"lhs": (3, 2), "rhs": (4, 3), "transpose_a": True, "transpose_b": True},
        {"lhs": (2, 3, 4), "rhs": (4, 2, 3)},
        {"lhs": (4, 2, 3), "rhs": (2, 3, 4), "transpose_a": True, "transpose_b": True},
        {"lhs": (4,), "rhs": (4,)},
        {"lhs": (4,), "rhs": (4, 3)},
    )

    def infer(self, s: Any) -> None:
        left, right = (0 if self.transpose_a else -1), (-1 if self.transpose_b else 0)
        s.rhs = replace(s.rhs, right, s.lhs[left])
        s.lhs = replace(s.lhs, left, s.rhs[right])
        before = s.lhs[1:] if self.transpose_a else s.lhs[:-1]
        after = s.rhs[:-1] if self.transpose_b else s.rhs[1:]
        if before is not ANY and after is not ANY:
            s.out = before + after or (1,)
        if before is not ANY and before:  # a vector alone says nothing: a result of one dim may be that of two vectors
            split = len(before)
        elif after is not ANY and after:
            split = len(s.out) - len(after)
        else:
            return
        contracted = (s.lhs[left],)
        s.lhs = contracted + s.out[:split] if self.transpose_a else s.out[:split] + contracted
        s.rhs = s.out[split:] + contracted if self.transpose_b else contracted + s.out[split:]

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        k = s.lhs[0 if self.transpose_a else -1]
        m, n = math.prod(s.lhs) // max(k, 1), math.prod(s.rhs) // max(k, 1)
        return {"room": room_for(s.dtype("lhs"), ((), m, k, n), ((), m, n, k), ((), k, m, n))}

    def _matrices(self, lhs: Array, rhs: Array) -> tuple[Array, Array]:
        """lhs as (m, k) and rhs as (k, n), without copying where they are contiguous."""
        k = lhs.shape[0 if self.transpose_a else -1]
        m = math.prod(lhs.shape[1:] if self.transpose_a else lhs.shape[:-1])
        n = math.prod(rhs.shape[:-1] if self.transpose_b else rhs.shape[1:])
        left = lhs.reshape(k, m).T if self.transpose_a else lhs.reshape(m, k)
        return left, rhs.reshape(n, k).T if self.transpose_b else rhs.reshape(k, n)

    def forward(self, xp: Any, lhs: Array, rhs: Array, out: Array, room: Temp) -> None:
        left, right = self._matrices(lhs, rhs)
        multiply(xp, left, right, out.reshape(left.shape[0], right.shape[1]), room)

    def backward(self, xp: Any, dout: Array, lhs: Array, rhs: Array, dlhs: Array, drhs: Array, room: Temp) -> None:
        left, right = self._matrices(lhs, rhs)
        arriving = dout.reshape(left.shape[0], right.shape[1])
        if dlhs is not None:
            _product(xp, arriving, right.T, dlhs, self.transpose_a, room)
        if drhs is not None:
            _product(xp, left.T, arriving, drhs, self.transpose_b, room)


@register_op
class batch_dot(Op):
    """``out[i] = lhs[i] · rhs[i]``.

    lhs (b, m, k), rhs (b, k, n), out (b, m, n); any number of leading axes b.
    ``transpose_a`` takes lhs as (b, k, m), ``transpose_b`` rhs as (b, n, k).
    """

    transpose_a: bool = False
    transpose_b: bool = False
    forward_stype: str | None = None
    rows = "parallel"
    hints = ("forward_stype",)
    linear = ("lhs", "rhs")
    examples = (
        {"lhs": (2, 3, 4), "rhs": (2, 4, 5)},
        {"lhs": (2, 4, 3), "rhs": (2, 5, 4), "transpose_a": True, "transpose_b": True},
        {"lhs": (2, 2, 3, 4), "rhs": (2, 2, 4, 1)},
        {"lhs": Sample((3, 2, 2), 0.5, 1.0), "rhs": Sample((3, 2, 2), 0.5, 1.0), "transpose_b": True},
    )

    def infer(self, s: Any) -> None:
        for name in ("lhs", "rhs", "out"):
            check_rank(s, name, 3)
        matrix = (UNKNOWN, UNKNOWN)
        for leading in (s.lhs[:-2], s.rhs[:-2], s.out[:-2]):
            s.lhs = s.rhs = s.out = leading + matrix
        (a, b), (c, d) = _order(s.lhs, self.transpose_a), _order(s.rhs, self.transpose_b)
        matrix = (a, d)
        s.out = s.out[:-2] + matrix
        m, n = s.out[-2], s.out[-1]
        s.lhs = s.lhs[:-2] + ((c, m) if self.transpose_a else (m, c))
        s.rhs = s.rhs[:-2] + ((n, b) if self.transpose_b else (b, n))

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("rhs", "lhs"), ("lhs", "rhs")) if user in want]

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        stack, (m, k), (_, n) = s.lhs[:-2], _order(s.lhs, self.transpose_a), _order(s.rhs, self.transpose_b)
        return {"room": room_for(s.dtype("lhs"), (stack, m, k, n), (stack, m, n, k), (stack, k, m, n))}

    def forward(self, xp: Any, lhs: Array, rhs: Array, out: Array, room: Temp) -> None:
        multiply(xp, turned(lhs, self.transpose_a), turned(rhs, self.transpose_b), out, room)

    def backward(self, xp: Any, dout: Array, lhs: Array, rhs: Array, dlhs: Array, drhs: Array, room: Temp) -> None:
        if dlhs is not None:
            _stacks(xp, dout, turned(rhs, not self.transpose_b), dlhs, self.transpose_a, room)
        if drhs is not None:
            _stacks(xp, turned(lhs, not self.transpose_a), dout, drhs, self.transpose_b, room)


def _product(xp: Any, left: Array, right: Array, out: Array, transposed: bool, room: Array) -> None:
    """``out``, of any rank, = left · right, or its transpose."""
    if transposed:
        left, right = right.T, left.T
    multiply(xp, left, right, out.reshape(left.shape[0], right.shape[1]), room)


def _stacks(xp: Any, left: Array, right: Array, out: Array, transposed: bool, room: Array) -> None:
    if transposed:
        left, right = turned(right, True), turned(left, True)
    multiply(xp, left, right, out, room)


def turned(array: Array, transposed: bool = True) -> Array:
    """The matrices, or their transposes."""
    return array.swapaxes(-1, -2) if transposed else array


def _order(shape: Any, transposed: bool) -> tuple[Any, Any]:
    """Rows and columns of a stack of matrices."""
    if shape is ANY:
        return UNKNOWN, UNKNOWN
    return (shape[-1], shape[-2]) if transposed else (shape[-2], shape[-1])
