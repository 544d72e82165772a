"""Shorter fits of the functions of :mod:`.special`, for results of 32 and 16 bits on the host.

They are right to 1e-11 of the value: one in some thousand is rounded to the float32 next to the nearest. All is in
float64 and in place, so that pieces can be long: a call of NumPy's costs as much as some thousand values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any
Polynomials = tuple[Sequence[float], Sequence[float]]  # numerator and denominator, in ascending powers

PIECE = 1 << 12  # values at a time: four arrays of float64 are half of what a body may make

# erfinv(y) / y of log(1 - y²) on [-5, 0]
_ERFINV: Polynomials = (
    (0.8862269254463416, -0.30462208004201113, 0.05980889583439647, -0.007932712066440228, 0.0006807514814894365,
     -3.0330751897696512e-05),
    (1.0, -0.08192982070865637, 0.03300590274629377, -0.0018773318084934325, 0.00020691916943219607,
     -1.7555936523378294e-06),
)  # fmt: skip
# log Γ(x) / ((x - 1)(x - 2)) on [0.5, 8]
_LOG_GAMMA: Polynomials = (
    (2.4326251816239033, 47.17851449967004, 179.26250118206133, 204.18939617074196, 76.73039408216762,
     9.073621917430154, 0.2584101709394306, 0.00038444322718282484),
    (1.0, 34.66912026624516, 209.28119318801444, 370.35069706930545, 229.1857384399096, 51.087592431835404,
     3.724837603554648, 0.06284322326147553),
)  # fmt: skip
# x ψ(x) / (x - root) on [0, 8]
_DIGAMMA: Polynomials = (
    (0.6841666717923665, 2.2038617534043308, 2.012229038897754, 0.7086776128072836, 0.09882829498998424,
     0.004701947421417768, 4.7628856147323824e-05),
    (1.0, 1.959852846270599, 1.2509531702639096, 0.32329921310001974, 0.03336261777064421, 0.0011455897685912935,
     7.558046831861805e-06),
)  # fmt: skip
_ROOT = 1.4616321449683622
# x² ψ'(x) on [0, 8]
_TRIGAMMA: Polynomials = (
    (1.000000000008648, 3.8125638228440697, 7.435871821842163, 8.288341965275183, 5.32845750092631, 1.8614302322131688,
     0.2796461677023477),
    (1.0, 3.8125638248123317, 5.790937684553201, 4.421040620407727, 1.7216075027939546, 0.2796461576998719),
)  # fmt: skip


class Fit(NamedTuple):
    """``kernel(x, out, scratch, scratch)``, which may overwrite ``x``, holds for ``low`` ≤ x ≤ ``high``."""

    kernel: Callable[[Array, Array, Array, Array], None]
    low: float
    high: float


def fill(fit: Fit, values: Array) -> Iterator[tuple[Array, Any]]:
    """Replace ``values`` (n,) by the function of them; what the fit does not hold for is left: (piece, places in it).

    Pieces of which most is left come last, when scratch is free, and are left whole: (piece, None).
    """
    room = np.empty((4, min(PIECE, len(values))))
    whole: list[Array] = []
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE]
        x = room[0, : len(piece)]
        np.copyto(x, piece)
        held = None
        if not (x.min() >= fit.low and x.max() <= fit.high):  # so it is with NaN
            held = (x >= fit.low) & (x <= fit.high)
            if np.count_nonzero(held) < len(x) // 2:
                whole.append(piece)
                continue
        fit.kernel(*room[:, : len(piece)])
        np.copyto(piece, room[1, : len(piece)], casting="unsafe", where=True if held is None else held)
        if held is not None:
            yield piece, np.flatnonzero(~held)
    del room
    yield from ((piece, None) for piece in whole)


def _ratio(x: Array, fit: Polynomials, a: Array, b: Array) -> None:
    """``a`` = the fit at ``x``."""
    for place, powers in zip((a, b), fit, strict=True):
        np.multiply(x, powers[-1], out=place)
        for power in powers[-2:0:-1]:
            place += power
            place *= x
        place += powers[0]
    a /= b


def _erfinv(x: Array, out: Array, level: Array, scratch: Array) -> None:
    np.multiply(x, x, out=level)
    np.subtract(1, level, out=level)
    np.log(level, out=level)
    _ratio(level, _ERFINV, out, scratch)
    out *= x


def _gammaln(x: Array, out: Array, scratch: Array, above: Array) -> None:
    small = x < 0.5  # there log Γ(x) = log Γ(x + 1) - log x
    any_small = small.any()
    near = np.add(x, small, out=above) if any_small else x
    _ratio(near, _LOG_GAMMA, out, scratch)
    out *= np.subtract(near, 1, out=scratch)
    out *= np.subtract(near, 2, out=scratch)
    if any_small:
        np.copyto(x, 1.0, where=~small)
        out -= np.log(x, out=x)


def _digamma(x: Array, out: Array, scratch: Array, _: Array) -> None:
    _ratio(x, _DIGAMMA, out, scratch)
    out *= np.subtract(x, _ROOT, out=scratch)
    out /= x


def _trigamma(x: Array, out: Array, scratch: Array, _: Array) -> None:
    _ratio(x, _TRIGAMMA, out, scratch)
    out /= np.multiply(x, x, out=scratch)


SINGLE = {
    "gammaln": Fit(_gammaln, 0, 8),
    "digamma": Fit(_digamma, 0, 8),
    "trigamma": Fit(_trigamma, 0, 8),
    "erfinv": Fit(_erfinv, -0.9966, 0.9966),
}
