"""Normalisation of each row by itself: LayerNorm, InstanceNorm, GroupNorm.

The bodies look at data as (outer, n, inner) and normalise over n. Gain and shift stand along n (LayerNorm) or one for
each of the outer ones, again and again (the other two).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..dims import UNKNOWN, replace
from ..errors import format_shape
from ..registry import Op, Temp, register_op
from .checks import check_axis, check_floating, check_least, check_rank
from .norm import BLOCK, spans
from .precision import wide

Array = Any
VECTORS = 1 << 12  # means that one block has, at most


class RowNorm(Op):
    """Base: ``out = (data - mean) / std · gamma + beta``, std = sqrt(biased variance + eps)."""

    eps: float = 1e-5

    def statistics(self, s: Any) -> None:
        """Shapes of gamma, beta, mean and std for data of known rank."""

    def view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """``shape`` as (outer, n, inner)."""
        return 1, math.prod(shape), 1

    def along(self) -> bool:
        """True if gamma stands along n."""
        return False

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        self.statistics(s)

    def types(self, t: Any) -> None:
        t.out = t.data
        t.data = t.out
        check_floating(t, "data")
        if t.data is None:
            if t.gamma is not None and t.gamma.itemsize > 4:
                t.data = t.out = t.gamma  # float32 parameters go with 16-bit data too, so they say nothing
            return
        t.mean = t.std = wide(t.data)
        for name in ("gamma", "beta"):
            given = getattr(t, name)
            if given is None or given != t.data:  # files of 16-bit networks may hold 16-bit parameters
                setattr(t, name, wide(t.data))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        outer, count, inner = self.view(s.data)
        rows = max(1, min(BLOCK // max(count * inner, 1), VECTORS // max(inner, 1)))
        block = (min(outer, rows), count, inner), s.dtype("mean")
        return {"block": block, "pull": block}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        if not want & {"data", "gamma"}:
            return ()
        return ("data", "mean", "std", *(("gamma",) if "data" in want else ()))

    def _each(self, xp: Any, values: Array, rows: slice) -> Array:
        """gamma or beta so that it broadcasts with some rows of data: (1, n, 1), or (rows, 1, 1)."""
        if self.along():
            return values.reshape(1, -1, 1)
        return xp.take(values, self._places(xp, rows, values)).reshape(-1, 1, 1)

    def _places(self, xp: Any, rows: slice, values: Array) -> Array:
        """Which gamma the rows have."""
        return xp.arange(rows.start, rows.stop) % len(values)

    def forward(
        self, xp: Any, data: Array, gamma: Array, beta: Array, out: Array, mean: Array, std: Array, block: Temp
    ) -> None:
        outer, count, inner = shape = self.view(data.shape)
        x, y = data.reshape(shape), out.reshape(shape)
        centre, spread = (array.reshape(outer, 1, inner) for array in (mean, std))
        for rows in spans(outer, len(block)):
            centred = block[: rows.stop - rows.start]
            xp.sum(x[rows], axis=1, keepdims=True, dtype=mean.dtype, out=centre[rows])
            centre[rows] /= max(count, 1)
            xp.subtract(x[rows], centre[rows], out=centred)
            squares = xp.einsum("abc,abc->ac", centred, centred)[:, None]
            xp.sqrt(squares / max(count, 1) + self.eps, out=spread[rows])
            inverse, gain = 1 / spread[rows], self._each(xp, gamma, rows)
            for factor in (inverse, gain) if self.along() else (inverse * gain,):
                xp.multiply(centred, factor, out=centred)
            xp.add(centred, self._each(xp, beta, rows), out=y[rows])

    def backward(
        self, xp: Any, dout: Array, data: Array, gamma: Array, mean: Array, std: Array,
        ddata: Array, dgamma: Array, dbeta: Array, block: Temp, pull: Temp,
    ) -> None:  # fmt: skip
        outer, _, inner = shape = self.view(dout.shape)
        slopes = None if dgamma is None else xp.zeros(dgamma.shape, block.dtype)
        totals = None if dbeta is None else xp.zeros(dbeta.shape, block.dtype)
        some = self._some_along if self.along() else self._some
        for rows in spans(outer, len(block)):
            centred, inverse = None, None
            if ddata is not None or dgamma is not None:
                centred = block[: rows.stop - rows.start]
                xp.subtract(data.reshape(shape)[rows], mean.reshape(outer, 1, inner)[rows], out=centred)
                inverse = 1 / std.reshape(outer, 1, inner)[rows]
            result = None if ddata is None else ddata.reshape(shape)[rows]
            some(xp, rows, dout.reshape(shape)[rows], centred, inverse, gamma, result, slopes, totals, pull)
        for gradient, sums in ((dgamma, slopes), (dbeta, totals)):
            if gradient is not None:
                xp.copyto(gradient, sums, casting="same_kind")

    def _some(
        self, xp: Any, rows: slice, dout: Array, centred: Array, inverse: Array, gamma: Array, ddata: Array,
        slopes: Array, totals: Array, pull: Array,
    ) -> None:  # fmt: skip
        """Gradients from some rows that have one gamma each."""
        level = xp.sum(dout, axis=1, keepdims=True, dtype=pull.dtype)
        if totals is not None:
            xp.add.at(totals, self._places(xp, rows, totals), level.reshape(-1))
        if centred is None:
            return
        slope = xp.einsum("abc,abc->ac", dout, centred)[:, None] * inverse
        if slopes is not None:
            xp.add.at(slopes, self._places(xp, rows, slopes), slope.reshape(-1))
        if ddata is not None:
            count = max(dout.shape[1], 1)
            xp.multiply(centred, slope * inverse / -count, out=centred)
            xp.add(centred, dout, out=centred)
            xp.subtract(centred, level / count, out=centred)
            xp.multiply(centred, self._each(xp, gamma, rows) * inverse, out=ddata)

    def _some_along(
        self, xp: Any, rows: slice, dout: Array, centred: Array, inverse: Array, gamma: Array, ddata: Array,
        slopes: Array, totals: Array, pull: Array,
    ) -> None:  # fmt: skip
        """Gradients from some rows that gamma stands along."""
        if totals is not None:
            totals += xp.sum(dout, axis=(0, 2), dtype=pull.dtype)
        if centred is None:
            return
        xp.multiply(centred, inverse, out=centred)
        if slopes is not None:
            slopes += xp.einsum("abc,abc->b", dout, centred)
        if ddata is not None:
            count, g = max(dout.shape[1], 1), pull[: len(dout)]
            xp.multiply(dout, self._each(xp, gamma, rows), out=g)
            level = xp.sum(g, axis=1, keepdims=True) / count
            xp.multiply(centred, xp.einsum("abc,abc->ac", g, centred)[:, None] / count, out=centred)
            xp.subtract(g, centred, out=g)
            xp.subtract(g, level, out=g)
            xp.multiply(g, inverse, out=ddata)


@register_op
class LayerNorm(RowNorm):
    """``out = (data - mean) / std · gamma + beta``, mean and std = sqrt(variance + eps) over ``axis`` of each row.

    data (…, n, …) with n at ``axis``; gamma, beta (n,). ``output_mean_var`` shows mean and std, of data's shape with 1
    at ``axis``; gradients that arrive there are ignored. The variance is the biased one. 16-bit data have statistics
    in float32, and parameters too unless they are given in data's type. A NaN makes its row NaN.
    """

    axis: int = -1
    eps: float = 1e-5
    output_mean_var: bool = False
    examples = (
        {"data": (4, 5)},
        {"data": (3, 4, 2), "axis": 1, "eps": 0.1},
        {"data": (3, 2, 4), "output_mean_var": True},
    )

    def outputs(self) -> tuple[str, ...]:
        return ("out", "mean", "std") if self.output_mean_var else ("out",)

    def hidden(self) -> tuple[str, ...]:
        return () if self.output_mean_var else ("mean", "std")

    def statistics(self, s: Any) -> None:
        s.beta = s.gamma
        s.gamma = s.beta
        s.data = replace(s.mean, self.axis, UNKNOWN)
        check_axis(s, "data", self.axis)
        for name in ("gamma", "beta"):
            setattr(s, name, (s.data[self.axis],))
            s.data = replace(s.data, self.axis, getattr(s, name)[0])
        s.mean = s.std = replace(s.data, self.axis, 1)

    def view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        axis = self.axis % len(shape)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def along(self) -> bool:
        return True


@register_op
class InstanceNorm(RowNorm):
    """``out = (data - mean) / std · gamma + beta``, mean and std = sqrt(variance + eps) of each channel of each row.

    data (n, c, …) of at least 3 dims, gamma, beta (c,). The variance is the biased one. 16-bit data have statistics in
    float32, and parameters too unless they are given in data's type. A NaN makes its channel of its row NaN.
    """

    eps: float = 1e-3
    hidden = ("mean", "std")
    rows = "sum"
    examples = ({"data": (2, 3, 4)}, {"data": (2, 3, 2, 3), "eps": 0.1})

    def statistics(self, s: Any) -> None:
        s.beta = s.gamma
        s.gamma = s.beta
        check_rank(s, "data", 3)
        s.gamma = s.beta = s.data[1:2]
        s.data = replace(s.data, 1, s.gamma[0])
        s.mean = s.std = s.data[:2]

    def view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        return shape[0] * shape[1], math.prod(shape[2:]), 1


@register_op
class GroupNorm(RowNorm):
    """``out = (data - mean) / std · gamma + beta``, mean and std = sqrt(variance + eps) of each group of each row.

    data (n, c, …) of at least 3 dims; the c channels are ``num_groups`` equal groups; gamma, beta (num_groups,).
    ``output_mean_var`` shows mean and std (n, num_groups); gradients that arrive there are ignored. The variance is the
    biased one. 16-bit data have statistics in float32, and parameters too unless they are given in data's type. A NaN
    makes its group of its row NaN.
    """

    num_groups: int = 1
    eps: float = 1e-5
    output_mean_var: bool = False
    rows = "sum"
    examples = (
        {"data": (2, 4, 3), "num_groups": 2},
        {"data": (2, 3, 2, 2), "eps": 0.1},
        {"data": (2, 4, 3), "num_groups": 4, "output_mean_var": True},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_groups")

    def outputs(self) -> tuple[str, ...]:
        return ("out", "mean", "std") if self.output_mean_var else ("out",)

    def hidden(self) -> tuple[str, ...]:
        return () if self.output_mean_var else ("mean", "std")

    def statistics(self, s: Any) -> None:
        s.gamma = s.beta = (self.num_groups,)
        s.mean = s.std = (s.data[0], self.num_groups)
        s.data = replace(s.data, 0, s.mean[0])
        check_rank(s, "data", 3)
        channels = s.data[1]
        if channels % self.num_groups:
            s.fail("data", f"must have a multiple of {self.num_groups} channels, but it is {format_shape(s.data)}")

    def view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        return shape[0] * self.num_groups, shape[1] // self.num_groups * math.prod(shape[2:]), 1
