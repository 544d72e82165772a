"""Batch normalisation in parts, between which devices and ranks meet: moments of a device's rows, joined, applied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..context import asnumpy, copyto
from ..dims import ANY, replace
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating, check_rank
from .precision import wide

Array = Any


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """How the bodies look at data (n, c, …): rows, channels, places."""
    return shape[0], shape[1], math.prod(shape[2:])


def _channels(xp: Any, values: Array, data: Array) -> Array:
    """One value a channel beside data (n, c, places), in its type."""
    return values.astype(data.dtype, copy=False).reshape(-1, 1)


class _Moments(Op):
    """What the three operators say alike: data have channels on axis 1, moments are float32 or wider."""

    def _link(self, s: Any, rows: Mapping[str, int]) -> None:
        check_rank(s, "data", 2)
        if s.data is ANY:
            return
        for name, count in rows.items():
            setattr(s, name, (count, s.data[1]) if count else (s.data[1],))
            s.data = replace(s.data, 1, getattr(s, name)[-1])


@register_op(name="_batch_moments")
class BatchMoments(_Moments):
    """``out`` = mean, sum of squared differences from it, and count of values, for each channel.

    data (n, c, …), out (3, c).
    """

    examples = ({"data": (4, 3, 2)}, {"data": (4, 3)})

    def infer(self, s: Any) -> None:
        self._link(s, {"out": 3})

    def types(self, t: Any) -> None:
        check_floating(t, "data")
        if t.data is not None:
            t.out = wide(t.data)

    def temps(self, s: Any) -> Any:
        return {"apart": (s.data, s.dtype("out"))}

    def forward(self, xp: Any, data: Array, out: Array, apart: Temp) -> None:
        x, centred = data.reshape(_three(data.shape)), apart.reshape(_three(apart.shape))
        count = x.shape[0] * x.shape[2]
        xp.divide(xp.sum(x, axis=(0, 2), dtype=out.dtype), max(count, 1), out=out[0])
        xp.subtract(x, out[0].reshape(-1, 1), out=centred)
        out[1] = xp.einsum("ncl,ncl->c", centred, centred)
        out[2] = count

    def backward(self, xp: Any, dout: Array, data: Array, out: Array, ddata: Array) -> None:
        x, result = data.reshape(_three(data.shape)), ddata.reshape(_three(data.shape))
        count = max(x.shape[0] * x.shape[2], 1)
        xp.subtract(x, _channels(xp, out[0], x), out=result)
        xp.multiply(result, _channels(xp, 2 * dout[1], x), out=result)
        xp.add(result, _channels(xp, dout[0] / count, x), out=result)


@register_op(name="_joined_moments")
class JoinedMoments(Op):
    """``out`` = mean, biased variance and count of the values of all devices and ranks together, for each channel.

    data (3, c) as `_batch_moments` gives it, out (3, c). Alone it is that of its own rows. What arrives backward is
    summed over all that take part. Sums run in float64, devices in their order; rank sums are the same on every rank.
    """

    examples = ({"data": Sample((3, 4), 1.0, 2.0)},)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        if s.data is not ANY:
            s.data = replace(s.data, 0, 3)

    def forward(self, xp: Any, comm: Any, data: Array, out: Array) -> None:
        self.meet("forward", comm, [{"data": data, "out": out}])

    def backward(self, xp: Any, comm: Any, dout: Array, data: Array, out: Array, ddata: Array) -> None:
        self.meet("backward", comm, [{"dout": dout, "data": data, "out": out, "ddata": ddata}])

    def meet(self, kind: str, comm: Any, parts: Sequence[Mapping[str, Array]]) -> None:
        """Do the body of ``kind`` for the devices whose arrays are ``parts`` and for all ranks of ``comm``, if any."""

        def total(terms: list[Array]) -> Array:
            found = terms[0]
            for term in terms[1:]:
                found += term
            if comm is not None:
                comm.allreduce(found)
            return found

        held = [asnumpy(part["data"]).astype(np.float64) for part in parts]
        if kind == "forward":
            found = np.empty_like(held[0])
            found[::2] = total([_weighted(one) for one in held])
            count = np.maximum(found[2], 1)
            found[0] /= count
            found[1] = total([_squares(one, found[0]) for one in held]) / count
            for part in parts:
                copyto(part["out"], found)
            return
        arriving = total([asnumpy(part["dout"])[:2].astype(np.float64) for part in parts])
        for part, (own, _, n) in zip(parts, held, strict=True):
            mean, _, count = asnumpy(part["out"]).astype(np.float64)
            share = np.maximum(count, 1)
            from_mean = (arriving[0] + 2 * arriving[1] * (own - mean)) * n / share
            copyto(part["ddata"], np.stack([from_mean, arriving[1] / share, np.zeros_like(own)]))


def _weighted(moments: Array) -> Array:
    """Sum and number of the values of one device."""
    found = moments[::2].copy()
    found[0] *= found[1]
    return found


def _squares(moments: Array, middle: Array) -> Array:
    """Sum of the squared distances of one device's values from ``middle``."""
    found = moments[0] - middle
    found *= found
    found *= moments[2]
    found += moments[1]
    return found


@register_op(name="_normalized")
class Normalized(_Moments):
    """``out = (data - mean) / sqrt(var + eps) · gamma + beta`` with the ``moments`` mean, var, n of each channel.

    data (n, c, …), moments (3, c), gamma, beta, moving_mean, moving_var (c,). Training moves the states as
    ``moving = momentum · moving + (1 - momentum) · batch``, the variance times n / (n - 1); inference takes them.
    ``inverse`` = 1 / sqrt(var + eps).
    """

    eps: float = 1e-5
    momentum: float = 0.9
    hidden = ("inverse",)
    aux = ("moving_mean", "moving_var")
    examples = (
        {"data": (4, 3, 2), "moments": Sample((3, 3), 2.0, 3.0), "moving_var": Sample((3,), 0.5, 1.5)},
        {
            "data": (4, 3), "moments": Sample((3, 3), 2.0, 3.0), "moving_var": Sample((3,), 0.5, 1.5), "eps": 0.5,
            "momentum": 0.3,
        },
    )  # fmt: skip

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        self._link(s, {"moments": 3, **dict.fromkeys(("gamma", "beta", "moving_mean", "moving_var", "inverse"), 0)})

    def types(self, t: Any) -> None:
        t.out = t.data
        t.data = t.out
        check_floating(t, "data")
        if t.data is not None:
            for name in ("moments", "gamma", "beta", "moving_mean", "moving_var", "inverse"):
                setattr(t, name, wide(t.data))

    def temps(self, s: Any) -> Any:
        return {"apart": (s.data, s.dtype("inverse"))}

    def forward(
        self, xp: Any, is_train: bool, data: Array, moments: Array, gamma: Array, beta: Array, moving_mean: Array,
        moving_var: Array, out: Array, inverse: Array, apart: Temp,
    ) -> None:  # fmt: skip
        shape = _three(data.shape)
        x, centred = data.reshape(shape), apart.reshape(shape)
        mean, var = (moments[0], moments[1]) if is_train else (moving_mean, moving_var)
        xp.add(var, self.eps, out=inverse)
        xp.sqrt(inverse, out=inverse)
        xp.reciprocal(inverse, out=inverse)
        xp.subtract(x, mean.reshape(-1, 1), out=centred)
        xp.multiply(centred, (inverse * gamma).reshape(-1, 1), out=centred)
        xp.add(centred, beta.reshape(-1, 1), out=out.reshape(shape))

    def update(self, xp: Any, moments: Array, moving_mean: Array, moving_var: Array) -> None:
        count = moments[2]
        unbiased = moments[1] * (count / xp.maximum(count - 1, 1))
        for moving, batch in ((moving_mean, moments[0]), (moving_var, unbiased)):
            moving *= self.momentum
            moving += batch * (1 - self.momentum)

    def backward(
        self, xp: Any, is_train: bool, dout: Array, data: Array, moments: Array, gamma: Array, moving_mean: Array,
        inverse: Array, ddata: Array, dmoments: Array, dgamma: Array, dbeta: Array, apart: Temp,
    ) -> None:  # fmt: skip
        shape = _three(data.shape)
        x, arriving, centred = data.reshape(shape), dout.reshape(shape), apart.reshape(shape)
        total = xp.sum(arriving, axis=(0, 2), dtype=apart.dtype)
        xp.subtract(x, (moments[0] if is_train else moving_mean).reshape(-1, 1), out=centred)
        slope = xp.einsum("ncl,ncl->c", centred, arriving.astype(apart.dtype, copy=False)) * inverse
        if dbeta is not None:
            xp.copyto(dbeta, total)
        if dgamma is not None:
            xp.copyto(dgamma, slope)
        scale = inverse * gamma
        if dmoments is not None:
            dmoments.fill(0)
            if is_train:
                xp.multiply(total, -scale, out=dmoments[0])
                xp.multiply(slope * gamma, inverse * inverse * -0.5, out=dmoments[1])
        if ddata is not None:
            xp.multiply(arriving, _channels(xp, scale, arriving), out=ddata.reshape(shape))
