"""Functions that NumPy lacks: gamma, the logarithm and derivatives of it, the inverse of the error function.

All compute in float64, in pieces that stay in the cache, whatever the type of the data, and are right to 1e-13 of the
value (float32 and float16 to the last bit but one, on the host most of them by the fits of :mod:`.special_single`).
Where a function of a negative number passes through zero, the error is 1e-13 of 1. Rational fits were made for this
file, at Chebyshev nodes in 60 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .special_single import SINGLE, fill

Array = Any
Fit = tuple[Sequence[float], Sequence[float]]  # numerator and denominator, in ascending powers

PIECE = 3072  # values at a time on the host: some ten arrays of float64 in the cache, and below what a body may make
FEW = PIECE // 4  # the same, beside the scratch of :func:`fill`
DEVICE_PIECE = 1 << 20  # a launch must be worth its while

# log Γ(x) / ((x - 1)(x - 2)) on [0.5, 3]
_LOG_GAMMA: Fit = (
    (2.7378485256325416, 112.20858009842976, 1007.5897219752242, 3146.6891164622534, 4028.742858542809,
     2216.935419639038, 513.3066695943879, 44.81905696745734, 1.0879111621841842, 0.0015611724726936),
    (1.0, 66.96217303828358, 871.7926534226489, 3806.6885607891536, 6798.58018827442, 5392.927962897674,
     1931.4280761977159, 298.44409462711207, 17.32507329665437, 0.26044578873544405),
)  # fmt: skip
# ψ(x) / (x - root) on [1, 8], and the root in two parts
_DIGAMMA: Fit = (
    (198226339.1195059, 689725530.5065373, 748166581.7752111, 357045227.67004555, 83362952.32134281,
     9654492.98114063, 526339.0167480493, 11766.152040821238, 77.01550401413934, 0.024588327252417223),
    (1.0, 289733978.87883866, 642659724.2888399, 509458682.4234204, 188491142.70132133, 35098302.22103959,
     3279521.50090445, 144017.57420812992, 2542.9832341757715, 12.264852293013945),
)  # fmt: skip
_ROOT = (1.4616321449683622, 9.549995429965697e-17)
# erfinv(y) / y of y² on [0, 0.7225]; erfinv(y) of sqrt(-log(1 - y)) on [1.37, 6.07]
_MIDDLE: Fit = (
    (0.886226925452758, -3.3692846258489855, 5.119673264961815, -3.9461145108055145, 1.6105806000428313,
     -0.32740097309752864, 0.026818226752793068, -0.00042160613097039034),
    (1.0, -4.063629967622343, 6.696856761435325, -5.718724730020437, 2.674183775973539, -0.6609775997814089,
     0.07491085926896128, -0.00258469584582229),
)  # fmt: skip
_TAIL: Fit = (
    (-0.00034317753021556244, 0.0054902295781455385, 0.8501920002833733, 2.016130261552134, 2.7973652201171664,
     3.0876282489114386, 0.9886741985730231, 0.09061242038538235, 0.0019156180889894365),
    (1.0, 2.1224606781359396, 4.023033485604213, 3.9669803235695222, 3.2517710470692216, 0.9938471079298886,
     0.09062107552443012, 0.0019156005446309664, -1.9079521629709438e-10),
)  # fmt: skip
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B(2), B(4), …
_STIRLING = tuple(b / ((2 * k + 2) * (2 * k + 1)) for k, b in enumerate(_BERNOULLI))
_CURVE = tuple(b * (2 * k + 3) for k, b in enumerate(_BERNOULLI))
_SLOPE = tuple(b / (2 * k + 2) for k, b in enumerate(_BERNOULLI))
FAR = 8.0  # from here on the series in 1/x are exact


def _power_series(x: Array, powers: Sequence[float]) -> Array:
    total = x * powers[-1]
    for power in powers[-2:0:-1]:
        total += power
        total *= x
    total += powers[0]
    return total


def _ratio(x: Array, fit: Fit) -> Array:
    above = _power_series(x, fit[0])
    above /= _power_series(x, fit[1])
    return above


def _sine(xp: Any, size: Array) -> Array:
    """sin(π·size) for size ≥ 0, exactly 0 at whole numbers."""
    whole = xp.rint(size)
    sine = xp.sin(math.pi * (size - whole))
    sine *= 1 - 2 * (whole - 2 * xp.floor(whole / 2))
    return sine


def _branch(xp: Any, first: Array, x: Array, one: Callable[[Any], Any], other: Callable[[Any], Any]) -> Array:
    """``one(x)`` where ``first``, else ``other(x)``; on the host each is computed where it is asked for alone."""
    if xp is not np:
        return xp.where(first, one(x), other(x))
    if first.all():
        return one(x)
    if not first.any():
        return other(x)
    result, second = np.empty_like(x), ~first
    result[first] = one(x[first])
    result[second] = other(x[second])
    return result


def _gammaln(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    result = _branch(xp, size <= 3, size, lambda part: _log_near(xp, part), lambda part: _log_far(xp, part))
    if not negative:
        return result
    sine = _sine(xp, size)
    mirrored = xp.log(math.pi / (size * xp.abs(sine))) - result
    mirrored = xp.where((sine == 0) | (size == math.inf), math.inf, mirrored)
    return xp.where(x < 0, mirrored, result)


def _log_near(xp: Any, size: Array) -> Array:
    """log Γ for sizes up to 3."""
    small = size < 0.5
    near = xp.clip(size + small, 0.5, 3.0)
    result = _ratio(near, _LOG_GAMMA)
    result *= near - 1
    result *= near - 2
    result -= xp.log(xp.where(small, size, 1.0))
    return result


def _log_far(xp: Any, size: Array) -> Array:
    """log Γ for sizes from 3 on."""
    between = (size > 3) & (size < FAR)
    far = xp.maximum(size + 5 * between, FAR)
    inverse = 1 / far
    result = (far - 0.5) * (xp.log(far) - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    result += inverse * _power_series(inverse * inverse, _STIRLING)
    result -= xp.log(xp.where(between, size * (size + 1) * (size + 2) * (size + 3) * (size + 4), 1.0))
    return result


def _gamma(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    near = size < FAR
    product = xp.where(near, size, 1.0)
    for step in range(1, 8):
        product *= xp.where(near, size + step, 1.0)
    far = xp.minimum(size + 8 * near, 200.0)  # infinite from 171.7 on
    root = xp.power(far, 0.5 * far - 0.25)  # the whole power would overflow before the result does
    inverse = 1 / far
    result = xp.exp(inverse * _power_series(inverse * inverse, _STIRLING) - far)
    result *= root * math.sqrt(2 * math.pi)
    result *= root
    result /= product
    whole = (size <= 17) & (size == xp.floor(size))
    result = xp.where(whole, xp.rint(result), result)  # factorials are whole numbers
    if negative:
        sine = _sine(xp, size)
        mirrored = -math.pi / (sine * (result * size))
        mirrored = xp.where(sine == 0, math.nan, mirrored)
        result = xp.where(x < 0, mirrored, result)
    return xp.where(size == 0, 1 / x, result)


def _digamma(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    near = xp.clip(size + (size < 1), 1.0, FAR)
    result = _ratio(near, _DIGAMMA)
    result *= near - _ROOT[0] - _ROOT[1]
    far = xp.maximum(size, FAR)
    inverse = 1 / (far * far)
    far = xp.log(far) - 0.5 / far - inverse * _power_series(inverse, _SLOPE)
    result = xp.where(size < FAR, result, far)
    result -= xp.where(size < 1, 1 / size, 0.0)
    if negative:
        distance = size - xp.rint(size)
        mirrored = result + 1 / size + math.pi / xp.tan(math.pi * distance)
        mirrored = xp.where(distance == 0, math.nan, mirrored)
        result = xp.where(x < 0, mirrored, result)
    return xp.where(size == 0, -1 / x, result)


def _trigamma(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    near = size < FAR
    inverse = 1 / xp.where(near, size + 8, size)
    square = inverse * inverse
    result = inverse + 0.5 * square + square * inverse * _power_series(square, _BERNOULLI)
    for step in range(8):
        result += near / xp.square(size + step)
    if not negative:
        return result
    sine = _sine(xp, size)
    mirrored = xp.square(math.pi / sine) - (result - 1 / xp.square(size))
    mirrored = xp.where(sine == 0, math.inf, mirrored)
    return xp.where((x < 0) & (size > 0), mirrored, result)


def _tetragamma(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    near = size < FAR
    inverse = 1 / xp.where(near, size + 8, size)
    square = inverse * inverse
    result = -square - square * inverse - square * square * _power_series(square, _CURVE)
    for step in range(8):
        result -= 2 * near / (size + step) ** 3
    if not negative:
        return result
    angle = math.pi * (size - xp.rint(size))
    mirrored = result + 2 / size**3 + 2 * math.pi**3 / (xp.tan(angle) * xp.square(xp.sin(angle)))
    mirrored = xp.where(angle == 0, math.nan, mirrored)
    return xp.where(size == 0, -math.inf * xp.sign(1 / x), xp.where(x < 0, mirrored, result))


def _erfinv(xp: Any, x: Array, negative: bool) -> Array:
    size = xp.abs(x)
    result = _branch(xp, size <= 0.85, size, lambda part: _middle(xp, part), lambda part: _tail(xp, part))
    return xp.copysign(result, x)


def _middle(xp: Any, size: Array) -> Array:
    """The inverse of the error function up to 0.85."""
    return _ratio(xp.minimum(xp.square(size), 0.7225), _MIDDLE) * size


def _tail(xp: Any, size: Array) -> Array:
    """The inverse of the error function from 0.85 to 1."""
    result = _ratio(xp.clip(xp.sqrt(-xp.log(1 - size)), 1.37, 6.07), _TAIL)
    return xp.where(size == 1, math.inf, result)


def _in_pieces(name: str, kernel: Callable[[Any, Array, bool], Array]) -> Callable[[Any, Array, Array], None]:
    def replace(xp: Any, values: Array, length: int) -> None:
        for start in range(0, len(values), length):
            piece = values[start : start + length]
            negative = xp is not np or not piece.min() >= 0  # a device is not waited for
            xp.copyto(piece, kernel(xp, piece.astype("float64"), negative), casting="unsafe")

    def function(xp: Any, data: Array, out: Array) -> None:
        xp.copyto(out, data, casting="unsafe")
        values = out.reshape(-1)
        if xp is not np or out.dtype.itemsize > 4 or name not in SINGLE:
            replace(xp, values, PIECE if xp is np else DEVICE_PIECE)
            return
        for piece, places in fill(SINGLE[name], values):
            if places is None:
                replace(xp, piece, PIECE)
            else:
                few = piece[places]
                replace(xp, few, FEW)
                piece[places] = few

    return function


_KERNELS = {"gamma": _gamma, "gammaln": _gammaln, "digamma": _digamma, "trigamma": _trigamma,
            "tetragamma": _tetragamma, "erfinv": _erfinv}  # fmt: skip
SPECIAL: dict[str, Callable[[Any, Array, Array], None]] = {
    name: _in_pieces(name, kernel) for name, kernel in _KERNELS.items()
}
"""``function(xp, data, out)`` by name, element by element; ``out`` may be ``data``."""
