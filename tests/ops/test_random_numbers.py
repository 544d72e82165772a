"""Random numbers: moments and distributions against closed forms, and the same numbers wherever a row is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import streams, sym
from arrayexec.errors import AttributeValueError
from arrayexec.ops import random_draw
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.registry import find_op
from arrayexec.train.io import DataBatch
from tests.ops.runs import run, shapes_of, types_of, uniform
from tests.parallel.networks import Described

# name, numbers, mean, variance, names of the inputs of _sample_…
LAWS: list[tuple[str, dict[str, Any], float, float, tuple[str, ...]]] = [
    ("uniform", {"low": -1.0, "high": 3.0}, 1.0, 16 / 12, ("low", "high")),
    ("normal", {"loc": -1.0, "scale": 2.0}, -1.0, 4.0, ("mu", "sigma")),
    ("gamma", {"alpha": 2.5, "beta": 0.5}, 1.25, 0.625, ("alpha", "beta")),
    ("gamma", {"alpha": 0.5, "beta": 2.0}, 1.0, 2.0, ("alpha", "beta")),
    ("exponential", {"lam": 4.0}, 0.25, 1 / 16, ("lam",)),
    ("poisson", {"lam": 3.0}, 3.0, 3.0, ("lam",)),
    ("poisson", {"lam": 50.0}, 50.0, 50.0, ("lam",)),
    ("negative_binomial", {"k": 3, "p": 0.4}, 4.5, 11.25, ("k", "p")),
    ("generalized_negative_binomial", {"mu": 2.0, "alpha": 0.3}, 2.0, 3.2, ("mu", "alpha")),
    ("generalized_negative_binomial", {"mu": 2.0, "alpha": 0.0}, 2.0, 2.0, ("mu", "alpha")),
]  # fmt: skip
IDS = [f"{name}-{i}" for i, (name, *_) in enumerate(LAWS)]


def sampled(name: str, numbers: dict[str, Any], inputs: tuple[str, ...], rows: int, **given: Any) -> np.ndarray:
    arrays = {key: np.full((rows, 2), float(value)) for key, value in zip(inputs, numbers.values(), strict=True)}
    return run(f"_sample_{name}", arrays, **given).out


@pytest.mark.parametrize(("name", "numbers", "mean", "variance", "inputs"), LAWS, ids=IDS)
def test_mean_and_variance(name: str, numbers: Any, mean: float, variance: float, inputs: tuple[str, ...]) -> None:
    data = np.zeros((100, 400))
    for out in (
        run(f"_random_{name}", {}, shape=(100, 400), dtype="float64", **numbers).out,
        run(f"_random_{name}_like", {"data": data}, **numbers).out,
        sampled(name, numbers, inputs, 100, shape=(200,)).reshape(100, 400),
    ):
        error = math.sqrt(variance / out.size)
        assert abs(out.mean() - mean) < 5 * error
        assert abs(out.mean(axis=0) - mean).max() < 6 * error * math.sqrt(400)
        kurtosis = ((out - mean) ** 4).mean() / variance**2
        assert abs(((out - mean) ** 2).mean() / variance - 1) < 6 * math.sqrt((kurtosis - 1) / out.size)
        centred = out - mean
        for pair in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):  # neighbours have nothing in common
            assert abs(np.mean(pair[0] * pair[1])) / variance < 5 / math.sqrt(pair[0].size)


def gamma_half(x: float) -> float:
    return math.erf(math.sqrt(x / 2.0))  # shape 0.5, scale 2: the square of a normal number


CONTINUOUS: list[tuple[str, dict[str, Any], Callable[[float], float]]] = [
    ("uniform", {"low": -1.0, "high": 3.0}, lambda x: (x + 1) / 4),
    ("normal", {"loc": -1.0, "scale": 2.0}, lambda x: 0.5 * (1 + math.erf((x + 1) / 2 / math.sqrt(2)))),
    ("exponential", {"lam": 4.0}, lambda x: 1 - math.exp(-4 * x)),
    ("gamma", {"alpha": 0.5, "beta": 2.0}, gamma_half),
    ("gamma", {"alpha": 2.0, "beta": 0.5}, lambda x: 1 - math.exp(-2 * x) * (1 + 2 * x)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "numbers", "share"), CONTINUOUS)
def test_distribution(name: str, numbers: Any, share: Callable[[float], float]) -> None:
    out = np.sort(run(f"_random_{name}", {}, shape=(40, 251), dtype="float64", **numbers).out, axis=None)
    want = np.array([share(float(x)) for x in out])
    gap = max(np.abs(np.arange(first, out.size + first) / out.size - want).max() for first in (0, 1))
    assert gap < 1.63 / math.sqrt(out.size)  # the test of Kolmogorov and Smirnov, one in a hundred


def mass(name: str, n: int) -> float:
    if name == "poisson":
        return math.exp(-3 + n * math.log(3) - math.lgamma(n + 1))
    if name == "negative_binomial":
        return math.comb(n + 2, n) * 0.4**3 * 0.6**n
    size, p = 1 / 0.3, 1 / (1 + 0.6)
    ways = math.lgamma(n + size) - math.lgamma(size) - math.lgamma(n + 1)
    return math.exp(ways + size * math.log(p) + n * math.log(1 - p))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("poisson", {"lam": 3.0}),
        ("negative_binomial", {"k": 3, "p": 0.4}),
        ("generalized_negative_binomial", {"mu": 2.0, "alpha": 0.3}),
    ],
)
def test_distribution_of_whole_numbers(name: str, numbers: Any) -> None:
    out = run(f"_random_{name}", {}, shape=(40, 500), **numbers).out
    np.testing.assert_array_equal(out, np.floor(out))
    square = 0.0
    for n in range(8):
        expected = out.size * mass(name, n)
        square += float(((out == n).sum() - expected) ** 2 / expected)
    assert square < 26  # chi-squared with 8 degrees of freedom: one in a thousand


@pytest.mark.parametrize(("name", "numbers", "mean", "variance", "inputs"), LAWS, ids=IDS)
def test_a_row_has_its_numbers_wherever_it_is_computed(
    name: str, numbers: Any, mean: float, variance: float, inputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.zeros((8, 13))
    whole = run(f"_random_{name}_like", {"data": data}, **numbers).out
    cuts = ((0, 1), (1, 5), (5, 8))
    parts = [run(f"_random_{name}_like", {"data": data[a:b]}, first_row=a, **numbers).out for a, b in cuts]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len({row.tobytes() for row in whole}) > 6
    np.testing.assert_array_equal(run(f"_random_{name}", {}, shape=(8, 13), dtype="float64", **numbers).out, whole)
    same = sampled(name, numbers, inputs, 8, shape=(3,))
    parts = [sampled(name, numbers, inputs, b - a, shape=(3,), first_row=a) for a, b in cuts]
    np.testing.assert_array_equal(np.concatenate(parts), same)
    for piece in (1, 40):
        monkeypatch.setattr(random_draw, "PIECE", piece)
        monkeypatch.setattr(random_draw, "NOISE", piece)
        if name != "generalized_negative_binomial":  # it draws the rates of a piece, then its numbers
            np.testing.assert_array_equal(run(f"_random_{name}_like", {"data": data}, **numbers).out, whole)


@pytest.mark.parametrize("name", ["uniform", "normal", "gamma", "poisson"])
@pytest.mark.parametrize("devices", [2, 3])
def test_devices_draw_what_one_device_draws(name: str, devices: int) -> None:
    data = sym.Variable("data")
    noise = getattr(sym, f"_random_{name}_like")(data, name="noise")
    net = sym.FullyConnected(data * noise, num_hidden=3, name="fc")
    net = sym.LinearRegressionOutput(net, name="softmax")
    results = []
    for count in (1, devices):
        ax.random.seed(3)
        described = Described({"data": (12, 5)}, {"softmax_label": (12, 3)}, dtype=np.float64)
        manager = DataParallelExecutorManager(net, [ax.cpu(i) for i in range(count)], described)
        weights = {"fc_weight": uniform((3, 5), 1), "fc_bias": uniform((3,), 2)}
        manager.set_params(weights, {})
        manager.load_data_batch(DataBatch([uniform((12, 5))], [uniform((12, 3), 3)]))
        manager.forward(is_train=True)
        manager.backward()
        results.append([sum(np.asarray(part) for part in parts) for parts in manager.grad_arrays])
    ax.random.seed(0)
    assert len(results[0]) == 2
    for one, many in zip(*results, strict=True):
        assert np.abs(one).max() > 0.01
        np.testing.assert_allclose(many, one, 1e-12, 1e-13)


def test_another_seed_or_name_is_other_numbers() -> None:
    before = run("_random_gamma", {}, shape=(4, 50)).out
    try:
        streams.seed(5)
        assert not (run("_random_gamma", {}, shape=(4, 50)).out == before).any()
    finally:
        streams.seed(0)
    np.testing.assert_array_equal(run("_random_gamma", {}, shape=(4, 50)).out, before)


def test_each_training_step_draws_anew() -> None:
    executor = sym._random_normal(shape=(2, 3), name="n").bind(ax.cpu(), {})
    first, second = (executor.forward(is_train=True)[0].copy() for _ in range(2))
    assert not (first == second).any()
    quiet = [executor.forward(is_train=False)[0].copy() for _ in range(2)]
    np.testing.assert_array_equal(*quiet)


def test_types_and_shapes() -> None:
    assert types_of("_random_poisson", {}, shape=(2,))["node_output"] == np.float32
    assert types_of("_random_normal", {}, shape=(2,), dtype="float16")["node_output"] == np.float16
    assert types_of("_sample_normal", {"mu": "int32"})["node_output"] == np.float32
    assert types_of("_sample_normal", {"mu": "float64"})["node_output"] == np.float64
    assert types_of("_random_randint", {}, low=0, high=3)["node_output"] == np.int32
    assert shapes_of("_sample_gamma", {"alpha": (2, 3)}, shape=(4, 5))["node_output"] == (2, 3, 4, 5)
    assert shapes_of("_sample_multinomial", {"data": (2, 3)})["node_output"] == (2,)
    assert shapes_of("_sample_multinomial", {"data": (3,)}, shape=4)["node_output"] == (4,)
    head = sym._random_normal(shape=(0, 4)) + sym.Variable("data")
    assert head.infer_shape(data=(3, 4))[1] == [(3, 4)]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5,), (1,)])
@pytest.mark.parametrize("name", ["normal", "gamma", "exponential"])
def test_small_shapes(name: str, shape: tuple[int, ...]) -> None:
    assert run(f"_random_{name}_like", {"data": np.zeros(shape)}).out.shape == shape
    parameters = {"normal": ("mu", "sigma"), "gamma": ("alpha", "beta"), "exponential": ("lam",)}[name]
    assert run(f"_sample_{name}", {key: np.ones(shape) for key in parameters}, shape=(2,)).out.shape == (*shape, 2)


def test_whole_numbers_in_a_range() -> None:
    out = run("_random_randint", {}, low=-3, high=4, shape=(70, 200)).out
    assert out.dtype == np.int32
    values, counts = np.unique(out, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(-3, 4))
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 22.5  # one in a thousand, six degrees of freedom
    wide = run("_random_randint", {}, low=-(2**53), high=2**53, shape=(50, 50), dtype="int64").out
    assert wide.min() < -(2**52)
    assert wide.max() > 2**52


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("normal", {"mu": [[1.0, 1, 1]], "sigma": [[1.0, -1, np.nan]]}),
        ("gamma", {"alpha": [[1.0, -1, np.nan]], "beta": [[1.0, 1, 1]]}),
        ("exponential", {"lam": [[1.0, 0, np.nan]]}),
        ("poisson", {"lam": [[1.0, -1, np.nan]]}),
        ("negative_binomial", {"k": [[2.0, 2, np.nan]], "p": [[0.5, 0, 0.5]]}),
        ("generalized_negative_binomial", {"mu": [[1.0, -1, 1]], "alpha": [[1.0, 1, np.nan]]}),
        ("uniform", {"low": [[0.0, np.nan, 0]], "high": [[1.0, 1, np.nan]]}),
    ],
)
def test_parameters_without_a_distribution_give_nan(name: str, arrays: dict[str, Any]) -> None:
    out = run(f"_sample_{name}", {key: np.array(value) for key, value in arrays.items()}, shape=(4,)).out
    assert np.isfinite(out[:, 0]).all()
    assert np.isnan(out[:, 1:]).all()


@pytest.mark.parametrize(("name", "numbers", "mean", "variance", "inputs"), LAWS, ids=IDS)
def test_parameters_each_have_their_numbers(
    name: str, numbers: Any, mean: float, variance: float, inputs: tuple[str, ...]
) -> None:
    arrays = {key: np.full((2, 3), float(value)) for key, value in zip(inputs, numbers.values(), strict=True)}
    other = {"uniform": 1.0, "normal": 3.0, "gamma": 4.0, "negative_binomial": 6, "exponential": 0.5}.get(name, 7.0)
    first = inputs[0]
    arrays[first][1, 2] = other
    out = run(f"_sample_{name}", arrays, shape=(4000,)).out
    means = out.mean(axis=-1)
    moved = means[1, 2]
    rest = np.delete(means.reshape(-1), 5)
    assert abs(rest - mean).max() < 5 * math.sqrt(variance / 4000)
    assert abs(moved - mean) > 10 * math.sqrt(variance / 4000)


def test_numbers_that_have_no_distribution_are_refused() -> None:
    for name, numbers in (
        ("normal", {"scale": -1}), ("gamma", {"alpha": -1}), ("exponential", {"lam": 0}), ("poisson", {"lam": "nan"}),
        ("negative_binomial", {"p": 0}), ("generalized_negative_binomial", {"mu": -1}),
    ):  # fmt: skip
        with pytest.raises(AttributeValueError, match=f"_random_{name}: .* must be"):
            run(f"_random_{name}", {}, shape=(2,), **numbers)


def test_classes_are_drawn_with_their_probabilities() -> None:
    chances = np.array([[[0.1, 0.2, 0.3, 0.4], [0.7, 0.0, 0.3, 0.0]]] * 50)
    out, logs = run("_sample_multinomial", {"data": chances}, shape=(400,), get_prob=True).outputs
    assert out.dtype == np.int32
    for place in range(2):
        counts = np.bincount(out[:, place].reshape(-1), minlength=4)
        wanted = chances[0, place] * out[:, place].size
        assert counts[wanted == 0].sum() == 0
        some = wanted > 0
        assert float(((counts - wanted)[some] ** 2 / wanted[some]).sum()) < 16.3  # one in a thousand
    np.testing.assert_allclose(logs, np.log(np.take_along_axis(chances, out, -1)), 1e-14)
    scaled = run("_sample_multinomial", {"data": chances * 3}, shape=(400,)).out
    np.testing.assert_array_equal(scaled, out)
    half = run("_sample_multinomial", {"data": chances[30:]}, shape=(400,), first_row=30).out
    np.testing.assert_array_equal(half, out[30:])


def test_the_gradient_goes_to_the_classes_that_were_drawn() -> None:
    chances, head = np.array([[0.25, 0.75], [0.5, 0.5]]), uniform((2, 6), 1)
    got = run("_sample_multinomial", {"data": chances}, [np.zeros((2, 6)), head], shape=6, get_prob=True)
    want = np.zeros((2, 2))
    for (row, place), value in np.ndenumerate(head):
        chosen = got.outputs[0][row, place]
        want[row, chosen] += value / chances[row, chosen]
    np.testing.assert_allclose(got.gradients["data"], want, 1e-13)


def test_rows_without_probabilities_draw_nothing() -> None:
    data = np.array([[0.0, 0.0], [np.nan, 1.0], [-1.0, 2.0], [0.0, 1.0]])
    out, logs = run("_sample_multinomial", {"data": data}, shape=3, get_prob=True).outputs
    np.testing.assert_array_equal(out, [[0, 0, 0]] * 3 + [[1, 1, 1]])
    np.testing.assert_array_equal(np.isnan(logs), [[True] * 3] * 3 + [[False] * 3])


def test_a_shuffle_keeps_rows_and_sends_gradients_back() -> None:
    data, head = uniform((50, 3)), uniform((50, 3), 1)
    got = run("_shuffle", {"data": data}, head)
    order = [int(np.flatnonzero((data == row).all(axis=1))[0]) for row in got.out]
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    np.testing.assert_array_equal(got.gradients["data"][order], head)
    firsts = []
    try:
        for seed in range(300):
            streams.seed(seed)
            firsts.append(run("_shuffle", {"data": np.arange(3.0)}).out)
    finally:
        streams.seed(0)
    _, counts = np.unique(np.array(firsts), axis=0, return_counts=True)
    assert len(counts) == 6
    assert float(((counts - 50) ** 2 / 50).sum()) < 20.6  # one in a thousand, five degrees of freedom


def test_old_names() -> None:
    for old, name in (("uniform", "_random_uniform"), ("normal", "_random_normal"), ("sample_gamma", "_sample_gamma")):
        assert find_op(old) is find_op(name)
