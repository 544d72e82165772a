"""16-bit values are stored in 16 bits and reckoned with in 32: in which type sums run, and the ways there and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from .bounds import at_least

Array = Any
FLOAT32, FLOAT16 = np.dtype("float32"), np.dtype("float16")
SHORT = 1 << 14  # values that are converted at once
LARGE = 2.0**15  # below it nothing rounds to infinity in float16


def wide(dtype: Any) -> Any:
    """Type in which sums over values of ``dtype`` run: float32 for 16-bit floats, else the type itself."""
    return FLOAT32 if dtype.kind in "fV" and dtype.itemsize == 2 else dtype  # V: another package's bfloat16


def mean_type(dtype: Any) -> Any:
    """Type in which values of ``dtype`` are averaged: as :func:`wide`, but float64 for whole numbers."""
    return np.dtype(np.float64) if dtype.kind in "iub" else wide(dtype)


def widen(xp: Any, source: Array, target: Array) -> None:
    """``target = source``, to float32 from 16 bits or another type.

    A float16's bits, shifted to their places in a float32, are the value times 2⁻¹¹². That takes a fifth of the time of
    NumPy's own conversion, but makes infinity and NaN something from 2¹⁶ on.
    """
    if xp is np and source.dtype == np.float16 and target.dtype == np.float32 and source.size:
        bits = target.view(np.int32)
        xp.left_shift(source.view(np.int16), 13, out=bits, dtype=np.int32)
        xp.bitwise_and(bits, ~0x70001FFF, out=bits)  # of the sign, which the shift has repeated, one bit
        xp.multiply(target, 2.0**112, out=target)
        if xp.max(target) < 2**16 and xp.min(target) > -(2**16):
            return
    xp.copyto(target, source)


def narrow(xp: Any, source: Array, target: Array) -> None:
    """``target = source``, from float32 to 16 bits or another type; ``source`` may be overwritten.

    NumPy's own conversion to float16 takes 60 ns for a value that is too small. Here 1.5 · 2¹³ times the power of two
    of a value is added and taken away again, which rounds it (to even) to the bits that a float16 has.
    """
    if not (xp is np and source.dtype == np.float32 and target.dtype == np.float16 and source.size):
        xp.copyto(target, source, casting="same_kind")
        return
    order = sorted(range(source.ndim), key=lambda axis: -source.strides[axis])
    _narrow(xp, source.transpose(order), target.transpose(order), xp.empty((2, min(source.size, SHORT)), np.float32))


def cast(xp: Any, source: Array, target: Array) -> None:
    """``target = source`` of any types, between float32 and float16 in pieces that stay in the cache."""
    kinds = source.dtype, target.dtype
    in_line = source.flags.c_contiguous and target.flags.c_contiguous
    if xp is not np or not in_line or kinds not in ((FLOAT32, FLOAT16), (FLOAT16, FLOAT32)):
        xp.copyto(target, source, casting="unsafe")
        return
    values, places = source.reshape(-1), target.reshape(-1)
    room = np.empty(min(values.size, SHORT), np.float32) if target.dtype == FLOAT16 else None
    for start in range(0, values.size, SHORT):
        some = values[start : start + SHORT]
        if room is not None:
            copy = room[: some.size]
            np.copyto(copy, some)
            narrow(np, copy, places[start : start + some.size])
        else:
            widen(np, some, places[start : start + some.size])


def _narrow(xp: Any, source: Array, target: Array, room: Array) -> None:
    most = room.shape[1]
    if source.size > most and len(source) == 1:
        _narrow(xp, source[0], target[0], room)
        return
    if source.size > most:
        several = max(1, most * len(source) // source.size)
        for start in range(0, len(source), several):
            _narrow(xp, source[start : start + several], target[start : start + several], room)
        return
    bits, (power, sign) = source.view(np.int32), room[:, : source.size].reshape(2, *source.shape)
    sign = sign.view(np.int32)
    xp.bitwise_and(bits, 0x7F800000, out=power.view(np.int32))
    if not xp.max(power) < LARGE:  # so it is with infinity and NaN
        xp.copyto(target, source, casting="same_kind")
        return
    xp.bitwise_and(bits, -(2**31), out=sign)
    xp.multiply(power, 1.5 * 2**13, out=power)
    at_least(xp, power, 0.75, power)  # all values below 2⁻¹⁴ have the same step
    xp.add(source, power, out=source)
    xp.subtract(source, power, out=source)
    xp.multiply(source, 2.0**-112, out=source)
    xp.right_shift(bits, 13, out=bits)
    xp.right_shift(sign, 16, out=sign)  # a value that became 0 has lost its own
    xp.bitwise_or(bits, sign, out=bits)
    xp.copyto(target.view(np.int16), bits, casting="unsafe")
