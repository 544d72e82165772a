"""Gradients in two bits a number: what was not sent is kept and added to the next gradient."""

from __future__ import annotations

from typing import Any

import numpy

from ..context import context_of

Array = Any

_NEGATIVE, _POSITIVE = 2, 3  # MXNet's codes, 0 for 0: sixteen are four bytes, the first in the highest bits


class TwoBit:
    """Sends ``+threshold``, ``-threshold`` or 0 for each number, by the sum of what is there and what was kept.

    ``send`` gives numbers, ``pack`` and ``unpack`` the bytes of them that travel.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        codes = numpy.arange(256, dtype=numpy.uint8)[:, None] >> numpy.array([6, 4, 2, 0], numpy.uint8) & 3
        self._table = numpy.array([0, 0, -threshold, threshold], numpy.float32)[codes]

    def send(self, gradient: Array, residual: Array, out: Array) -> None:
        """Write into ``out`` what is sent of ``gradient``; ``residual``, of its shape, is what was kept, in place."""
        context = context_of(residual)
        xp, limit = context.xp, self.threshold
        with context.enter():
            xp.add(residual, gradient, out=residual)
            xp.multiply(residual >= limit, limit, out=out, dtype=out.dtype, casting="unsafe")
            xp.subtract(out, (residual <= -limit) * out.dtype.type(limit), out=out)
            xp.subtract(residual, out, out=residual)

    @staticmethod
    def packed_size(count: int) -> int:
        """Bytes of ``count`` numbers."""
        return -(-count // 16) * 4

    def pack(self, sent: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        """The bytes of numbers that `send` gave."""
        codes = numpy.zeros((self.packed_size(sent.size), 4), numpy.uint8)
        flat = codes.reshape(-1)[: sent.size]
        numpy.multiply(sent.reshape(-1) > 0, _POSITIVE, out=flat, casting="unsafe")
        flat[sent.reshape(-1) < 0] = _NEGATIVE
        codes <<= numpy.array([6, 4, 2, 0], numpy.uint8)
        packed: numpy.ndarray[Any, Any] = numpy.bitwise_or.reduce(codes, axis=1)
        return packed

    def unpack(self, packed: numpy.ndarray[Any, Any], count: int) -> numpy.ndarray[Any, Any]:
        """The float32 numbers of such bytes."""
        numbers: numpy.ndarray[Any, Any] = self._table[packed].reshape(-1)[:count]
        return numbers
