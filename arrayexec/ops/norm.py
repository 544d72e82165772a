"""Normalisation over the batch. Statistics and parameters are float32 where the data have 16 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..dims import ANY, replace
from ..registry import Op, Sample, Temp, register_op
from .linalg import wide

Array = Any
BLOCK = 1 << 16  # values of data that one pass takes before the next pass reads them again from the cache


@register_op
class BatchNorm(Op):
    """``out = (data - mean) / sqrt(var + eps) · gamma + beta``, for each channel on its own.

    data (…, c, …) with c at ``axis``; gamma, beta, moving_mean, moving_var (c,). Training takes mean and biased
    variance of the batch and moves ``moving = momentum · moving + (1 - momentum) · batch`` once a forward;
    inference and ``use_global_stats`` take the moving ones. With ``fix_gamma`` gamma counts as 1: its array is
    neither read nor changed, its gradient is 0. ``output_mean_var`` shows mean and ``var``, which is
    1 / sqrt(variance + eps); gradients that arrive there are ignored. ``unbiased`` moves moving_var by the
    variance times n / (n - 1).
    """

    eps: float = 1e-3
    momentum: float = 0.9
    fix_gamma: bool = True
    use_global_stats: bool = False
    output_mean_var: bool = False
    axis: int = 1
    unbiased: bool = False
    cudnn_off: bool = False
    min_calib_range: float | None = None
    max_calib_range: float | None = None
    aux = ("moving_mean", "moving_var")
    hints = ("cudnn_off", "min_calib_range", "max_calib_range")
    examples = (
        {"data": (4, 3, 2), "fix_gamma": False, "moving_var": Sample((3,), 0.5, 1.5)},
        {"data": (4, 3), "eps": 0.5, "moving_var": Sample((3,), 0.5, 1.5)},
        {"data": (4, 2, 3), "axis": -1, "momentum": 0.3, "fix_gamma": False, "moving_var": Sample((3,), 0.5, 1.5)},
        {"data": (4, 3), "use_global_stats": True, "fix_gamma": False, "moving_var": Sample((3,), 0.5, 1.5)},
        {"data": (4, 3), "output_mean_var": True, "unbiased": True, "moving_var": Sample((3,), 0.5, 1.5)},
    )

    def outputs(self) -> tuple[str, ...]:
        return ("out", "mean", "var") if self.output_mean_var else ("out",)

    def hidden(self) -> tuple[str, ...]:
        return () if self.output_mean_var else ("mean", "var")

    def ignored(self) -> tuple[str, ...]:
        return ("gamma",) if self.fix_gamma else ()

    def variable_attributes(self, argument: str) -> Mapping[str, str]:
        start = {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'}.get(argument)
        return {"__init__": start} if start else {}

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        if s.data is ANY:
            return
        if not -len(s.data) <= self.axis < len(s.data):
            s.fail("data", f"must have an axis {self.axis}, but it has {len(s.data)} dims")
        for name in ("gamma", "beta", "moving_mean", "moving_var", "mean", "var"):
            setattr(s, name, (s.data[self.axis],))
            s.data = replace(s.data, self.axis, getattr(s, name)[0])

    def types(self, t: Any) -> None:
        if t.data is None and t.gamma is not None and t.gamma.itemsize > 4:
            t.data = t.gamma  # float32 parameters go with 16-bit data too, so they say nothing
        t.out = t.data
        t.data = t.out
        if t.data is not None:
            for name in ("gamma", "beta", "moving_mean", "moving_var", "mean", "var"):
                setattr(t, name, wide(t.data))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        outer, channels, inner = self._three(s.data)
        return {"block": ((min(outer, _rows(channels, inner)), channels, inner), s.dtype("mean"))}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        if want == {"beta"} or (self.fix_gamma and "data" not in want):
            return ()
        gamma = ("gamma",) if "data" in want and not self.fix_gamma else ()
        return ("data", "mean", "var", *gamma)

    def _three(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Sizes before the channel axis, on it, and after it."""
        axis = self.axis % len(shape)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def forward(
        self, xp: Any, is_train: bool, data: Array, gamma: Array, beta: Array,
        moving_mean: Array, moving_var: Array, out: Array, mean: Array, var: Array, block: Temp,
    ) -> None:  # fmt: skip
        shape = self._three(data.shape)
        x, y = data.reshape(shape), out.reshape(shape)
        if is_train and not self.use_global_stats:
            count = max(shape[0] * shape[2], 1)
            xp.sum(x, axis=(0, 2), dtype=mean.dtype, out=mean)
            xp.divide(mean, count, out=mean)
            var.fill(0)
            for _, centred in _blocks(xp, x, mean, block):
                var += xp.einsum("ncl,ncl->c", centred, centred)
            xp.divide(var, count, out=var)
        else:
            xp.copyto(mean, moving_mean)
            xp.copyto(var, moving_var)
        xp.add(var, self.eps, out=var)
        xp.sqrt(var, out=var)
        xp.reciprocal(var, out=var)
        scale = (var if self.fix_gamma else var * gamma).reshape(-1, 1)
        for rows, centred in _blocks(xp, x, mean, block):
            xp.multiply(centred, scale, out=centred)
            xp.add(centred, beta.reshape(-1, 1), out=y[rows])

    def update(self, xp: Any, data: Array, moving_mean: Array, moving_var: Array, mean: Array, var: Array) -> None:
        count = data.size // max(len(mean), 1)
        if self.use_global_stats or not count:
            return
        variance = xp.maximum(1 / (var * var) - self.eps, 0)
        if self.unbiased:
            variance *= count / max(count - 1, 1)
        for moving, batch in ((moving_mean, mean), (moving_var, variance)):
            moving *= self.momentum
            moving += batch * (1 - self.momentum)

    def backward(
        self, xp: Any, is_train: bool, dout: Array, data: Array, gamma: Array, mean: Array, var: Array,
        ddata: Array, dgamma: Array, dbeta: Array, block: Temp,
    ) -> None:  # fmt: skip
        shape = self._three(dout.shape)
        arriving, batch = dout.reshape(shape), is_train and not self.use_global_stats
        total = xp.sum(arriving, axis=(0, 2), dtype=block.dtype)
        if dbeta is not None:
            xp.copyto(dbeta, total)
        if dgamma is not None and self.fix_gamma:
            dgamma.fill(0)
            dgamma = None
        slope = xp.zeros_like(total)  # the gradient of gamma
        if dgamma is not None or (ddata is not None and batch):
            for rows, centred in _blocks(xp, data.reshape(shape), mean, block):
                slope += xp.einsum("ncl,ncl->c", centred, arriving[rows])
            slope *= var
        if dgamma is not None:
            xp.copyto(dgamma, slope)
        if ddata is None:
            return
        result = ddata.reshape(shape)
        scale = (var if self.fix_gamma else var * gamma).reshape(-1, 1)
        if not batch:
            xp.multiply(arriving, scale, out=result)
            return
        count = max(shape[0] * shape[2], 1)
        pull, level = (slope * var / -count).reshape(-1, 1), (total / count).reshape(-1, 1)
        for rows, centred in _blocks(xp, data.reshape(shape), mean, block):
            xp.multiply(centred, pull, out=centred)
            xp.add(centred, arriving[rows], out=centred)
            xp.subtract(centred, level, out=centred)
            xp.multiply(centred, scale, out=result[rows])


def _rows(channels: int, inner: int) -> int:
    """Rows of (…, channels, inner) that one block takes."""
    return max(1, BLOCK // max(channels * inner, 1))


def _blocks(xp: Any, data: Array, mean: Array, block: Array) -> Iterator[tuple[slice, Array]]:
    """Rows of each block in turn, and ``data - mean`` of these rows, computed into ``block``."""
    step = len(block)
    for start in range(0, len(data), max(step, 1)):
        rows = slice(start, start + step)
        centred = block[: min(step, len(data) - start)]
        xp.subtract(data[rows], mean.reshape(-1, 1), out=centred)
        yield rows, centred
