"""Fourier transforms along the last axis. A complex number is two neighbours: its real part and its imaginary part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from ..dims import UNKNOWN, replace
from ..registry import Op, register_op
from .checks import check_axis, check_floating
from .precision import wide
from .softmax import check_not_empty

Array = Any
_COMPLEX = {4: "complex64", 8: "complex128"}
PIECE = 6 << 10  # complex numbers that a transform makes at a time, or one line of more


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transform(Op):
    """Base: rank and types; each of the two is the other's transpose, so it gives the other's gradient."""

    compute_size: int = 128
    rows = "parallel"
    linear = ("data",)
    hints = ("compute_size",)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")


def _apart(xp: Any, real: Array, both: Array) -> None:
    """``both`` (…, 2d) = the transform of ``real`` (…, d)."""
    for lines, pairs in _lines(real, both):
        _place(xp, xp.fft.fft(lines.astype(wide(lines.dtype), copy=False)), pairs)


def _place(xp: Any, found: Array, pairs: Array) -> None:
    if pairs.dtype.itemsize > 2:
        xp.copyto(pairs.view(_COMPLEX[pairs.dtype.itemsize]), found, casting="same_kind")
    else:
        xp.copyto(pairs[:, 0::2], xp.real(found), casting="same_kind")
        xp.copyto(pairs[:, 1::2], xp.imag(found), casting="same_kind")


def _together(xp: Any, both: Array, real: Array) -> None:
    """``real`` (…, d) = the real part of the inverse transform of ``both`` (…, 2d), times d."""
    for lines, pairs in _lines(real, both):
        numbers = xp.ascontiguousarray(pairs, wide(pairs.dtype)).view(_COMPLEX[wide(pairs.dtype).itemsize])
        xp.copyto(lines, xp.real(xp.fft.ifft(numbers, norm="forward")), casting="same_kind")


def _lines(real: Array, both: Array) -> Iterator[tuple[Array, Array]]:
    """A few lines of both at a time."""
    count, length = math.prod(real.shape[:-1]), real.shape[-1]
    flat = real.reshape(count, length), both.reshape(count, 2 * length)
    step = max(1, PIECE // length)
    for start in range(0, count, step):
        yield flat[0][start : start + step], flat[1][start : start + step]


@register_op
class _contrib_fft(_Transform):
    """``out`` = the Fourier transform of data's lines, not scaled: data (…, d), out (…, 2d): re, im, re, im, …"""

    examples = ({"data": (2, 3)}, {"data": (2, 1, 2, 4)})

    def infer(self, s: Any) -> None:
        check_axis(s, "data", 0)
        s.out = replace(s.data, -1, s.data[-1] * 2)
        s.data = replace(s.out, -1, s.out[-1] // 2)
        check_not_empty(s, -1)

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        _apart(xp, data, out)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        _together(xp, dout, ddata)


@register_op
class _contrib_ifft(_Transform):
    """``out`` = the real part of the inverse Fourier transform, times d: data (…, 2d): re, im, re, im, …, out (…, d).

    Divide by d for the inverse of fft.
    """

    examples = ({"data": (2, 6)}, {"data": (2, 1, 2, 8)})

    def infer(self, s: Any) -> None:
        check_axis(s, "data", 0)
        if s.data[-1] is not UNKNOWN and s.data[-1] % 2:
            s.fail("data", f"must hold pairs along the last axis, but it has {s.data[-1]} values there")
        s.data = replace(s.out, -1, s.out[-1] * 2)
        s.out = replace(s.data, -1, s.data[-1] // 2)
        check_not_empty(s, -1)

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        _together(xp, data, out)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        _apart(xp, dout, ddata)
