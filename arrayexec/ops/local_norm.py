"""Normalisation without parameters: L2Normalization by the length of vectors, LRN by the neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis, check_floating
from .norm import BLOCK, spans
from .precision import wide

Array = Any


class _Same(Op):
    """Base: out is as data, hidden values are 32 bits wide at least."""

    rows = "parallel"

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")
        if t.data is not None:
            t.norm = wide(t.data)


@register_op
class L2Normalization(_Same):
    """``out = data / sqrt(Σ data² + eps)``: data (n, …), out as data.

    The sum runs over all but the first axis (``instance``), over axis 1 (``channel``) or over the axes behind it
    (``spatial``; both need at least 3 dims). Sums of 16-bit data are made in float32. Zeros stay zeros; a NaN makes
    all that is divided by its sum NaN.
    """

    eps: float = 1e-10
    mode: Literal["instance", "channel", "spatial"] = "instance"
    hidden = ("norm",)
    examples = (
        {"data": Sample((3, 4), 0.2, 1), "eps": 0.1},
        {"data": (2, 3, 4), "mode": "channel"},
        {"data": (2, 3, 2, 2), "mode": "spatial"},
    )

    def infer(self, s: Any) -> None:
        super().infer(s)
        s.norm = {"instance": s.data[:1], "channel": s.data[:1] + s.data[2:], "spatial": s.data[:2]}[self.mode]
        if self.mode != "instance" and len(s.data) < 3:
            s.fail("data", f"must have at least 3 dims for mode '{self.mode}', but it is {format_shape(s.data)}")

    def _view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """``shape`` as (outer, n, inner); the sums run over n."""
        if self.mode == "channel":
            return shape[0], shape[1], math.prod(shape[2:])
        axes = 1 if self.mode == "instance" else 2
        return math.prod(shape[:axes]), math.prod(shape[axes:]), 1

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        outer, count, inner = self._view(s.data)
        return {"block": ((min(outer, max(1, BLOCK // max(count * inner, 1))), count, inner), s.dtype("norm"))}

    def forward(self, xp: Any, data: Array, out: Array, norm: Array, block: Temp) -> None:
        shape = outer, _, inner = self._view(data.shape)
        x, y, length = data.reshape(shape), out.reshape(shape), norm.reshape(outer, 1, inner)
        for rows in spans(outer, len(block)):
            source = x[rows]
            if source.dtype != block.dtype:
                source = block[: rows.stop - rows.start]
                xp.copyto(source, x[rows])
            xp.sqrt(xp.einsum("abc,abc->ac", source, source)[:, None] + self.eps, out=length[rows])
            xp.multiply(source, 1 / length[rows], out=y[rows])

    def backward(self, xp: Any, dout: Array, out: Array, norm: Array, ddata: Array, block: Temp) -> None:
        shape = outer, _, inner = self._view(out.shape)
        arriving, y, result = dout.reshape(shape), out.reshape(shape), ddata.reshape(shape)
        length = norm.reshape(outer, 1, inner)
        for rows in spans(outer, len(block)):
            along = block[: rows.stop - rows.start]
            xp.multiply(arriving[rows], y[rows], out=along, dtype=along.dtype)
            xp.multiply(y[rows], xp.sum(along, axis=1, keepdims=True), out=along)
            xp.subtract(arriving[rows], along, out=along)
            xp.multiply(along, 1 / length[rows], out=result[rows])


@register_op
class LRN(_Same):
    """``out = data / (knorm + alpha / nsize · Σ data²)^beta``, the sum over the ``nsize`` channels around each.

    data (n, c, …), out as data; channels outside count as 0, nsize is odd. Sums of 16-bit data are made in float32.
    A NaN makes all values NaN whose window it lies in.
    """

    alpha: float = 1e-4
    beta: float = 0.75
    knorm: float = 2.0
    nsize: int
    hidden = ("norm",)
    examples = (
        {"data": (2, 4, 3), "nsize": 3, "alpha": 0.5},
        {"data": (2, 6, 2, 2), "nsize": 5, "beta": 0.5, "knorm": 1.0, "alpha": 2.0},
        {"data": (2, 2), "nsize": 5, "beta": 1.3, "alpha": 1.0},
    )

    def __post_init__(self) -> None:
        if self.nsize < 1 or self.nsize % 2 == 0:
            raise AttributeValueError(f"LRN: attribute 'nsize' must be odd and at least 1, but it is {self.nsize}")

    def infer(self, s: Any) -> None:
        super().infer(s)
        s.norm = s.data
        s.data = s.norm
        check_axis(s, "data", 1)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        rows, channels, *places = s.data
        tile = ((min(max(BLOCK, channels), rows * channels * math.prod(places)),), s.dtype("norm"))
        return {"power": tile, "product": tile, "sums": tile}

    def _tiles(self, scratch: tuple[Array, ...], arrays: tuple[Array, ...]) -> Iterator[list[Array]]:
        """Pieces that stay in the cache: (rows, channels, places) of all arrays, those of ``scratch`` first."""
        rows, channels, *dims = arrays[0].shape
        places = math.prod(dims)
        views = [array.reshape(rows, channels, places) for array in arrays]
        size = scratch[0].size // max(channels, 1)
        step, width = max(size // max(places, 1), 1), max(min(size, places), 1)
        for some in spans(rows, step):
            for part in spans(places, width):
                shape = (some.stop - some.start, channels, part.stop - part.start)
                yield [
                    *(array[: math.prod(shape)].reshape(shape) for array in scratch),
                    *(view[some, :, part] for view in views),
                ]

    def _around(self, xp: Any, values: Array, sums: Array) -> None:
        """``sums`` = the sums of ``values`` over the channels around each."""
        xp.copyto(sums, values)
        for step in range(1, min(self.nsize // 2 + 1, values.shape[1])):
            xp.add(sums[:, step:], values[:, :-step], out=sums[:, step:])
            xp.add(sums[:, :-step], values[:, step:], out=sums[:, :-step])

    def _power(self, xp: Any, norm: Array, out: Array, root: Array) -> None:
        """``out`` = norm^-beta; by roots for the beta that nearly all networks have."""
        if self.beta == 0.75:
            xp.sqrt(norm, out=root)
            xp.sqrt(root, out=out)
            xp.multiply(out, root, out=out)
            xp.reciprocal(out, out=out)
        else:
            xp.power(norm, -self.beta, out=out)

    def forward(self, xp: Any, data: Array, out: Array, norm: Array, power: Temp, product: Temp) -> None:
        for scale, squares, x, y, total in self._tiles((power, product), (data, out, norm)):
            xp.multiply(x, x, out=squares, dtype=squares.dtype)
            self._around(xp, squares, total)
            xp.multiply(total, self.alpha / self.nsize, out=total)
            xp.add(total, self.knorm, out=total)
            self._power(xp, total, scale, squares)
            xp.multiply(x, scale, out=y)

    def backward(
        self, xp: Any, dout: Array, data: Array, norm: Array, ddata: Array, power: Temp, product: Temp, sums: Temp
    ) -> None:
        pull = -2 * self.alpha * self.beta / self.nsize
        tiles = self._tiles((power, product, sums), (dout, data, norm, ddata))
        for direct, through, around, g, x, total, result in tiles:
            self._power(xp, total, direct, through)
            xp.multiply(g, direct, out=direct)
            xp.multiply(direct, x, out=through)
            xp.divide(through, total, out=through)
            self._around(xp, through, around)
            xp.multiply(around, x, out=around)
            xp.multiply(around, pull, out=around)
            xp.add(around, direct, out=result)
