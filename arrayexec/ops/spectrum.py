"""Fourier transforms along the last axis. A complex number is two neighbours: its real part and its imaginary part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..dims import UNKNOWN, replace
from ..registry import Op, Temp, register_op
from .checks import check_axis, check_floating
from .softmax import check_not_empty

Array = Any
PIECE = 6 << 10  # numbers that are transformed at a time, or LINES of more
LINES = 16  # a call of NumPy's makes its table of sines anew: it must be worth its while


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transform(Op):
    """Base: rank and types; each of the two is the other's transpose, so it gives the other's gradient.

    A line of reals has a spectrum whose second half is the mirror of its first, and only the part of a spectrum that is
    so mirrored makes reals: so half is transformed, in float64.
    """

    compute_size: int = 128
    rows = "parallel"
    linear = ("data",)
    hints = ("compute_size",)
    real: ClassVar[str]  # the side of reals

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        *dims, length = getattr(s, self.real)
        lines = min(math.prod(dims), max(LINES, PIECE // length))
        return {"values": ((lines, length), "float64"), "half": ((lines, length // 2 + 1), "complex128")}


def _apart(xp: Any, real: Array, both: Array, values: Array, half: Array) -> None:
    """``both`` (…, 2d) = the transform of ``real`` (…, d)."""
    for lines, pairs, room, found in _lines(real, both, values, half):
        xp.copyto(room, lines)
        if xp is np:
            np.fft.rfft(room, out=found)  # CuPy's has no out
        else:
            xp.copyto(found, xp.fft.rfft(room))
        count, mirror = found.shape[1], slice((lines.shape[1] - 1) // 2, 0, -1)
        for of, to, sign in zip(_parts(found), _parts(pairs), (xp.positive, xp.negative), strict=True):
            xp.copyto(to[:, :count], of, casting="same_kind")
            sign(of[:, mirror], out=to[:, count:], casting="same_kind")


def _together(xp: Any, both: Array, real: Array, values: Array, half: Array) -> None:
    """``real`` (…, d) = the real part of the inverse transform of ``both`` (…, 2d), times d."""
    for lines, pairs, room, mean in _lines(real, both, values, half):
        length, count = lines.shape[1], mean.shape[1]
        for of, to, join in zip(_parts(pairs), _parts(mean), (xp.add, xp.subtract), strict=True):
            join(of[:, :1], of[:, :1], out=to[:, :1], dtype="float64")
            join(of[:, 1:count], of[:, : length - count : -1], out=to[:, 1:], dtype="float64")
        xp.multiply(mean, 0.5, out=mean)
        if xp is np:
            np.fft.irfft(mean, length, norm="forward", out=room)
        else:
            xp.copyto(room, xp.fft.irfft(mean, length, norm="forward"))
        xp.copyto(lines, room, casting="same_kind")


def _parts(numbers: Array) -> tuple[Array, Array]:
    """Real and imaginary parts, of complex numbers or pairs."""
    flat = numbers.view("float64") if numbers.dtype.kind == "c" else numbers
    return flat[:, 0::2], flat[:, 1::2]


def _lines(real: Array, both: Array, values: Array, half: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """A few lines of both at a time, and scratch for them."""
    count, length = math.prod(real.shape[:-1]), real.shape[-1]
    flat = real.reshape(count, length), both.reshape(count, 2 * length)
    for start in range(0, count, max(len(values), 1)):
        lines, pairs = (array[start : start + len(values)] for array in flat)
        yield lines, pairs, values[: len(lines)], half[: len(lines)]


@register_op
class _contrib_fft(_Transform):
    """``out`` = the Fourier transform of data's lines, not scaled: data (…, d), out (…, 2d): re, im, re, im, …"""

    real = "data"
    examples = ({"data": (2, 3)}, {"data": (2, 1, 2, 4)})

    def infer(self, s: Any) -> None:
        check_axis(s, "data", 0)
        s.out = replace(s.data, -1, s.data[-1] * 2)
        s.data = replace(s.out, -1, s.out[-1] // 2)
        check_not_empty(s, -1)

    def forward(self, xp: Any, data: Array, out: Array, values: Temp, half: Temp) -> None:
        _apart(xp, data, out, values, half)

    def backward(self, xp: Any, dout: Array, ddata: Array, values: Temp, half: Temp) -> None:
        _together(xp, dout, ddata, values, half)


@register_op
class _contrib_ifft(_Transform):
    """``out`` = the real part of the inverse Fourier transform, times d: data (…, 2d): re, im, re, im, …, out (…, d).

    Divide by d for the inverse of fft.
    """

    real = "out"
    examples = ({"data": (2, 6)}, {"data": (2, 1, 2, 8)})

    def infer(self, s: Any) -> None:
        check_axis(s, "data", 0)
        if s.data[-1] is not UNKNOWN and s.data[-1] % 2:
            s.fail("data", f"must hold pairs along the last axis, but it has {s.data[-1]} values there")
        s.data = replace(s.out, -1, s.out[-1] * 2)
        s.out = replace(s.data, -1, s.data[-1] // 2)
        check_not_empty(s, -1)

    def forward(self, xp: Any, data: Array, out: Array, values: Temp, half: Temp) -> None:
        _together(xp, data, out, values, half)

    def backward(self, xp: Any, dout: Array, ddata: Array, values: Temp, half: Temp) -> None:
        _apart(xp, dout, ddata, values, half)
