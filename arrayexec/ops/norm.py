"""Normalisation over the batch. Statistics and parameters are float32 where the data have 16 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from ..dims import ANY, replace
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis, check_floating
from .precision import wide

Array = Any
LANES = 1 << 10  # lanes that a row with channels last holds, at most
BLOCK = 1 << 16  # values of data that one pass takes before the next pass reads them again from the cache


@register_op(aliases=("CuDNNBatchNorm",))
class BatchNorm(Op):
    """``out = (data - mean) / sqrt(var + eps) · gamma + beta``, for each channel on its own.

    data (…, c, …) with c at ``axis``; gamma, beta, moving_mean, moving_var (c,). Training takes mean and biased
    variance of the batch and moves ``moving = momentum · moving + (1 - momentum) · batch`` once a forward;
    inference and ``use_global_stats`` take the moving ones. With ``fix_gamma`` gamma counts as 1: its array is
    neither read nor changed, its gradient is 0. ``output_mean_var`` shows mean and ``var``, which is
    1 / sqrt(variance + eps); gradients that arrive there are ignored. ``unbiased`` moves moving_var by the
    variance times n / (n - 1). A NaN makes its channel NaN, and so does an ``eps`` below minus its variance; a
    batch without values moves nothing. The gradient after a forward that did not train is that of what it computed,
    with the moving statistics; MXNet on a CPU takes those of the batch there.
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
    hints: ClassVar[tuple[str, ...]] = ("cudnn_off", "min_calib_range", "max_calib_range")
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
        check_axis(s, "data", self.axis)
        for name in ("gamma", "beta", "moving_mean", "moving_var", "mean", "var"):
            setattr(s, name, (s.data[self.axis],))
            s.data = replace(s.data, self.axis, getattr(s, name)[0])

    def types(self, t: Any) -> None:
        if t.data is None and t.gamma is not None and t.gamma.itemsize > 4:
            t.data = t.gamma  # float32 parameters go with 16-bit data too, so they say nothing
        t.out = t.data
        t.data = t.out
        check_floating(t, "data")
        if t.data is not None:
            for name in ("gamma", "beta", "moving_mean", "moving_var", "mean", "var"):
                setattr(t, name, wide(t.data))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        outer, lanes, inner = self._three(s.data)
        rows = max(1, BLOCK // max(lanes * inner, 1))
        return {"block": ((min(outer, rows), lanes, inner), s.dtype("mean"))}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        slope = ("data" in want and not self.use_global_stats) or ("gamma" in want and not self.fix_gamma)
        kept = {"data", "mean", "var"} if slope else {"var"} if "data" in want else set()
        return kept | ({"gamma"} if "data" in want and not self.fix_gamma else set())

    def _three(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """How the bodies look at data: rows, lanes, places.

        A lane is a channel; with channels last it is that of one position of several, so that inner loops are long.
        """
        axis = self.axis % len(shape)
        outer, channels, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if inner != 1 or not 0 < channels <= LANES // 2:
            return outer, channels, inner
        several = math.gcd(outer, 1 << (LANES // channels).bit_length() - 1)
        return outer // several, several * channels, 1

    def _keep(self, xp: Any, var: Array) -> None:
        """Turn ``var``, the variance, into what is shown and kept: one over the deviation."""
        xp.add(var, self.eps, out=var)
        xp.sqrt(var, out=var)
        xp.reciprocal(var, out=var)

    def _inverse(self, xp: Any, var: Array) -> Array:
        """One over the deviation, from what is kept."""
        return var

    def _variance(self, xp: Any, var: Array) -> Array:
        """The variance as a new array, from what is kept."""
        return xp.maximum(1 / (var * var) - self.eps, 0)

    def forward(
        self, xp: Any, is_train: bool, data: Array, gamma: Array, beta: Array,
        moving_mean: Array, moving_var: Array, out: Array, mean: Array, var: Array, block: Temp,
    ) -> None:  # fmt: skip
        shape = self._three(data.shape)
        x, y, count = data.reshape(shape), out.reshape(shape), max(data.size // max(len(mean), 1), 1)
        if is_train and not self.use_global_stats:
            xp.divide(_folded(xp.sum(x, axis=(0, 2), dtype=mean.dtype), len(mean)), count, out=mean)
            squares = xp.zeros((shape[1],), mean.dtype)
            for _, centred in _blocks(xp, x, mean, block):
                squares += xp.einsum("ncl,ncl->c", centred, centred)
            xp.divide(_folded(squares, len(mean)), count, out=var)
        else:
            xp.copyto(mean, moving_mean)
            xp.copyto(var, moving_var)
        self._keep(xp, var)
        inverse = self._inverse(xp, var)
        scale, level = _spread(xp, inverse if self.fix_gamma else inverse * gamma, x), _spread(xp, beta, x)
        for rows, centred in _blocks(xp, x, mean, block):
            xp.multiply(centred, scale, out=centred)
            xp.add(centred, level, out=y[rows])

    def update(self, xp: Any, data: Array, moving_mean: Array, moving_var: Array, mean: Array, var: Array) -> None:
        count = data.size // max(len(mean), 1)
        if self.use_global_stats or not count:
            return
        variance = self._variance(xp, var)
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
        channels, inverse = dout.shape[self.axis], None if var is None else self._inverse(xp, var)
        total = _folded(xp.sum(arriving, axis=(0, 2), dtype=block.dtype), channels)
        if dbeta is not None:
            xp.copyto(dbeta, total)
        if dgamma is not None and self.fix_gamma:
            dgamma.fill(0)
            dgamma = None
        slope: Array = None  # the gradient of gamma
        if dgamma is not None or (ddata is not None and batch):
            products = xp.zeros((shape[1],), block.dtype)
            for rows, centred in _blocks(xp, data.reshape(shape), mean, block):
                products += xp.einsum("ncl,ncl->c", centred, arriving[rows])
            slope = _folded(products, channels) * inverse
        if dgamma is not None:
            xp.copyto(dgamma, slope)
        if ddata is None:
            return
        result = ddata.reshape(shape)
        scale = _spread(xp, inverse if self.fix_gamma else inverse * gamma, arriving)
        if not batch:
            xp.multiply(arriving, scale, out=result)
            return
        count = max(dout.size // max(channels, 1), 1)
        pull, level = _spread(xp, slope * inverse / -count, arriving), _spread(xp, total / count, arriving)
        for rows, centred in _blocks(xp, data.reshape(shape), mean, block):
            xp.multiply(centred, pull, out=centred)
            xp.add(centred, arriving[rows], out=centred)
            xp.subtract(centred, level, out=centred)
            xp.multiply(centred, scale, out=result[rows])


@register_op
class BatchNorm_v1(BatchNorm):
    """As BatchNorm; ``output_mean_var`` shows the variance itself as ``var``."""

    def _keep(self, xp: Any, var: Array) -> None:
        """The variance stays as it is."""

    def _inverse(self, xp: Any, var: Array) -> Array:
        return 1 / xp.sqrt(var + self.eps)

    def _variance(self, xp: Any, var: Array) -> Array:
        return var.copy()


@register_op(name="_contrib_SyncBatchNorm", aliases=("SyncBatchNorm",))
class SyncBatchNorm(BatchNorm_v1):
    """As BatchNorm_v1: statistics are those of the rows that this device holds, on one device the same numbers.

    ``ndev`` and ``key`` are accepted and change nothing: they told the ancestor which devices of one process meet.
    Across devices each has its own statistics, as with BatchNorm, whatever ``ndev`` says.
    """

    ndev: int = 1
    key: str = ""
    hints = ("cudnn_off", "min_calib_range", "max_calib_range", "ndev", "key")


def spans(count: int, step: int) -> Iterator[slice]:
    """Slices of ``step`` that cover ``count``."""
    for start in range(0, count, max(step, 1)):
        yield slice(start, min(start + step, count))


def _folded(lanes: Array, channels: int) -> Array:
    """Sums of lanes made sums of channels."""
    return lanes if len(lanes) == channels else lanes.reshape(-1, channels).sum(axis=0)


def _spread(xp: Any, values: Array, data: Array) -> Array:
    """One value a channel as one a lane of ``data`` (rows, lanes, places)."""
    lanes = data.shape[1]
    return (values if len(values) == lanes else xp.tile(values, lanes // len(values))).reshape(-1, 1)


def _blocks(xp: Any, data: Array, mean: Array, block: Array) -> Iterator[tuple[slice, Array]]:
    """Rows of each block in turn, and ``data - mean`` of these rows, computed into ``block``."""
    level = _spread(xp, mean, data)
    for rows in spans(len(data), len(block)):
        centred = block[: rows.stop - rows.start]
        xp.subtract(data[rows], level, out=centred)
        yield rows, centred
