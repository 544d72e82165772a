"""How random numbers of many distributions are drawn: the same ones, however the batch is cut.

What a row (an index of the first axis) holds depends on seed, node, step and the row's place in the global batch. The
step moves in training: in inference the numbers of a node are always the same. All is drawn in float64, so that the
numbers of every element type are the same.

A uniform number needs as many random bits as another, so that all rows are drawn together. How many a gamma, Poisson or
negative binomial number needs depends on chance: each row is drawn by a generator of its own, on the host. That costs
some µs a row beside its numbers: nothing to speak of for 64 rows of 4,096, but rows of one number take many times as
long as one call for all of them (``benchmarks/random_rows.py`` measures both). Normal and exponential numbers are drawn
the second way in rows of ``LONG`` numbers and more, and made of uniform ones in shorter rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..context import asnumpy, copyto
from ..errors import AttributeValueError
from ..registry import Op
from ..streams import width

Array = Any
Parameter = Any  # a number, or an array (rows, m, 1): each row has m sets of parameters
PIECE = 1 << 13  # numbers that a row's generator draws at a time
NOISE = 1 << 14  # uniform numbers at a time
LONG = 256  # numbers of a row from where on a generator of its own pays


class Law(NamedTuple):
    """One distribution: when its parameters are legal (in words, too), and one or both of two ways to draw it.

    ``put(xp, noise, out, …)`` makes ``out`` (rows, m, n) of uniform noise (rows, m · n, made even), which it may
    overwrite; ``draw(generator, out, …)`` fills an array of the host with the numbers that come next.
    """

    legal: Callable[..., Any]
    must: str
    put: Callable[..., None] | None = None
    draw: Callable[..., None] | None = None


def _values(noise: Array, out: Array) -> Array:
    """The noise in the shape of ``out``."""
    return noise[:, : math.prod(out.shape[1:])].reshape(out.shape)


def _uniform(xp: Any, noise: Array, out: Array, low: Parameter, high: Parameter) -> None:
    values = _values(noise, out)
    if not (isinstance(low, float) and (low, high) == (0.0, 1.0)):
        xp.multiply(values, high - low, out=values)
        xp.add(values, low, out=values)
    xp.copyto(out, values, casting="unsafe")  # cheaper than to cast on the way


def _exponential(xp: Any, noise: Array, out: Array, lam: Parameter) -> None:
    values = _values(noise, out)
    xp.multiply(values, -1, out=values)  # NumPy 2.4 has negatives of strided values in place wrong
    xp.log1p(values, out=values)
    xp.divide(values, -lam, out=values)
    xp.copyto(out, values, casting="unsafe")


def _normal(xp: Any, noise: Array, out: Array, loc: Parameter, scale: Parameter) -> None:
    """Box and Muller: pairs of numbers from a radius in one half of the row and an angle in the other."""
    half = noise.shape[1] // 2
    for start in range(0, half, PIECE):
        stop = min(start + PIECE, half)
        radius, angle = noise[:, start:stop], noise[:, half + start : half + stop]
        xp.multiply(radius, -1, out=radius)
        xp.log1p(radius, out=radius)
        xp.multiply(radius, -2, out=radius)
        xp.sqrt(radius, out=radius)
        xp.multiply(angle, 2 * math.pi, out=angle)
        cosine = xp.cos(angle)
        xp.sin(angle, out=angle)
        xp.multiply(angle, radius, out=angle)
        xp.multiply(radius, cosine, out=radius)
    values = _values(noise, out)
    xp.multiply(values, scale, out=values)
    xp.add(values, loc, out=values)
    xp.copyto(out, values, casting="unsafe")


def _long_normal(generator: Any, out: Array, loc: Parameter, scale: Parameter) -> None:
    values = generator.standard_normal(out=np.empty(out.shape))
    if not (isinstance(loc, float) and (loc, scale) == (0.0, 1.0)):
        np.multiply(values, scale, out=values)
        np.add(values, loc, out=values)
    out[...] = values


def _long_exponential(generator: Any, out: Array, lam: Parameter) -> None:
    values = generator.standard_exponential(out=np.empty(out.shape))
    if not (isinstance(lam, float) and lam == 1.0):
        np.multiply(values, 1 / lam, out=values)
    out[...] = values


def _gamma(generator: Any, out: Array, alpha: Parameter, beta: Parameter) -> None:
    values = generator.standard_gamma(alpha + 0.0, out.shape)  # NumPy refuses -0
    if not (isinstance(beta, float) and beta == 1.0):
        np.multiply(values, beta + 0.0, out=values)
    out[...] = values


def _poisson(generator: Any, out: Array, lam: Parameter) -> None:
    out[...] = generator.poisson(lam, out.shape)


def _negative_binomial(generator: Any, out: Array, k: Parameter, p: Parameter) -> None:
    out[...] = generator.negative_binomial(k, p, out.shape)


def _generalized(generator: Any, out: Array, mu: Parameter, alpha: Parameter) -> None:
    even = np.equal(alpha, 0)  # no dispersion: a Poisson number
    size = np.where(even, 1, alpha)
    rate = generator.gamma(1 / size, size * mu + 0.0, out.shape)
    out[...] = generator.poisson(np.where(even, mu, rate))


UNIFORM = Law(lambda low, high: low <= high, "low must not be above high", _uniform)
NORMAL = Law(lambda loc, scale: scale >= 0, "scale must be ≥ 0", _normal, _long_normal)
EXPONENTIAL = Law(lambda lam: lam > 0, "lam must be > 0", _exponential, _long_exponential)
GAMMA = Law(lambda alpha, beta: (alpha >= 0) & (beta >= 0), "alpha and beta must be ≥ 0", None, _gamma)
POISSON = Law(lambda lam: (lam >= 0) & (lam < 1e15), "lam must be from 0 to 1e15", None, _poisson)
NEGATIVE_BINOMIAL = Law(
    lambda k, p: (k > 0) & (p > 0) & (p <= 1) & (k < 1e12 * p),
    "k must be > 0 and below 1e12 · p, and p > 0 and ≤ 1", None, _negative_binomial,
)  # fmt: skip
GENERALIZED = Law(
    lambda mu, alpha: (mu >= 0) & (mu < 1e9) & (alpha >= 0) & (alpha < 1e3),
    "mu must be from 0 to 1e9 and alpha from 0 to 1e3", None, _generalized,
)  # fmt: skip


class Drawn(Op):
    """Base of the operators that fill ``out`` (n, …) with numbers of a law."""

    law: ClassVar[Law]

    def check(self, *names: str) -> None:
        """AttributeValueError where the numbers of these attributes are not legal."""
        values = [getattr(self, name) for name in names]
        if not self.law.legal(*values):
            shown = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            raise AttributeValueError(f"{self.form.name}: {self.law.must}, but it has {shown}")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        count = math.prod(s.out[1:])
        if self._alone(count):
            return {"noise": ((0, 0), "float64")}
        columns = width(count + 1)  # one more, as a normal number comes with another
        room = NOISE if self.law.draw is None else NOISE // 2  # what is made of them needs room, too
        return {"noise": ((min(s.out[0], max(1, room // columns)), columns), "float64")}

    def _alone(self, count: int) -> bool:
        """True if each row, of so many numbers, is drawn by a generator of its own."""
        return self.law.put is None or (self.law.draw is not None and count >= LONG)

    def fill(self, xp: Any, rng: Any, out: Array, noise: Array, *parameters: Parameter) -> None:
        """Draw ``out`` (rows, m, n); parameters that are not legal give NaN."""
        if not out.size:
            return
        count, put = math.prod(out.shape[1:]), self.law.put
        if put is None or self._alone(count):
            self._row_by_row(rng, out, parameters)
            return
        for start in range(0, len(out), len(noise)):
            piece, given = out[start : start + len(noise)], _part(parameters, slice(start, start + len(noise)))
            drawn = noise[: len(piece)]
            rng.uniform(drawn, False, start)
            put(xp, drawn[:, : count + count % 2], piece, *given)
            if not all(isinstance(value, float) for value in given):
                xp.copyto(piece, math.nan, where=xp.logical_not(self.law.legal(*given)))

    def _row_by_row(self, rng: Any, out: Array, parameters: tuple[Parameter, ...]) -> None:
        host = out if isinstance(out, np.ndarray) else np.empty(out.shape, out.dtype)
        given = [value if isinstance(value, float) else asnumpy(value) for value in parameters]
        draw = self.law.draw
        for number, row in enumerate(host):
            generator = rng.row(number)
            if row.size <= PIECE and all(isinstance(value, float) for value in given):
                draw(generator, row, *given)  # type: ignore[misc]
                continue
            for piece, values in _pieces(row, _part(given, number)):
                legal = np.asarray(self.law.legal(*values))
                if len(piece) == 1:  # one set of parameters: plain numbers are drawn faster
                    values = [value if isinstance(value, float) else value.item() for value in values]
                if len(piece) == 1 and legal.all():
                    draw(generator, piece, *values)  # type: ignore[misc]
                    continue
                legal = np.broadcast_to(legal, piece.shape)
                draw(generator, piece, *(np.where(legal[:, :1], value, 1) for value in values))  # type: ignore[misc]
                np.copyto(piece, math.nan, where=~legal)
        if host is not out:
            copyto(out, host)


def _part(parameters: Any, rows: Any) -> list[Parameter]:
    return [value if isinstance(value, float) else value[rows].astype("float64") for value in parameters]


def _pieces(row: Array, parameters: list[Parameter]) -> Iterator[tuple[Array, list[Parameter]]]:
    """A row (m, n) piece by piece, each with its parameters."""
    step = max(1, PIECE // row.shape[1])
    for first in range(0, len(row), step):
        lines = slice(first, first + step)
        values = _part(parameters, lines)
        for start in range(0, row.shape[1], PIECE):
            yield row[lines, start : start + PIECE], values
