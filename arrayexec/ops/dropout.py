"""Dropout: its mask depends on seed, node, step and place in the global batch only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ..dims import ANY
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from ..streams import width
from .checks import check_axis, check_floating

Array = Any
PIECE = 1 << 16  # random numbers that are drawn at a time


@register_op
class Dropout(Op):
    """``out = data · mask / (1 - p)``: mask is 0 with probability ``p``, else 1; identity outside training.

    data and out (n, …). ``mode="always"`` drops in inference too; the mask has size 1 on ``axes``, so whole slices drop
    together. ``p = 1`` gives zeros and zero gradients. The mask is kept for backward, one byte a value.
    """

    p: float = 0.5
    mode: Literal["training", "always"] = "training"
    axes: tuple[int, ...] = ()
    cudnn_off: bool = False
    rows = "parallel"
    hints = ("cudnn_off",)
    hidden = ("mask",)
    inplace = {"out": "data", "ddata": "dout"}  # noqa: RUF012
    examples = (
        {"data": (4, 6)},
        {"data": (4, 6), "p": 0.25, "mode": "always"},
        {"data": (4, 3, 5), "axes": (2,), "mode": "always"},
        {"data": (4, 3), "axes": (0,), "mode": "always"},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise AttributeValueError(f"Dropout: attribute 'p' must lie in [0, 1], but it is {self.p}")

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        if s.data is ANY:
            return
        for axis in self.axes:
            check_axis(s, "data", axis)
        shared = {axis % len(s.data) for axis in self.axes}
        s.mask = tuple(1 if axis in shared else dim for axis, dim in enumerate(s.data))

    def types(self, t: Any) -> None:
        t.same()
        t.mask = "bool"
        check_floating(t, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        columns = width(math.prod(s.mask[1:]))
        return {"noise": ((min(s.mask[0], max(1, PIECE // max(columns, 1))), columns), "float32")}

    def is_view(self, train: bool) -> bool:
        return self.p == 0 or not (train or self.mode == "always")

    def forward(self, xp: Any, rng: Any, is_train: bool, data: Array, out: Array, mask: Array, noise: Temp) -> None:
        if self.is_view(is_train):
            mask.fill(True)
            xp.copyto(out, data)
            return
        rows = mask.reshape(len(mask), math.prod(mask.shape[1:]))
        shared = 0 in {axis % data.ndim for axis in self.axes}
        for start in range(0, len(rows), max(len(noise), 1)):
            piece = rows[start : start + len(noise)]
            drawn = noise[: len(piece)]
            rng.uniform(drawn, shared, start)
            xp.greater_equal(drawn[:, : piece.shape[1]], self.p, out=piece)
        self._apply(xp, data, mask, out)

    def backward(self, xp: Any, is_train: bool, dout: Array, mask: Array, ddata: Array) -> None:
        if self.is_view(is_train):
            xp.copyto(ddata, dout)
        else:
            self._apply(xp, dout, mask, ddata)

    def _apply(self, xp: Any, values: Array, mask: Array, out: Array) -> None:
        xp.multiply(values, 1 / (1 - self.p) if self.p < 1 else 0.0, out=out)
        xp.multiply(out, mask, out=out)
