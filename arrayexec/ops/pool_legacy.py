"""Pooling as the first files meant it: padding is zeros, and a mean is over the whole kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .pool import Pooling, lowest
from .precision import wide

Array = Any


@register_op
class Pooling_v1(Op):
    """``out`` = max, sum or mean (avg) of each window of data, 2-D: the operator that Pooling replaced.

    data (n, c, h, w), out (n, c, H, W), with the dims of Pooling. Unlike there, padding is 0 for max, too; avg divides
    by all places of the kernel, wherever it hangs over; and every maximum of a window gets the whole gradient, unless
    it is a padding's. A window with a NaN gives NaN and passes no gradient.
    """

    kernel: tuple[int, ...] = ()
    pool_type: Literal["max", "avg", "sum"] = "max"
    global_pool: bool = False
    pooling_convention: Literal["valid", "full"] = "valid"
    stride: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    rows = "parallel"
    examples = (
        {"data": (2, 2, 5, 4), "kernel": (2, 3), "stride": (2, 1), "pad": (1, 1)},
        {"data": (2, 1, 5, 5), "kernel": (2, 2), "stride": (2, 2), "pooling_convention": "full", "pool_type": "avg"},
        {"data": (2, 1, 5, 5), "kernel": (3, 3), "pad": (1, 1), "pool_type": "sum"},
        {"data": (2, 2, 3, 3), "global_pool": True, "pool_type": "avg"},
    )

    def __post_init__(self) -> None:
        if not self.global_pool and len(self.kernel) != 2:
            raise AttributeValueError(
                "Pooling_v1: attribute 'kernel' must hold two numbers >= 1 unless global_pool=True, "
                f"but it is {self.kernel}"
            )
        try:
            _plain(self)
        except AttributeValueError as error:
            raise AttributeValueError(str(error).replace("Pooling:", "Pooling_v1:", 1)) from None

    def infer(self, s: Any) -> None:
        s.data = s.out = (UNKNOWN,) * 4
        _plain(self).infer(s)

    def types(self, t: Any) -> None:
        _plain(self).types(t)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind, sums = s.dtype("data"), wide(s.dtype("data"))
        own = {"hit": (s.out, "bool"), "part": (s.out, sums), "sums": (s.data if sums != kind else (0,), sums)}
        return {**_plain(self).temps(s), **(own if self.pool_type == "max" else {})}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return _plain(self).keeps(want)

    def forward(self, xp: Any, data: Array, out: Array, total: Temp, power: Temp) -> None:
        plain = _plain(self)
        plain.forward(xp, data, out, total, power)
        if self.pool_type == "max" and any(self.pad) and not self.global_pool:
            beside = xp.zeros((1,), "bool")  # which windows have some padding, or nothing else
            for size, count, (kernel, stride, pad) in zip(
                data.shape[2:], out.shape[2:], plain._axes(data.shape[2:]), strict=True
            ):
                starts = xp.arange(count) * stride - pad
                over = (starts < 0) | (xp.minimum(starts + kernel, size + pad) > size)
                beside = beside[..., None] | over
            least = xp.where(beside, 0, lowest(xp, out.dtype))
            xp.maximum(out, least.astype(out.dtype), out=out)

    def backward(
        self, xp: Any, dout: Array, data: Array, out: Array, ddata: Array,
        sums: Temp, part: Temp, power: Temp, lines: Temp, hit: Temp, left: Temp, first: Temp,
    ) -> None:  # fmt: skip
        plain = _plain(self)
        if self.pool_type != "max":
            plain.backward(xp, dout, data, out, ddata, sums, part, power, lines, hit, left, first)
            return
        target = sums if sums.size else ddata
        target.fill(0)
        for there, here in plain._places(data.shape[2:], out.shape[2:]):
            xp.equal(data[here], out[there], out=hit[there])
            xp.multiply(dout[there], hit[there], out=part[there])
            xp.add(target[here], part[there], out=target[here])
        if target is not ddata:
            xp.copyto(ddata, target)


class _WholeMean(Pooling):
    """Pooling whose avg divides by all places of the kernel."""

    def _counts(self, xp: Any, sizes: tuple[int, ...], outs: tuple[int, ...], kind: Any) -> Array:
        return xp.full((1,), math.prod(kernel for kernel, _, _ in self._axes(sizes)), kind)


@functools.lru_cache(maxsize=256)
def _plain(op: Pooling_v1) -> Pooling:
    """The pooling that does what both have in common."""
    cls = _WholeMean if op.pool_type == "avg" else Pooling
    return cls(
        kernel=op.kernel, pool_type=op.pool_type, global_pool=op.global_pool, stride=op.stride, pad=op.pad,
        pooling_convention=op.pooling_convention,
    )  # fmt: skip
