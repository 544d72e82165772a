"""Loss heads and regularisers beside the usual ones: SVMOutput, IdentityAttachKLSparseReg."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..dims import UNKNOWN, replace
from ..registry import Op, Sample, Temp, register_op
from .bounds import at_least
from .checks import check_axis, check_floating
from .index import class_places, class_temps, gather
from .precision import wide

Array = Any


@register_op
class SVMOutput(Op):
    """``out`` = data; the gradient is that of a hinge loss a class: data (n, …, k), label (n, …), out as data.

    With y = 1 at the label and -1 elsewhere the gradient is -2 · c · y · max(0, margin - y · data), or with
    ``use_linear`` -c · y where margin > y · data, else 0; c is ``regularization_coefficient``. Labels are truncated;
    one that is no class is nowhere, so that every class is pushed down. A NaN has gradient NaN, with ``use_linear`` 0.
    """

    margin: float = 1.0
    regularization_coefficient: float = 1.0
    use_linear: bool = False
    no_gradient = ("label",)
    inplace = {"out": "data"}  # noqa: RUF012
    rows = "parallel"
    examples = (
        {"data": (4, 3), "label": Sample((4,), 0, 2, True)},
        {"data": (4, 3), "label": Sample((4,), -1, 3, True), "margin": 0.3, "use_linear": True},
        {"data": (2, 3, 4), "label": Sample((2, 3), 0, 3, True), "regularization_coefficient": 0.5},
    )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "label")

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_axis(s, "data", 1)
        s.label = s.data[:-1]
        s.data = s.label + (UNKNOWN,)  # noqa: RUF005 - the shape may be unknown as a whole

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        rows, kind = math.prod(s.label), s.dtype("data")
        return {**class_temps(rows, 1), "picked": ((rows, 1), kind), "pulled": ((rows, 1), kind)}

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        xp.copyto(out, data)

    def backward(
        self, xp: Any, label: Array, out: Array, ddata: Array, place: Temp, index: Temp, outside: Temp, picked: Temp,
        pulled: Temp,
    ) -> None:  # fmt: skip
        if not out.size:
            return
        class_places(xp, label, place, index, out.shape[-1], outside)
        gather(xp, out.reshape(-1), place, 0, pulled)
        xp.negative(pulled, out=pulled)
        self._push(xp, pulled, pulled, -1)
        self._push(xp, out, ddata, 1)
        flat = ddata.reshape(-1)
        gather(xp, flat, place, 0, picked)
        xp.copyto(pulled, picked, where=outside)
        flat[place] = pulled

    def _push(self, xp: Any, values: Array, out: Array, sign: int) -> None:
        """``out`` = sign · gradient of a class that ought to be below -margin; ``out`` may be ``values``."""
        scale = sign * self.regularization_coefficient
        if self.use_linear:
            xp.greater(values, -self.margin, out=out)
            xp.multiply(out, scale, out=out)
        else:
            xp.add(values, self.margin, out=out)
            at_least(xp, out, 0, out)
            xp.multiply(out, 2 * scale, out=out)


@register_op
class IdentityAttachKLSparseReg(Op):
    """``out`` = data; the gradient gains that of a penalty on channels whose mean m is far from ``sparseness_target``.

    It adds penalty · ((1 - target) / (1 - m) - target / m) to what arrives: data (n, c, …), values between 0 and 1, as
    from a sigmoid. m = moving_avg (c,), which a training forward moves first: momentum · moving_avg + (1 - momentum) ·
    mean of the batch. A mean of 0 or 1 has gradient ±inf; a batch without values moves nothing.
    """

    sparseness_target: float = 0.1
    penalty: float = 0.001
    momentum: float = 0.9
    hidden = ("average",)
    aux = ("moving_avg",)
    inplace = {"out": "data", "ddata": "dout"}  # noqa: RUF012
    examples = (
        {"data": Sample((4, 3), 0.2, 0.8), "moving_avg": Sample((3,), 0.2, 0.8), "penalty": 0.5},
        {"data": Sample((4, 3, 2), 0.2, 0.8), "moving_avg": Sample((3,), 0.2, 0.8), "penalty": 0.5,
         "sparseness_target": 0.4, "momentum": 0.2},
    )  # fmt: skip

    def variable_attributes(self, argument: str) -> Mapping[str, str]:
        return {"__init__": '["zero", {}]'} if argument == "moving_avg" else {}

    def total_outputs(self) -> int:
        return 1  # the files do not count average

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_axis(s, "data", 1)
        s.moving_avg = s.average = s.data[1:2]
        s.data = replace(s.data, 1, s.moving_avg[0])

    def types(self, t: Any) -> None:
        t.out = t.data
        t.data = t.out
        check_floating(t, "data")
        if t.data is not None:
            t.moving_avg = t.average = wide(t.data)

    def forward(self, xp: Any, is_train: bool, data: Array, moving_avg: Array, out: Array, average: Array) -> None:
        xp.copyto(average, moving_avg)
        if is_train and data.size:
            others = (0, *range(2, data.ndim))
            batch = xp.sum(data, axis=others, dtype=average.dtype) / (data.size // data.shape[1])
            average *= self.momentum
            average += batch * (1 - self.momentum)
        xp.copyto(out, data)

    def update(self, xp: Any, moving_avg: Array, average: Array) -> None:
        xp.copyto(moving_avg, average)

    def backward(self, xp: Any, dout: Array, average: Array, ddata: Array) -> None:
        pull = (1 - self.sparseness_target) / (1 - average) - self.sparseness_target / average
        pull = (pull * self.penalty).reshape(-1, *(1,) * (dout.ndim - 2))
        xp.add(dout, pull, out=ddata, casting="same_kind")
