"""Random numbers whose parameters are arrays, draws of classes, and shuffled rows.

Shapes: parameters (n, …) and an attribute ``shape`` give out (n, …) + shape, so many numbers for each parameter. The
parameters have no gradient; where they are not legal, or NaN, the numbers are NaN. How they are drawn:
:mod:`.random_draw`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..context import copyto
from ..dims import ANY, UNKNOWN
from ..registry import Op, Sample, Temp, register_op
from ..streams import width
from . import random_draw
from .checks import check_floating
from .index import gather

LINES = 1 << 15  # probabilities that are summed at a time
Array = Any
Type = np.dtype[Any]


class _Sampled(random_draw.Drawn):
    """Base of what has a law for each value of its inputs."""

    rows = "parallel"

    def infer(self: Any, s: Any) -> None:
        names = [name for name in self.form.forward.parameters if name not in ("xp", "rng", "out", "noise")]
        for name in names:
            for other in names:
                setattr(s, other, getattr(s, name))
        s.out = getattr(s, names[0]) + self.shape
        if s.out is not ANY:
            if len(s.out) <= len(self.shape):
                s.fail("out", f"must have more dims than shape={self.shape}, but it has {len(s.out)}")
            lead = s.out[: len(s.out) - len(self.shape)]
            s.out = lead + self.shape
            for name in names:
                setattr(s, name, lead)

    def types(self: Any, t: Any) -> None:
        names = [name for name in self.form.forward.parameters if name not in ("xp", "rng", "out", "noise")]
        for name in names:
            for other in names:
                setattr(t, other, getattr(t, name))
        kind = getattr(t, names[0])
        if self.dtype is not None:
            t.out = self.dtype
        elif kind is not None:
            t.out = kind if kind.kind == "f" else np.float32
        check_floating(t, "out")

    def _sample(self: Any, xp: Any, rng: Any, out: Array, noise: Array, *parameters: Array) -> None:
        each = math.prod(self.shape)
        count = math.prod(parameters[0].shape[1:])
        given = (value.reshape(len(out), count, 1) for value in parameters)
        self.fill(xp, rng, out.reshape(len(out), count, each), noise, *given)


@register_op(aliases=("sample_uniform",))
class _sample_uniform(_Sampled):
    """``out`` = numbers uniform in [low, high): low and high (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.UNIFORM
    examples = ({"low": (3, 2), "high": Sample((3, 2), 1.0, 2.0), "shape": (4,), "dtype": "float32"},)

    def forward(self, xp: Any, rng: Any, low: Array, high: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, low, high)


@register_op(aliases=("sample_normal",))
class _sample_normal(_Sampled):
    """``out`` = normal numbers of means mu and deviations sigma: mu and sigma (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.NORMAL
    examples = ({"mu": (3, 2), "sigma": Sample((3, 2), 1.0, 2.0), "shape": (3,), "dtype": "float32"},)

    def forward(self, xp: Any, rng: Any, mu: Array, sigma: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, mu, sigma)


@register_op(aliases=("sample_gamma",))
class _sample_gamma(_Sampled):
    """``out`` = gamma numbers of shapes alpha and scales beta: alpha and beta (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.GAMMA
    examples = (
        {"alpha": Sample((3, 2), 1.0, 2.0), "beta": Sample((3, 2), 1.0, 2.0), "shape": (100,), "dtype": "float32"},
    )

    def forward(self, xp: Any, rng: Any, alpha: Array, beta: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, alpha, beta)


@register_op(aliases=("sample_exponential",))
class _sample_exponential(_Sampled):
    """``out`` = exponential numbers of rates lam: lam (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.EXPONENTIAL
    examples = ({"lam": Sample((3, 2), 1.0, 2.0), "shape": (4,), "dtype": "float32"},)

    def forward(self, xp: Any, rng: Any, lam: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, lam)


@register_op(aliases=("sample_poisson",))
class _sample_poisson(_Sampled):
    """``out`` = Poisson numbers of means lam, as floats: lam (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.POISSON
    examples = ({"lam": Sample((3, 2), 1.0, 20.0), "shape": (100,), "dtype": "float32"},)

    def forward(self, xp: Any, rng: Any, lam: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, lam)


@register_op(aliases=("sample_negative_binomial",))
class _sample_negative_binomial(_Sampled):
    """``out`` = failures before k successes of probability p, as floats: k and p (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.NEGATIVE_BINOMIAL
    examples = (
        {"k": Sample((3, 2), 1.0, 9.0), "p": Sample((3, 2), 0.25, 0.75), "shape": (100,), "dtype": "float32"},
    )

    def forward(self, xp: Any, rng: Any, k: Array, p: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, k, p)


@register_op(aliases=("sample_generalized_negative_binomial",))
class _sample_generalized_negative_binomial(_Sampled):
    """``out`` = numbers of mean mu and variance mu + alpha · mu²: mu and alpha (n, …), out (n, …) + shape."""

    shape: tuple[int, ...] = ()
    dtype: Type | None = None
    law = random_draw.GENERALIZED
    examples = (
        {"mu": Sample((3, 2), 1.0, 9.0), "alpha": Sample((3, 2), 0.25, 0.75), "shape": (100,), "dtype": "float32"},
    )

    def forward(self, xp: Any, rng: Any, mu: Array, alpha: Array, out: Array, noise: Temp) -> None:
        self._sample(xp, rng, out, noise, mu, alpha)


@register_op(aliases=("sample_multinomial",))
class _sample_multinomial(Op):
    """``out0`` = classes drawn with the probabilities in data's last axis; ``out1`` (with get_prob) their logarithms.

    data (n, …, k), out0 and out1 (n, …) + shape, (1,) + shape of a vector without one. Probabilities need not sum to 1:
    they count by their share; a row that is all zero, or holds NaN or a negative number, draws class 0 and NaN. The
    gradient of out1 goes to the probabilities of the classes that were drawn, as if they summed to 1.
    """

    shape: tuple[int, ...] = ()
    get_prob: bool = False
    dtype: Type = np.dtype("int32")
    rows = "parallel"
    examples = (
        {"data": Sample((3, 2, 4), 0.1, 1.0), "shape": (5,), "dtype": "int64"},
        {"data": Sample((3, 4), 0.1, 1.0), "get_prob": True, "shape": (2,)},
    )

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def outputs(self) -> tuple[str, ...]:
        return ("out0", "out1") if self.get_prob else ("out0",)

    def listed(self) -> tuple[str, ...]:
        return () if self.get_prob else ("output",)

    def infer(self, s: Any) -> None:
        if s.data is not ANY and len(s.data) < 2:
            s.out0 = s.out1 = self.shape or (1,)
            return
        s.out0 = s.data[:-1] + self.shape
        s.out1 = s.out0
        s.out0 = s.out1
        if s.data[-1] == 0:
            s.fail("data", "must hold a probability at least, but its last dim is 0")

    def types(self, t: Any) -> None:
        check_floating(t, "data")
        t.out0, t.out1 = self.dtype, t.data
        t.data = t.out1

    def _sizes(self, data: Any) -> tuple[int, int, int]:
        """Rows of the batch, draws of a row for each of its distributions, distributions of a row."""
        rows = data[0] if len(data) > 1 else 1
        return rows, math.prod(self.shape), math.prod(data[1:-1])

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        rows, each, inner = self._sizes(s.data)
        columns = width(each * inner)
        most = min(random_draw.PIECE // max(columns, inner, 1), LINES // max(inner * s.data[-1], 1))
        some = min(rows, max(1, most))
        return {"noise": ((some, columns), "float64"), "sums": ((some * inner, s.data[-1]), "float64")}

    def forward(
        self, xp: Any, rng: Any, data: Array, out0: Array, out1: Array, noise: Temp, sums: Temp
    ) -> None:
        rows, each, inner = self._sizes(data.shape)
        flat, classes = data.reshape(rows * inner, data.shape[-1]), data.shape[-1]
        drawn, logs = out0.reshape(rows * inner, each), None if out1 is None else out1.reshape(rows * inner, each)
        for start in range(0, rows if out0.size else 0, max(len(noise), 1)):
            part = slice(start * inner, (start + len(noise)) * inner)
            values, lines = flat[part], drawn[part]
            count = len(values)
            uniform, total = noise[: count // inner], sums[:count]
            rng.uniform(uniform, False, start)
            xp.copyto(total, values)  # a sum that converts on the way takes twice as long
            xp.cumsum(total, axis=1, out=total)
            legal = (xp.min(values, axis=1) >= 0) & (total[:, -1] > 0) & (total[:, -1] < math.inf)
            last = total[:, -1:].copy()
            xp.divide(total, xp.where(legal[:, None], last, 1), out=total)
            if xp is not np or not legal.all():
                xp.copyto(total, 1.0, where=~legal[:, None])
            offsets = xp.arange(count, dtype="float64")[:, None]
            xp.add(total, offsets, out=total)
            chance = uniform[:, : inner * each].reshape(count, each) + offsets
            place = xp.searchsorted(total.reshape(-1), chance.reshape(-1), side="right").reshape(count, each)
            place -= offsets.astype("int64") * classes
            xp.maximum(place, 0, out=place)
            xp.minimum(place, classes - 1, out=place)
            xp.copyto(lines, place, casting="unsafe")
            if logs is not None:
                chosen = xp.take_along_axis(values, place, axis=1) / xp.where(legal[:, None], last, math.nan)
                xp.copyto(logs[part], xp.log(chosen), casting="unsafe")

    def backward(self, xp: Any, dout1: Array, data: Array, out0: Array, ddata: Array) -> None:
        ddata.fill(0)
        if dout1 is None or not out0.size:
            return
        rows, each, inner = self._sizes(data.shape)
        classes = data.shape[-1]
        gradient, values = ddata.reshape(rows * inner * classes), data.reshape(rows * inner * classes)
        places, arriving = out0.reshape(rows * inner, each), dout1.reshape(rows * inner, each)
        step = max(1, random_draw.PIECE // max(each, 1))
        for start in range(0, rows * inner, step):
            place = places[start : start + step].astype("int64")
            place += (start + xp.arange(len(place), dtype="int64")[:, None]) * classes
            xp.add.at(gradient, place, arriving[start : start + step] / xp.take(values, place))


@register_op(aliases=("shuffle",))
class _shuffle(Op):
    """``out`` = the rows of data in random order: data and out (n, …). The order is drawn for these n rows together.

    The gradient goes back to where the rows were. On several devices each shuffles its own rows.
    """

    hidden = ("order",)
    examples = ({"data": (5, 3)}, {"data": (6,)})

    def total_outputs(self) -> int:
        return 1

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        if s.data is not ANY:
            s.order = (s.data[0],)
        else:
            s.order = (UNKNOWN,)

    def types(self, t: Any) -> None:
        t.same()
        t.order = "int64"

    def forward(self, xp: Any, rng: Any, data: Array, out: Array, order: Array) -> None:
        host = order if isinstance(order, np.ndarray) else np.empty(order.shape, order.dtype)
        host.fill(1)
        np.cumsum(host, out=host)
        np.subtract(host, 1, out=host)
        rng.row(0).shuffle(host)
        if host is not order:
            copyto(order, host)
        gather(xp, data, order, 0, out)

    def backward(self, xp: Any, dout: Array, order: Array, ddata: Array) -> None:
        ddata[order] = dout
