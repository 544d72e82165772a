"""Reductions against sums, products and searches written as loops over indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import ANY, UNKNOWN, from_user
from arrayexec.errors import AttributeValueError, ShapeError, TypeInferenceError
from arrayexec.registry import make_op
from arrayexec.symbol.graph import Graph, Node, variable
from arrayexec.symbol.infer import infer_shapes
from tests.ops.runs import close, run, shapes_of, types_of, uniform

AXES: list[dict[str, Any]] = [
    {},
    {"axis": ()},
    {"axis": 1},
    {"axis": (0, -1)},
    {"axis": (2, 0), "keepdims": True},
    {"keepdims": True},
    {"axis": 1, "exclude": True},
    {"axis": (0, 1, 2)},
]
VALUES: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "mean": lambda x: math.fsum(x) / len(x),
    "prod": math.prod,
    "max": max,
    "min": min,
    "nansum": lambda x: math.fsum(v for v in x if v == v),
    "nanprod": lambda x: math.prod(v for v in x if v == v),
}
GRADIENTS: dict[str, Callable[[list[float], int], float]] = {
    "sum": lambda x, i: 1.0,
    "mean": lambda x, i: 1.0 / len(x),
    "prod": lambda x, i: math.prod(x[:i] + x[i + 1 :]),
    "max": lambda x, i: float(x[i] == max(x)),
    "min": lambda x, i: float(x[i] == min(x)),
    "nansum": lambda x, i: float(x[i] == x[i]),
    "nanprod": lambda x, i: math.prod(v for v in x[:i] + x[i + 1 :] if v == v) if x[i] == x[i] else 0.0,
}


def groups(shape: tuple[int, ...], axes: set[int]) -> Iterator[list[tuple[int, ...]]]:
    """Indices that are reduced to one, group after group in the order of the result."""
    left = [range(n) for i, n in enumerate(shape) if i not in axes]
    for fixed in itertools.product(*left):
        place = iter(fixed)
        ranges = [range(n) if i in axes else (next(place),) for i, n in enumerate(shape)]
        yield list(itertools.product(*ranges))


def reduced_axes(rank: int, axis: Any = None, exclude: bool = False, **_: Any) -> set[int]:
    if axis in (None, ()):
        return set(range(rank))
    named = {a % rank for a in (axis if isinstance(axis, tuple) else (axis,))}
    return set(range(rank)) - named if exclude else named


def check(name: str, data: np.ndarray, options: dict[str, Any], value: Any, gradient: Any) -> None:
    axes = reduced_axes(data.ndim, **options)
    out = run(name, {"data": data}, **options).out
    kept = [1 if i in axes else n for i, n in enumerate(data.shape)]
    shape = kept if options.get("keepdims") else [n for i, n in enumerate(data.shape) if i not in axes] or [1]
    assert out.shape == tuple(shape)
    head = uniform(out.shape, 3)
    want, dwant = [], np.zeros(data.shape)
    for arriving, group in zip(head.reshape(-1), groups(data.shape, axes), strict=True):
        members = [float(data[index]) for index in group]
        want.append(value(members))
        for i, index in enumerate(group):
            dwant[index] = arriving * gradient(members, i)
    found = run(name, {"data": data}, [head], **options)
    close(found.out.reshape(-1), np.array(want))
    close(found.gradients["data"], dwant)


@pytest.mark.parametrize("options", AXES, ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_values_and_gradients(name: str, options: dict[str, Any]) -> None:
    data = uniform((2, 3, 4), 1)
    if name.startswith("nan"):
        data[0, 1, 2] = data[1, 2, 3] = np.nan
    check(name, data, options, VALUES[name], GRADIENTS[name])


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["prod", "nanprod"])
def test_product_with_zeros(name: str, zeros: int) -> None:
    data = uniform((2, 4), 2)
    data[0, :zeros] = 0
    if name == "nanprod":
        data[0, 3] = np.nan
    for options in ({}, {"axis": 1}, {"axis": 0}):
        check(name, data, options, VALUES[name], GRADIENTS[name])


def test_product_of_zeros_and_huge_numbers() -> None:
    data = np.array([0.0, 0.0, 1e200, 1e200])
    found = run("prod", {"data": data}, [np.ones(1)])
    assert (found.out.tolist(), found.gradients["data"].tolist()) == ([0.0], [0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_give_everybody_the_whole_gradient(name: str) -> None:
    data = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * (1 if name == "max" else -1)
    found = run(name, {"data": data}, [np.array([2.0, 3.0])], axis=1)
    assert found.gradients["data"].tolist() == [[2, 2, 0], [0, 0, 3]]


def test_extremes_of_nan() -> None:
    data = np.array([[1.0, np.nan], [3.0, 2.0]])
    found = run("max", {"data": data}, [np.ones(2)], axis=1)
    np.testing.assert_array_equal(found.out, [np.nan, 3])
    assert found.gradients["data"].tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": (0, 2), "keepdims": True}, {"axis": -1}], ids=str)
def test_norm(options: dict[str, Any]) -> None:
    data = uniform((2, 3, 4), 4)

    def euclid(x: list[float]) -> float:
        return math.sqrt(math.fsum(v * v for v in x))

    check("norm", data, options, euclid, lambda x, i: x[i] / euclid(x))
    check("norm", data, {**options, "ord": 1}, lambda x: math.fsum(map(abs, x)), lambda x, i: math.copysign(1, x[i]))


def test_norm_corners() -> None:
    zero = run("norm", {"data": np.zeros(3)}, [np.ones(1)])
    assert (zero.out.tolist(), np.isnan(zero.gradients["data"]).all()) == ([0.0], True)
    assert run("norm", {"data": np.zeros(3)}, [np.ones(1)], ord=1).gradients["data"].tolist() == [0, 0, 0]
    assert run("norm", {"data": np.full(4, 300, np.float16)}).out.tolist() == [600.0]  # a square is past float16
    assert types_of("norm", {"data": np.float32}, out_dtype="float64")["node_output"] == np.float64
    data = np.array([1.0, 1.0], np.float32)
    assert run("norm", {"data": data}, out_dtype="float64").out[0] == math.sqrt(2)
    with pytest.raises(AttributeValueError, match="'ord' must be one of 2, 1, but it is 3"):
        run("norm", {"data": data}, ord=3)


def test_sums_of_half_precision_are_kept_in_single() -> None:
    ones = np.ones((5000, 2), np.float16)
    assert run("sum", {"data": ones}, axis=0).out.tolist() == [5000, 5000]
    assert run("mean", {"data": np.full((5000, 2), 60, np.float16)}, axis=0).out.tolist() == [60, 60]
    many = np.ones((2, 80_000), np.float16)  # a number that float16 does not have
    found = run("mean", {"data": many}, np.array([16384, -8192], np.float16), axis=1)
    assert found.out.tolist() == [1, 1]
    shares = np.array([[16384 / 80_000], [-8192 / 80_000]]).astype(np.float16)
    np.testing.assert_array_equal(found.gradients["data"], np.broadcast_to(shares, many.shape))


def test_means_of_whole_numbers_are_cut() -> None:
    data = np.array([[1, 2], [-1, -2], [100, 100]], np.int8)
    assert run("mean", {"data": data}, axis=1).out.tolist() == [1, -1, 100]
    assert run("sum", {"data": np.array([[1, 2]], np.int32)}, axis=1).out.dtype == np.int32


def test_nothing_to_reduce() -> None:
    nothing = np.zeros((0, 3))
    assert run("sum", {"data": nothing}, axis=0).out.tolist() == [0, 0, 0]
    assert run("prod", {"data": nothing}, axis=0).out.tolist() == [1, 1, 1]
    assert np.isnan(run("mean", {"data": nothing}, axis=0).out).all()
    assert run("max", {"data": nothing}, axis=1).out.shape == (0,)
    with pytest.raises(ShapeError) as caught:
        shapes_of("max", {"data": (2, 0)}, axis=1)
    assert str(caught.value).startswith("max 'node': data 'data' must have numbers to take the largest of, but it is")


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": -1}, {"axis": 0, "keepdims": True}, {"keepdims": True}])
def test_positions(name: str, options: dict[str, Any]) -> None:
    data = np.random.default_rng(3).integers(0, 3, (3, 4, 2)).astype(np.float32)  # with ties
    best = max if name == "argmax" else min
    axes = reduced_axes(3, **options)
    want = []
    for group in groups(data.shape, axes):
        members = [data[index] for index in group]
        want.append(members.index(best(members)))
    found = run(name, {"data": data}, **options)
    assert (found.out.dtype, found.out.reshape(-1).tolist()) == (np.float32, want)
    ones = np.ones_like(found.out)
    assert not run(name, {"data": data}, [ones], **options).gradients["data"].any()


def test_position_in_channels_and_of_nan() -> None:
    data = np.array([[0.0, 2.0, 2.0], [1.0, np.nan, 5.0]])
    assert run("argmax_channel", {"data": data}).out.tolist() == [1, 1]
    assert run("argmax", {"data": data}).out.tolist() == [4]


@pytest.mark.parametrize(
    ("name", "given", "options", "want"),
    [
        ("sum", (0, 3, 4), {"axis": 1, "keepdims": True}, (UNKNOWN, 1, 4)),
        ("sum", (0, 3, 4), {"axis": 1}, (UNKNOWN, 4)),
        ("sum", (0, 3, 4), {"axis": 1, "exclude": True}, (3,)),
        ("mean", (0, 3), {}, (1,)),
        ("max", (0, 3), {"axis": (0, 1), "keepdims": True}, (1, 1)),
        ("argmax", (0, 3), {"axis": 1}, (UNKNOWN,)),
        ("sum", (), {}, (1,)),
    ],
)
def test_partial_shapes(name: str, given: Any, options: dict[str, Any], want: Any) -> None:
    found = shapes_of(name, {"data": from_user(given)} if given else {}, **options)["node_output"]
    assert repr(found) == repr(want)


@pytest.mark.parametrize(("kind", "most"), [("float16", 2049), ("uint8", 256), ("int8", 128)])
def test_a_position_that_the_type_cannot_hold_is_refused(kind: str, most: int) -> None:
    line = np.zeros((1, most), kind)
    line[0, -1] = 1
    assert run("argmax", {"data": line}, axis=1).out.tolist() == [most - 1]
    for name in ("argmax", "argmin", "argmax_channel"):
        with pytest.raises(TypeInferenceError, match=f"{name}: data must be of a type that holds the positions up to {most}"):
            run(name, {"data": np.zeros((1, most + 1), kind)}, **({} if name == "argmax_channel" else {"axis": 1}))


@pytest.mark.parametrize(
    ("axis", "out", "rank"),
    [((1,), (2, 3), 3), ((-1, -2), (2, 3), 4), (0, (5,), 2), ((1,), (1,), None), ((0, -1), (2, 3), None)],
)
def test_the_rank_of_data_follows_from_the_result(axis: Any, out: tuple[int, ...], rank: int | None) -> None:
    reduced = Node(make_op("sum", {"axis": axis}), "node", {}, [(variable("data"), 0)])
    total = Node(make_op("elemwise_add", {}), "total", {}, [(reduced, 0), (variable("other"), 0)])
    graph = Graph([(total, 0)])
    found = infer_shapes(graph, {"other": out})[graph.first[0]]
    left = iter(out)
    wanted: Any = ANY
    if rank is not None:
        axes = {i % rank for i in (axis if isinstance(axis, tuple) else (axis,))}
        wanted = tuple(UNKNOWN if i in axes else next(left) for i in range(rank))
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize("axes", [None, (1,), (0, -1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_moments(axes: Any, keepdims: bool) -> None:
    data = np.random.default_rng(2).uniform(-1, 1, (3, 4, 2)) + 100
    over = tuple(range(3)) if axes is None else axes
    wanted = [np.atleast_1d(rule(data, axis=over, keepdims=keepdims)) for rule in (np.mean, np.var)]
    heads = [np.random.default_rng(i).uniform(-1, 1, wanted[0].shape) for i in range(2)]
    found = run("moments", {"data": data}, heads, axes=axes, keepdims=keepdims)
    for got, want in zip(found.outputs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    mean = np.mean(data, axis=over, keepdims=True)
    count, (first, second) = data.size / mean.size, (head.reshape(mean.shape) for head in heads)
    back = (first + second * 2 * (data - mean)) / count
    np.testing.assert_allclose(found.gradients["data"], back, rtol=1e-9, atol=1e-12)
    half = run("moments", {"data": np.full((1, 4096), 0.5, np.float16)}, axes=1)
    assert [float(out[0]) for out in half.outputs] == [0.5, 0]


def test_axes_are_checked() -> None:
    with pytest.raises(ShapeError) as caught:
        shapes_of("sum", {"data": (2, 3)}, axis=2)
    assert str(caught.value).startswith("sum 'node': data 'data' must have an axis 2, but it is (")


def test_old_names() -> None:
    data = uniform((2, 3))
    for old, new in (("sum_axis", "sum"), ("max_axis", "max"), ("min_axis", "min")):
        np.testing.assert_array_equal(run(old, {"data": data}, axis=1).out, run(new, {"data": data}, axis=1).out)


def test_sums_of_bfloat16_are_kept_in_single() -> None:
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    ones = np.ones((1, 4096), kind)  # 8 bits alone stop at 256
    for name, options in (("sum", {"axis": 1}), ("nansum", {"axis": 1}), ("norm", {"axis": 1, "ord": 1})):
        assert float(run(name, {"data": ones}, **options).out[0]) == 4096, name
    assert float(run("mean", {"data": ones}, axis=1).out[0]) == float(run("moments", {"data": ones}, axes=1).out[0]) == 1
    assert float(run("cumsum", {"a": ones}, axis=1).out[0, -1]) == 4096
    copies = run("tile", {"data": ones[:, :1]}, [ones], reps=(1, 4096))
    assert float(copies.gradients["data"][0, 0]) == 4096
    with pytest.raises(TypeInferenceError, match="positions up to 299, but it is bfloat16"):
        run("argmax", {"data": ones[:, :300]}, axis=1)
