"""Special functions of one number, from the standard library and from series far out."""

from __future__ import annotations

import math
from statistics import NormalDist


def digamma(x: float) -> float:
    """ψ(x): down from x + 40, where three terms of the series are enough."""
    far = x + 40
    total = math.log(far) - 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4) - 1 / (252 * far**6)
    return math.fsum([total, *(-1 / (x + i) for i in range(40))])


def trigamma(x: float) -> float:
    """ψ'(x), the same way."""
    far = x + 40
    total = 1 / far + 1 / (2 * far**2) + 1 / (6 * far**3) - 1 / (30 * far**5) + 1 / (42 * far**7)
    return math.fsum([total, *(1 / (x + i) ** 2 for i in range(40))])


def tetragamma(x: float) -> float:
    """ψ''(x), the same way."""
    far = x + 40
    total = -1 / far**2 - 1 / far**3 - 1 / (2 * far**4) + 1 / (6 * far**6) - 1 / (6 * far**8)
    return math.fsum([total, *(-2 / (x + i) ** 3 for i in range(40))])


def erfinv(y: float) -> float:
    """The inverse of erf, a quantile of the normal distribution."""
    if abs(y) < 0.5:  # a quantile near one half loses the digits of what is near zero
        x = y * math.sqrt(math.pi) / 2
        for _ in range(60):
            x -= (math.erf(x) - y) * math.sqrt(math.pi) / 2 * math.exp(x * x)
        return x
    return math.copysign(-NormalDist().inv_cdf((1 - abs(y)) / 2) / math.sqrt(2), y)
