"""gamma, gammaln, digamma, trigamma and erfinv: digits, corners and pieces."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayexec import cpu, sym
from arrayexec.errors import TypeInferenceError
from arrayexec.ops import special
from arrayexec.ops.special import SPECIAL
from tests.ops import special_reference
from tests.ops.runs import run

INF, NAN = math.inf, math.nan

def values(name: str, data: Any) -> np.ndarray:
    data = np.asarray(data)
    out = np.empty(data.shape, data.dtype)
    with np.errstate(all="ignore"):
        SPECIAL[name](np, data, out)
    return out


def positive() -> np.ndarray:
    """Around every seam of the fits, where functions are zero, far out and near zero."""
    random = np.random.default_rng(0)
    near = [at + random.normal(0, 1e-7, 20) for at in (0.5, 1.0, 1.4616321449683622, 2.0, 3.0, 8.0)]
    return np.concatenate([random.uniform(0.01, 10, 400), random.uniform(10, 170, 200), 10.0 ** -random.uniform(2, 300, 50), *near])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("gamma", math.gamma),
        ("gammaln", math.lgamma),
        ("digamma", special_reference.digamma),
        ("trigamma", special_reference.trigamma),
        ("tetragamma", special_reference.tetragamma),
    ],
)
def test_positive_numbers(name: str, reference: Callable[[float], float]) -> None:
    data = positive()
    data = data[data > 1e-100] if name in ("trigamma", "tetragamma") else data
    tolerance = 1e-14 if name in ("digamma", "gammaln") else 0.0  # the references lose digits near zeros
    np.testing.assert_allclose(values(name, data), [reference(float(x)) for x in data], 1e-13, tolerance)


def test_near_zeros_all_digits_are_right() -> None:
    step = np.random.default_rng(6).uniform(-1, 1, 50) * 2.0**-20
    for at, slope, curve, third in (
        (1.0, -0.5772156649015329, math.pi**2 / 12, -1.2020569031595942 / 3),
        (2.0, 0.42278433509846713, math.pi**2 / 12 - 0.5, (1 - 1.2020569031595942) / 3),
    ):
        x = at + step
        step_taken = x - at
        want = slope * step_taken + curve * step_taken**2 + third * step_taken**3
        np.testing.assert_allclose(values("gammaln", x), want, 1e-13)
    root, rest = 1.4616321449683622, 9.549995429965697e-17
    x = root + step
    away = (x - root) - rest
    slope = special_reference.trigamma(root)
    np.testing.assert_allclose(values("digamma", x), slope * away, 2e-6)
    assert abs(values("digamma", [root])[0] + slope * rest) < 1e-28


@pytest.mark.parametrize(("name", "reference"), [("gamma", math.gamma), ("gammaln", math.lgamma)])
def test_negative_numbers(name: str, reference: Callable[[float], float]) -> None:
    data = -np.random.default_rng(1).uniform(0, 60, 400)
    np.testing.assert_allclose(values(name, data), [reference(float(x)) for x in data], 1e-13, 1e-300)


def test_negative_numbers_by_recurrence() -> None:
    data = -np.random.default_rng(1).uniform(0.02, 5, 200)
    data = data[np.abs(data - np.rint(data)) > 0.02]
    up = [float(x) for x in data + 6]
    want = [special_reference.digamma(u) - math.fsum(1 / (u - i) for i in range(1, 7)) for u in up]
    np.testing.assert_allclose(values("digamma", data), want, 1e-12, 1e-12)
    want = [special_reference.trigamma(u) + math.fsum(1 / (u - i) ** 2 for i in range(1, 7)) for u in up]
    np.testing.assert_allclose(values("trigamma", data), want, 1e-11)
    want = [special_reference.tetragamma(u) - math.fsum(2 / (u - i) ** 3 for i in range(1, 7)) for u in up]
    np.testing.assert_allclose(values("tetragamma", data), want, 1e-10, 1e-10)


def test_erfinv_is_the_inverse_of_erf() -> None:
    random = np.random.default_rng(2)
    data = np.concatenate([random.uniform(-1, 1, 300), 10.0 ** -random.uniform(1, 300, 60), [0.85, -0.85]])
    np.testing.assert_allclose(values("erfinv", data), [special_reference.erfinv(float(y)) for y in data], 1e-13)
    beside = 1 - 10.0 ** -random.uniform(1, 15.9, 100)
    np.testing.assert_allclose([math.erfc(float(x)) for x in values("erfinv", beside)], 1 - beside, 2e-12)


@pytest.mark.parametrize("name", SPECIAL)
def test_against_scipy(name: str) -> None:
    scipy = pytest.importorskip("scipy.special", reason="an independent implementation")
    orders = {"digamma": 0, "trigamma": 1, "tetragamma": 2}
    other = functools.partial(scipy.polygamma, orders[name]) if name in orders else getattr(scipy, name)
    random = np.random.default_rng(3)
    data = random.uniform(-1, 1, 2000) if name == "erfinv" else random.uniform(0.001, 30, 2000)
    np.testing.assert_allclose(values(name, data), other(data), 1e-13, 1e-14)
    if name in ("gamma", "digamma"):
        np.testing.assert_allclose(values(name, -data), other(-data), 1e-11, 1e-11)


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_short_numbers_are_right_to_the_last_bit(name: str, kind: Any) -> None:
    data = (np.linspace(-0.99, 0.99, 501) if name == "erfinv" else np.linspace(0.3, 8, 501)).astype(kind)
    np.testing.assert_array_equal(values(name, data), values(name, data.astype(np.float64)).astype(kind))


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("share", [0.01, 0.9])
def test_short_numbers_where_the_shorter_fits_do_not_hold(name: str, share: float) -> None:
    """Among others, few of a piece or most of it: as in float64, to a rounding."""
    random = np.random.default_rng(7)
    data = random.uniform(-0.99, 0.99, 20000) if name == "erfinv" else random.uniform(0.3, 8, 20000)
    beyond = random.uniform(0.997, 1, 20000) if name == "erfinv" else random.uniform(-30, 30, 20000)
    data = np.where(random.random(20000) < share, beyond, data).astype(np.float32)
    data[[5, 6, 7, 8]] = [NAN, 1, -1, -INF]
    with np.errstate(all="ignore"):
        found, want = values(name, data), values(name, data.astype(np.float64)).astype(np.float32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want, 1.2e-7, 1e-30)


@pytest.mark.parametrize(
    ("name", "given", "want"),
    [
        ("gamma", [0.0, -0.0, -1, -2, -171, INF, -INF, NAN, 171.5, 172, -200.5], None),
        ("gammaln", [0.0, -0.0, -1, -2, -171, INF, -INF, NAN, 1, 2], [INF, INF, INF, INF, INF, INF, INF, NAN, 0, 0]),
        ("digamma", [0.0, -0.0, -1, -2, INF, -INF, NAN], [-INF, INF, NAN, NAN, INF, NAN, NAN]),
        ("trigamma", [0.0, -0.0, -1, -2, INF, -INF, NAN], [INF, INF, INF, INF, 0, NAN, NAN]),
        ("tetragamma", [0.0, -0.0, -1, -2, INF, -INF, NAN], [-INF, INF, NAN, NAN, 0, NAN, NAN]),
        ("erfinv", [0.0, 1, -1, 1.5, -2, INF, NAN], [0, INF, -INF, NAN, NAN, NAN, NAN]),
    ],
)
def test_corners(name: str, given: list[float], want: list[float] | None) -> None:
    if name == "gamma":
        want = [INF, -INF, NAN, NAN, NAN, INF, NAN, NAN, math.gamma(171.5), INF, 0]
    np.testing.assert_allclose(values(name, np.array(given)), want, 1e-13)
    assert math.copysign(1, values("erfinv", np.array([-0.0]))[0]) == -1


def test_factorials_are_whole() -> None:
    np.testing.assert_array_equal(values("gamma", np.arange(1.0, 18)), [math.factorial(n) for n in range(17)])


@pytest.mark.parametrize("name", SPECIAL)
def test_pieces_and_the_same_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(4).uniform(-0.9, 0.9, (3, 70))
    whole = values(name, data)
    monkeypatch.setattr(special, "PIECE", 32)
    np.testing.assert_array_equal(values(name, data), whole)
    np.testing.assert_array_equal(values(name, data.T), whole.T)
    with np.errstate(all="ignore"):
        SPECIAL[name](np, data, data)
    np.testing.assert_array_equal(data, whole)


@pytest.mark.parametrize("name", SPECIAL)
def test_nothing_at_all(name: str) -> None:
    assert values(name, np.zeros((0, 3))).shape == (0, 3)


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(TypeInferenceError, match="data 'a' must be of a floating type, but it is int32"):
        sym.gamma(sym.Variable("a")).infer_type(a="int32")


def test_where_there_is_no_number_the_gradient_is_none() -> None:
    data = np.array([-1.0, 0.0, 2.0])
    found = run("gammaln", {"data": data}, np.ones(3)).gradients["data"]
    np.testing.assert_allclose(found, [NAN, -INF, 1 - 0.5772156649015329], 1e-13)


def test_log_sigmoid_and_mish_far_out() -> None:
    data = np.array([-1e4, -40.0, 0.0, 40.0, 1e4])
    got = run("log_sigmoid", {"data": data}, np.ones(5))
    np.testing.assert_allclose(got.out, [-1e4, -40, -math.log(2), -math.exp(-40), 0], 1e-14)
    np.testing.assert_allclose(got.gradients["data"], [1, 1, 0.5, math.exp(-40), 0], 1e-14)
    got = run("mish", {"data": data}, np.ones(5))
    np.testing.assert_allclose(got.out, [0, -40 * math.exp(-40), 0, 40, 1e4], 1e-12)
    np.testing.assert_allclose(got.gradients["data"], [0, -39 * math.exp(-40), 0.6, 1, 1], 1e-12)


def test_second_derivatives_as_symbols() -> None:
    symbol = sym.gammaln(sym.Variable("a")).gradient("a").gradient("a")
    data = np.array([0.4, 1.5, 3.0])
    found = symbol.bind(cpu(), {"a": data}).forward()[0]
    np.testing.assert_allclose(found, [special_reference.trigamma(x) for x in data.tolist()], 1e-13)
