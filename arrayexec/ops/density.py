"""Densities of random numbers, and their logarithms: what the operators of :mod:`.random_sample` draw from.

The parameters (n, …) have the first dims of ``sample`` (n, …, m…): each set of them is that of all samples behind it.
Everything is computed in float64, from the formula, wherever the sample lies: outside of a distribution it is no
density. Of distributions over whole numbers the sample has gradient 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..dims import ANY, UNKNOWN
from ..registry import Op, Sample, register_op
from .checks import check_axis, check_floating
from .special import SPECIAL

Array = Any
DEVICE_PIECE = 1 << 20  # samples at a time: a launch must be worth its while
SETS = 1 << 11  # of parameters at a time on the host


def _special(xp: Any, name: str, data: Array) -> Array:
    found = xp.empty(data.shape, data.dtype)
    SPECIAL[name](xp, data, found)
    return found


def _log_gamma(xp: Any, data: Array) -> Array:
    return _special(xp, "gammaln", data)


def _psi(xp: Any, data: Array) -> Array:
    return _special(xp, "digamma", data)


class _Piece(NamedTuple):
    """Some of the samples: slices of (sets, samples of each, values of one), float64."""

    sets: slice
    samples: slice
    values: Array
    parameters: list[Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Density(Op):
    """Base: a law is its logarithm and the derivatives of that, by the sample (or None) and by each parameter."""

    is_log: bool = False
    rows: ClassVar[str | None] = "parallel"
    piece: ClassVar[int] = 1 << 10  # samples at a time on the host: what is made of them is small
    most: ClassVar[int] = 0  # the same forward, where it makes less: twice as many unless it is said
    length: ClassVar[int] = 0  # of the sample's last axes that are one value

    def log(self, xp: Any, x: Array, *parameters: Array) -> Array:
        """The logarithm of the density; ``x`` may be overwritten."""

    def density(self, xp: Any, x: Array, *parameters: Array) -> Array:
        """The density; ``x`` may be overwritten."""
        found = self.log(xp, x, *parameters)
        return xp.exp(found, out=found)

    def slopes(self, xp: Any, x: Array, *parameters: Array) -> Sequence[Any]:
        """Its derivatives."""
        return ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(name for name in self.form.forward.parameters if name not in ("xp", "sample", "out"))

    def infer(self, s: Any) -> None:
        first = self.parameters[0]
        for name in self.parameters:
            setattr(s, first, getattr(s, name))
            setattr(s, name, getattr(s, first))
        s.out = s.sample
        s.sample = s.out
        given = getattr(s, first)
        if given is not ANY and s.sample is not ANY:
            if len(given) > len(s.sample):
                s.fail(first, f"must have at most as many dims as sample, but it has {len(given)}")
            s.sample = s.out = (*given, *(UNKNOWN,) * (len(s.sample) - len(given)))
            for name in self.parameters:
                setattr(s, name, s.sample[: len(given)])

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, self.parameters[0])

    def _pieces(self, xp: Any, sample: Array, parameters: Sequence[Array], most: int) -> Iterator[_Piece]:
        """The samples, a few at a time: ``most`` on the host."""
        size = sample.shape[-1] if self.length else 1
        lead = parameters[0].shape[: parameters[0].ndim - self.length]
        sets = math.prod(lead)
        each = math.prod(sample.shape[len(lead) : sample.ndim - self.length])
        values, flat = sample.reshape(sets, each, size), [array.reshape(sets, 1, size) for array in parameters]
        room = max(1, (most if xp is np else DEVICE_PIECE) // max(size, 1))
        few, many = max(1, min(room // max(each, 1), SETS if xp is np else room)), min(max(each, 1), room)
        for i in range(0, sets, few):
            for j in range(0, each, many):
                some = slice(i, i + few), slice(j, j + many)
                given = [array[some[0]].astype("float64") for array in flat]
                yield _Piece(*some, values[some].astype("float64"), given)

    def fill(self, xp: Any, sample: Array, out: Array, *parameters: Array) -> None:
        """``out`` = the densities, or their logarithms."""
        if not out.size:
            return
        target = out.reshape(self._sets(parameters), -1)
        law = self.log if self.is_log else self.density
        for piece in self._pieces(xp, sample, parameters, self.most or 2 * self.piece):
            found = law(xp, piece.values, *piece.parameters)
            xp.copyto(target[piece.sets, piece.samples], found[..., 0], casting="unsafe")

    def _sets(self, parameters: Sequence[Array]) -> int:
        return math.prod(parameters[0].shape[: parameters[0].ndim - self.length])

    def pull(
        self, xp: Any, dout: Array, sample: Array, out: Array, dsample: Array, *pairs: tuple[Array, Array]
    ) -> None:
        """``dsample`` and the gradients of the parameters, from (parameter, gradient)."""
        parameters, gradients = [array for array, _ in pairs], [gradient for _, gradient in pairs]
        for target in (dsample, *gradients):
            if target is not None:
                target.fill(0)
        if not sample.size:
            return
        sets, size = self._sets(parameters), sample.shape[-1] if self.length else 1
        arriving, kept = dout.reshape(sets, -1, 1), None if self.is_log else out.reshape(sets, -1, 1)
        whole = None if dsample is None else dsample.reshape(sets, -1, size)
        ends = [None if gradient is None else gradient.reshape(sets, size) for gradient in gradients]
        sums: list[Array] = []
        for piece in self._pieces(xp, sample, parameters, self.piece):
            some = piece.sets, piece.samples
            share = arriving[some].astype("float64")
            if kept is not None:
                share *= kept[some]
            by_sample, *slopes = self.slopes(xp, piece.values, *piece.parameters)
            if whole is not None and by_sample is not None:
                xp.copyto(whole[some], share * by_sample, casting="unsafe")
            found = [xp.sum(share * slope, axis=1) for slope in slopes]
            sums = found if piece.samples.start == 0 else [a + b for a, b in zip(sums, found, strict=True)]
            for end, total in zip(ends, sums, strict=True):
                if end is not None:
                    xp.copyto(end[piece.sets], total, casting="unsafe")


class _One(_Density):
    """Base of laws with one parameter, ``lam``."""

    def forward(self, xp: Any, sample: Array, lam: Array, out: Array) -> None:
        self.fill(xp, sample, out, lam)

    def backward(
        self, xp: Any, dout: Array, sample: Array, lam: Array, out: Array, dsample: Array, dlam: Array
    ) -> None:
        self.pull(xp, dout, sample, out, dsample, (lam, dlam))


_POSITIVE = {"sample": Sample((2, 3), 0.3, 1.8)}


@register_op(aliases=("random_pdf_uniform",))
class _random_pdf_uniform(_Density):
    """``out`` = 1 / (high - low), or its logarithm with ``is_log``: sample and out (n, …, m…), low and high (n, …).

    NaN where high is not above low.
    """

    piece = 1 << 12
    most = 1 << 14
    examples = tuple(
        {"sample": (2, 3), "low": Sample((2,), -2, -1), "high": Sample((2,), 1, 2), "is_log": log}
        for log in (False, True)
    )

    def log(self, xp: Any, x: Array, low: Array, high: Array) -> Array:
        return -xp.log(self._width(xp, low, high))

    def density(self, xp: Any, x: Array, low: Array, high: Array) -> Array:
        return 1 / self._width(xp, low, high)

    def _width(self, xp: Any, low: Array, high: Array) -> Array:
        return xp.where(high > low, high - low, math.nan)

    def slopes(self, xp: Any, x: Array, low: Array, high: Array) -> Sequence[Any]:
        one = 1 / self._width(xp, low, high)
        return None, one, -one

    def forward(self, xp: Any, sample: Array, low: Array, high: Array, out: Array) -> None:
        self.fill(xp, sample, out, low, high)

    def backward(
        self, xp: Any, dout: Array, sample: Array, low: Array, high: Array, out: Array, dsample: Array, dlow: Array,
        dhigh: Array,
    ) -> None:  # fmt: skip
        self.pull(xp, dout, sample, out, dsample, (low, dlow), (high, dhigh))


@register_op(aliases=("random_pdf_normal",))
class _random_pdf_normal(_Density):
    """``out`` = the normal density of means mu and deviations sigma, or its logarithm: sample and out (n, …, m…)."""

    piece = 1 << 11
    most = 1 << 14
    examples = ({"sample": (2, 3), "mu": (2,), "sigma": Sample((2,), 0.5, 2)},
                {"sample": (2, 2, 3), "mu": (2, 2), "sigma": Sample((2, 2), 0.5, 2), "is_log": True})  # fmt: skip

    def log(self, xp: Any, x: Array, mu: Array, sigma: Array) -> Array:
        x -= mu
        x *= math.sqrt(0.5) / sigma
        x *= x
        return xp.subtract(-0.5 * math.log(2 * math.pi) - xp.log(sigma), x, out=x)

    def slopes(self, xp: Any, x: Array, mu: Array, sigma: Array) -> Sequence[Any]:
        apart = (x - mu) / xp.square(sigma)
        return -apart, apart, apart * (x - mu) / sigma - 1 / sigma

    def forward(self, xp: Any, sample: Array, mu: Array, sigma: Array, out: Array) -> None:
        self.fill(xp, sample, out, mu, sigma)

    def backward(
        self, xp: Any, dout: Array, sample: Array, mu: Array, sigma: Array, out: Array, dsample: Array, dmu: Array,
        dsigma: Array,
    ) -> None:  # fmt: skip
        self.pull(xp, dout, sample, out, dsample, (mu, dmu), (sigma, dsigma))


@register_op(aliases=("random_pdf_gamma",))
class _random_pdf_gamma(_Density):
    """``out`` = the gamma density of shapes alpha and rates beta, or its logarithm: sample and out (n, …, m…)."""

    examples = ({**_POSITIVE, "alpha": Sample((2,), 0.5, 3), "beta": Sample((2,), 0.5, 3)},
                {**_POSITIVE, "alpha": Sample((2,), 0.5, 3), "beta": Sample((2,), 0.5, 3), "is_log": True})  # fmt: skip

    def log(self, xp: Any, x: Array, alpha: Array, beta: Array) -> Array:
        return alpha * xp.log(beta) + (alpha - 1) * xp.log(x) - beta * x - _log_gamma(xp, alpha)

    def slopes(self, xp: Any, x: Array, alpha: Array, beta: Array) -> Sequence[Any]:
        return (alpha - 1) / x - beta, xp.log(beta) + xp.log(x) - _psi(xp, alpha), alpha / beta - x

    def forward(self, xp: Any, sample: Array, alpha: Array, beta: Array, out: Array) -> None:
        self.fill(xp, sample, out, alpha, beta)

    def backward(
        self, xp: Any, dout: Array, sample: Array, alpha: Array, beta: Array, out: Array, dsample: Array, dalpha: Array,
        dbeta: Array,
    ) -> None:  # fmt: skip
        self.pull(xp, dout, sample, out, dsample, (alpha, dalpha), (beta, dbeta))


@register_op(aliases=("random_pdf_exponential",))
class _random_pdf_exponential(_One):
    """``out`` = lam · exp(-lam · sample), or its logarithm with ``is_log``: sample and out (n, …, m…), lam (n, …)."""

    piece = 1 << 12
    most = 1 << 14
    examples = ({**_POSITIVE, "lam": Sample((2,), 0.5, 3)}, {**_POSITIVE, "lam": Sample((2,), 0.5, 3), "is_log": True})

    def log(self, xp: Any, x: Array, lam: Array) -> Array:
        x *= -lam
        x += xp.log(lam)
        return x

    def slopes(self, xp: Any, x: Array, lam: Array) -> Sequence[Any]:
        return -lam, 1 / lam - x


@register_op(aliases=("random_pdf_poisson",))
class _random_pdf_poisson(_One):
    """``out`` = lam^sample · exp(-lam) / sample!, or its logarithm: sample and out (n, …, m…), lam (n, …)."""

    no_gradient = ("sample",)
    examples = (
        {"sample": Sample((2, 3), 0, 5, True), "lam": Sample((2,), 0.5, 3)},
        {"sample": Sample((2, 3), 0, 5, True), "lam": Sample((2,), 0.5, 3), "is_log": True},
    )

    def log(self, xp: Any, x: Array, lam: Array) -> Array:
        return x * xp.log(lam) - _log_gamma(xp, x + 1) - lam

    def slopes(self, xp: Any, x: Array, lam: Array) -> Sequence[Any]:
        return None, x / lam - 1


@register_op(aliases=("random_pdf_negative_binomial",))
class _random_pdf_negative_binomial(_Density):
    """``out`` = the chance of so many failures before k > 0 successes of probability p, or its logarithm.

    sample and out (n, …, m…), k, which need not be whole, and p (n, …).
    """

    no_gradient = ("sample",)
    examples = (
        {"sample": Sample((2, 3), 0, 5, True), "k": Sample((2,), 1, 5), "p": Sample((2,), 0.2, 0.8)},
        {"sample": Sample((2, 3), 0, 5, True), "k": Sample((2,), 1, 5), "p": Sample((2,), 0.2, 0.8), "is_log": True},
    )

    def log(self, xp: Any, x: Array, k: Array, p: Array) -> Array:
        return _binomial(xp, x, k, xp.log(p), xp.log(1 - p))

    def slopes(self, xp: Any, x: Array, k: Array, p: Array) -> Sequence[Any]:
        return None, _psi(xp, x + k) - _psi(xp, k) + xp.log(p), k / p - x / (1 - p)

    def forward(self, xp: Any, sample: Array, k: Array, p: Array, out: Array) -> None:
        self.fill(xp, sample, out, k, p)

    def backward(
        self, xp: Any, dout: Array, sample: Array, k: Array, p: Array, out: Array, dsample: Array, dk: Array, dp: Array
    ) -> None:
        self.pull(xp, dout, sample, out, dsample, (k, dk), (p, dp))


def _binomial(xp: Any, x: Array, k: Array, success: Array, failure: Array) -> Array:
    ways = _log_gamma(xp, x + k) - _log_gamma(xp, x + 1) - _log_gamma(xp, k)
    return ways + k * success + x * failure


@register_op(aliases=("random_pdf_generalized_negative_binomial",))
class _random_pdf_generalized_negative_binomial(_Density):
    """``out`` = the chance of sample with mean mu and variance mu + alpha · mu², or its logarithm.

    That is a negative binomial with k = 1 / alpha and p = 1 / (1 + alpha · mu): sample and out (n, …, m…).
    """

    no_gradient = ("sample",)
    examples = (
        {"sample": Sample((2, 3), 0, 5, True), "mu": Sample((2,), 0.5, 3), "alpha": Sample((2,), 0.3, 2)},
        {"sample": Sample((2, 3), 0, 5, True), "mu": Sample((2,), 0.5, 3), "alpha": Sample((2,), 0.3, 2),
         "is_log": True},
    )  # fmt: skip

    def log(self, xp: Any, x: Array, mu: Array, alpha: Array) -> Array:
        spread = xp.log1p(mu * alpha)
        return _binomial(xp, x, 1 / alpha, -spread, xp.log(mu * alpha) - spread)

    def slopes(self, xp: Any, x: Array, mu: Array, alpha: Array) -> Sequence[Any]:
        k, whole = 1 / alpha, 1 + mu * alpha
        by_k = _psi(xp, x + k) - _psi(xp, k) - xp.log(whole)
        by_mu = (x - mu) / (mu * whole)
        return None, by_mu, by_mu * mu * k - by_k * k * k

    def forward(self, xp: Any, sample: Array, mu: Array, alpha: Array, out: Array) -> None:
        self.fill(xp, sample, out, mu, alpha)

    def backward(
        self, xp: Any, dout: Array, sample: Array, mu: Array, alpha: Array, out: Array, dsample: Array, dmu: Array,
        dalpha: Array,
    ) -> None:  # fmt: skip
        self.pull(xp, dout, sample, out, dsample, (mu, dmu), (alpha, dalpha))


@register_op(aliases=("random_pdf_dirichlet",))
class _random_pdf_dirichlet(_Density):
    """``out`` (n, …, m…) = the Dirichlet density of sample (n, …, m…, k) with alpha (n, …, k), or its logarithm."""

    rows = None
    piece = 1 << 11
    length = 1
    examples = (
        {"sample": Sample((2, 3, 2), 0.2, 0.8), "alpha": Sample((2, 2), 0.5, 3)},
        {"sample": Sample((3, 2), 0.2, 0.8), "alpha": Sample((2,), 0.5, 3), "is_log": True},
    )

    def infer(self, s: Any) -> None:
        if s.sample is ANY:
            return
        check_axis(s, "sample", 0)
        rest, size = s.sample[:-1], s.sample[-1]
        s.out = rest or (1,)
        if s.alpha is ANY:
            return
        if len(s.alpha) > len(s.sample):
            s.fail("alpha", f"must have at most as many dims as sample, but it has {len(s.alpha)}")
        s.alpha = (*rest[: len(s.alpha) - 1], size)
        s.sample = (*s.alpha[:-1], *(UNKNOWN,) * (len(s.sample) - len(s.alpha)), s.alpha[-1])
        if rest:
            s.sample = (*s.out, s.alpha[-1])

    def log(self, xp: Any, x: Array, alpha: Array) -> Array:
        level = _log_gamma(xp, xp.sum(alpha, axis=-1, keepdims=True))
        level = level - xp.sum(_log_gamma(xp, alpha), axis=-1, keepdims=True)
        return xp.sum((alpha - 1) * xp.log(x), axis=-1, keepdims=True) + level

    def slopes(self, xp: Any, x: Array, alpha: Array) -> Sequence[Any]:
        level = _psi(xp, xp.sum(alpha, axis=-1, keepdims=True)) - _psi(xp, alpha)
        return (alpha - 1) / x, xp.log(x) + level

    def forward(self, xp: Any, sample: Array, alpha: Array, out: Array) -> None:
        self.fill(xp, sample, out, alpha)

    def backward(
        self, xp: Any, dout: Array, sample: Array, alpha: Array, out: Array, dsample: Array, dalpha: Array
    ) -> None:
        self.pull(xp, dout, sample, out, dsample, (alpha, dalpha))
