"""Random numbers of a shape that an attribute says, or that another value has. They have no gradient.

How they are drawn, and what they depend on: :mod:`.random_draw`. A dim of 0 in ``shape`` (or no shape at all) is
unknown: the users of the value say it, and its type, too, where none is given; float32 if they do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..dims import from_user
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from ..streams import width
from . import random_draw
from .checks import check_floating

Array = Any
Type = np.dtype[Any]
_SHAPE = {"shape": (3, 4), "dtype": "float64"}


class _Random(random_draw.Drawn):
    """Base of what has a shape of its own."""

    hints: ClassVar[tuple[str, ...]] = ("ctx",)

    def __post_init__(self: Any) -> None:
        self.check(*self._numbers())

    def _numbers(self) -> list[str]:
        return [name for name in self.form.attributes if name not in ("shape", "ctx", "dtype")]

    def infer(self: Any, s: Any) -> None:
        s.out = from_user(self.shape)

    def types(self: Any, t: Any) -> None:
        if self.dtype is not None:
            t.out = self.dtype
        check_floating(t, "out")

    def forward(self, xp: Any, rng: Any, out: Array, noise: Temp) -> None:
        rows = out.reshape(len(out), 1, math.prod(out.shape[1:]))
        self.fill(xp, rng, rows, noise, *(float(getattr(self, name)) for name in self._numbers()))


class _Like(_Random):
    """Base of what has the shape and type of ``data``, whose values do not count."""

    rows = "parallel"
    hints: ClassVar[tuple[str, ...]] = ()

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")


@register_op(aliases=("uniform", "random_uniform"))
class _random_uniform(_Random):
    """``out`` = numbers uniform in [low, high)."""

    low: float = 0.0
    high: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.UNIFORM
    examples = ({"low": -1.0, "high": 3.0, **_SHAPE},)


@register_op(aliases=("normal", "random_normal"))
class _random_normal(_Random):
    """``out`` = normal numbers of mean ``loc`` and standard deviation ``scale``."""

    loc: float = 0.0
    scale: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.NORMAL
    examples = ({"loc": -1.0, "scale": 3.0, **_SHAPE},)


@register_op(aliases=("random_gamma",))
class _random_gamma(_Random):
    """``out`` = numbers of the gamma distribution of shape ``alpha`` and scale ``beta``: the mean is alpha · beta."""

    alpha: float = 1.0
    beta: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.GAMMA
    examples = ({"alpha": 2.5, "beta": 3.0, **_SHAPE},)


@register_op(aliases=("random_exponential",))
class _random_exponential(_Random):
    """``out`` = exponential numbers of rate ``lam``: the mean is 1 / lam."""

    lam: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.EXPONENTIAL
    examples = ({"lam": 2.5, **_SHAPE},)


@register_op(aliases=("random_poisson",))
class _random_poisson(_Random):
    """``out`` = whole numbers of the Poisson distribution of mean ``lam``, as floats."""

    lam: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.POISSON
    examples = ({"lam": 12.5, **_SHAPE},)


@register_op(aliases=("random_negative_binomial",))
class _random_negative_binomial(_Random):
    """``out`` = failures (as floats) before ``k`` successes of probability ``p``: the mean is k · (1 - p) / p."""

    k: int = 1
    p: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.NEGATIVE_BINOMIAL
    examples = ({"k": 7, "p": 0.25, **_SHAPE},)


@register_op(aliases=("random_generalized_negative_binomial",))
class _random_generalized_negative_binomial(_Random):
    """``out`` = Poisson numbers whose rate is a gamma number: the mean is mu, the variance mu + alpha · mu²."""

    mu: float = 1.0
    alpha: float = 1.0
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type | None = None
    law = random_draw.GENERALIZED
    examples = ({"mu": 12.5, "alpha": 0.25, **_SHAPE},)


@register_op
class _random_uniform_like(_Like):
    """``out`` = numbers uniform in [low, high), in the shape and type of ``data``."""

    low: float = 0.0
    high: float = 1.0
    law = random_draw.UNIFORM
    examples = ({"data": (3, 4), "low": -1.0, "high": 3.0},)


@register_op
class _random_normal_like(_Like):
    """``out`` = normal numbers of mean ``loc`` and deviation ``scale``, in the shape and type of ``data``."""

    loc: float = 0.0
    scale: float = 1.0
    law = random_draw.NORMAL
    examples = ({"data": (3, 4), "loc": -1.0, "scale": 3.0},)


@register_op
class _random_gamma_like(_Like):
    """``out`` = gamma numbers of shape ``alpha`` and scale ``beta``, in the shape and type of ``data``."""

    alpha: float = 1.0
    beta: float = 1.0
    law = random_draw.GAMMA
    examples = ({"data": (3, 250), "alpha": 2.5, "beta": 3.0},)


@register_op
class _random_exponential_like(_Like):
    """``out`` = exponential numbers of rate ``lam``, in the shape and type of ``data``."""

    lam: float = 1.0
    law = random_draw.EXPONENTIAL
    examples = ({"data": (3, 4), "lam": 2.5},)


@register_op
class _random_poisson_like(_Like):
    """``out`` = Poisson numbers of mean ``lam``, in the shape and type of ``data``."""

    lam: float = 1.0
    law = random_draw.POISSON
    examples = ({"data": (3, 250), "lam": 12.5},)


@register_op
class _random_negative_binomial_like(_Like):
    """``out`` = failures before ``k`` successes of probability ``p``, in the shape and type of ``data``."""

    k: int = 1
    p: float = 1.0
    law = random_draw.NEGATIVE_BINOMIAL
    examples = ({"data": (3, 250), "k": 7, "p": 0.25},)


@register_op
class _random_generalized_negative_binomial_like(_Like):
    """``out`` = numbers of mean ``mu`` and variance mu + alpha · mu², in the shape and type of ``data``."""

    mu: float = 1.0
    alpha: float = 1.0
    law = random_draw.GENERALIZED
    examples = ({"data": (3, 250), "mu": 12.5, "alpha": 0.25},)


@register_op(aliases=("random_randint",))
class _random_randint(Op):
    """``out`` = whole numbers uniform in [low, high), of an integer type.

    Each is a fraction of 53 bits times high - low, cut: a number's chance is right to (high - low) / 2**53.
    """

    low: int
    high: int
    shape: tuple[int, ...] = ()
    ctx: str = ""
    dtype: Type = np.dtype("int32")
    hints = ("ctx",)
    examples = ({"low": -100, "high": 1000, "shape": (3, 4), "dtype": "int64"},)

    def __post_init__(self) -> None:
        kind = self.dtype.kind in "iu" and np.iinfo(self.dtype)
        limit = 1 << 53
        if not kind or not max(kind.min, -limit) <= self.low < self.high <= min(kind.max + 1, limit):
            raise AttributeValueError(
                f"_random_randint: 'low' must be below 'high', both within 2**53 and a whole type 'dtype', but "
                f"low={self.low}, high={self.high}, dtype={self.dtype.name}"
            )

    def infer(self, s: Any) -> None:
        s.out = from_user(self.shape)

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        columns = width(math.prod(s.out[1:]))
        return {"noise": ((min(s.out[0], max(1, random_draw.NOISE // max(columns, 1))), columns), "float64")}

    def forward(self, xp: Any, rng: Any, out: Array, noise: Temp) -> None:
        rows = out.reshape(len(out), math.prod(out.shape[1:]))
        for start in range(0, len(rows) if out.size else 0, max(len(noise), 1)):
            piece = rows[start : start + len(noise)]
            drawn = noise[: len(piece)]
            rng.uniform(drawn, False, start)
            values = drawn[:, : piece.shape[1]]
            xp.multiply(values, float(self.high - self.low), out=values)
            xp.floor(values, out=values)
            xp.add(values, float(self.low), out=piece, casting="unsafe")
