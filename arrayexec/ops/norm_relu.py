"""Normalisation over the batch with the activation behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..registry import Temp, register_op
from .bounds import at_least
from .norm import BatchNorm
from .softmax import keep_where

Array = Any


@register_op(name="_contrib_BatchNormWithReLU")
class BatchNormWithReLU(BatchNorm):
    """``out`` = max(BatchNorm of data, 0), with the attributes and states of BatchNorm. At 0 the gradient is 0."""

    def total_outputs(self) -> int:
        return 4  # the files count scratch

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {**super().temps(s), "passing": (s.out, s.dtype("out")), "mask": (s.out, "bool")}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return {*super().keeps(want), "out"}

    def forward(
        self, xp: Any, is_train: bool, data: Array, gamma: Array, beta: Array,
        moving_mean: Array, moving_var: Array, out: Array, mean: Array, var: Array, block: Temp,
    ) -> None:  # fmt: skip
        super().forward(xp, is_train, data, gamma, beta, moving_mean, moving_var, out, mean, var, block)
        at_least(xp, out, 0, out)

    def backward(  # type: ignore[override]
        self, xp: Any, is_train: bool, dout: Array, data: Array, gamma: Array, out: Array, mean: Array, var: Array,
        ddata: Array, dgamma: Array, dbeta: Array, block: Temp, passing: Temp, mask: Temp,
    ) -> None:  # fmt: skip
        xp.not_equal(out, 0, out=mask)  # out is above 0, or NaN
        keep_where(xp, dout, mask, passing)
        super().backward(xp, is_train, passing, data, gamma, mean, var, ddata, dgamma, dbeta, block)
