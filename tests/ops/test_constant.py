"""Constants: values, types, and shapes that other nodes complete."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import make_op
from arrayexec.symbol.graph import Graph, Node, variable
from arrayexec.testing import NaiveRun
from tests.ops.runs import graph_of, run, shapes_of, types_of, uniform


@pytest.mark.parametrize(
    ("operator", "more", "value"), [("_zeros", {}, 0), ("_ones", {}, 1), ("_full", {"value": 2.5}, 2.5)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_filled(operator: str, more: dict[str, Any], value: float, dtype: str) -> None:
    found = run(operator, {}, shape=(2, 3), dtype=dtype, ctx="cpu(0)", **more).out
    np.testing.assert_array_equal(found, np.full((2, 3), value).astype(dtype))
    assert found.dtype == dtype
    assert types_of(operator, {}, shape=(2,), **more)["node_output"] == np.float32


def added_to(operator: str, data: tuple[int, ...], **attributes: Any) -> Any:
    """The constant plus zeros of shape ``data``."""
    constant = Node(make_op(operator, attributes), "constant", {})
    total = Node(make_op("elemwise_add", {}), "total", {}, [(variable("data"), 0), (constant, 0)])
    return NaiveRun(Graph([(total, 0)]), {"data": np.zeros(data, np.float32)}).forward()[0]


def test_unknown_dims_follow_from_the_users() -> None:
    np.testing.assert_array_equal(added_to("_ones", (4, 3), shape=(0, 3)), np.ones((4, 3)))
    np.testing.assert_array_equal(added_to("_full", (4, 3), value=2), np.full((4, 3), 2))
    with pytest.raises(ShapeError):
        added_to("_zeros", (4, 3), shape=(0, 2))


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({"start": 1, "stop": 7, "step": 2}, [1, 3, 5]),
        ({"start": 2, "stop": 0, "step": -0.5}, [2, 1.5, 1, 0.5]),
        ({"start": 5}, [0, 1, 2, 3, 4]),
        ({"start": 0, "stop": 2.5}, [0, 1, 2]),
        ({"start": 0, "stop": 2, "repeat": 3}, [0, 0, 0, 1, 1, 1]),
        ({"start": 0, "stop": 3, "dtype": "int32"}, [0, 1, 2]),
    ],
)
def test_arange(attributes: dict[str, Any], wanted: list[float]) -> None:
    found = run("_arange", {}, **attributes).out
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == attributes.get("dtype", "float32")


def test_arange_takes_its_length_from_the_users() -> None:
    np.testing.assert_array_equal(
        added_to("_arange", (6,), start=3, step=2, repeat=2, infer_range=True), [3, 3, 5, 5, 7, 7]
    )
    with pytest.raises(ShapeError, match="a multiple of repeat=4"):
        added_to("_arange", (6,), start=3, repeat=4, infer_range=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 3, "stop": 3}, {"start": 0}, {"start": 0, "stop": 3, "step": -1}, {"start": 2, "repeat": 0},
        {"start": 0, "stop": math.inf}, {"start": 0, "stop": math.nan}, {"start": -math.inf, "stop": 0},
    ],
)  # fmt: skip
def test_arange_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AttributeValueError, match="_arange: there must be values"):
        graph_of("_arange", **wrong)


def test_likes_have_shape_and_type_of_data_and_no_gradient() -> None:
    for operator, value in (("zeros_like", 0), ("ones_like", 1)):
        for dtype in (np.float32, np.float64, np.int32):
            found = run(
                operator,
                {"data": np.full((2, 3), np.nan).astype(dtype) if dtype != np.int32 else np.ones((2, 3), dtype)},
            )
            np.testing.assert_array_equal(found.out, np.full((2, 3), value))
            assert found.out.dtype == dtype
        back = run(operator, {"data": uniform((2, 3))}, [np.ones((2, 3))])
        assert not back.gradients["data"].any()


@pytest.mark.parametrize(("start", "stop", "num"), [(1.0, 2.0, 5), (3.0, -1.0, 4), (2.0, 9.0, 1), (0.0, 0.0, 3)])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(start: float, stop: float, num: int, endpoint: bool) -> None:
    found = run("_linspace", {}, start=start, stop=stop, num=num, endpoint=endpoint, dtype="float64").out
    steps = num - 1 if endpoint else num
    wanted = [start + (stop - start) * i / max(steps, 1) for i in range(num)]
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=1e-15)
    assert not endpoint or num == 1 or found[-1] == stop
    with pytest.raises(AttributeValueError, match="'num' must be at least 1, but it is 0"):
        graph_of("_linspace", start=0, stop=1, num=0)


@pytest.mark.parametrize("shape", [(3, 0), (2, 4), (4, 2)])
@pytest.mark.parametrize("k", [-5, -1, 0, 1, 3, 6])
def test_eye(shape: tuple[int, int], k: int) -> None:
    found = run("_eye", {}, N=shape[0], M=shape[1], k=k, dtype="int32").out
    wanted = [[int(j - i == k) for j in range(shape[1] or shape[0])] for i in range(shape[0])]
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(AttributeValueError, match="'N' must be at least 1"):
        graph_of("_eye", N=0)


def test_zeros_of_an_open_type() -> None:
    assert types_of("_zeros_without_dtype", {}, shape=(2,), dtype=4)["node_output"] == np.int32
    assert types_of("_zeros_without_dtype", {}, shape=(2,))["node_output"] == np.float32
    with pytest.raises(AttributeValueError, match="'dtype' must be -1 or a type code below 8, but it is 9"):
        graph_of("_zeros_without_dtype", dtype=9)


def test_shapes_as_values() -> None:
    data = np.zeros((2, 0, 5), np.float32)
    shape, size = run("shape_array", {"data": data}).out, run("size_array", {"data": data[:, :0]}).out
    assert (shape.tolist(), size.tolist(), shape.dtype, size.dtype) == ([2, 0, 5], [0], np.int64, np.int64)
    assert shapes_of("shape_array", {"data": (2**33, 3)})["node_output"] == (2,)
    huge = np.broadcast_to(np.float32(0), (2**20, 2**13))
    assert run("size_array", {"data": huge}).out.tolist() == [2**33]


def test_identity_with_the_shape_of_another() -> None:
    lhs, head = uniform((2, 3)), uniform((2, 3), 1)
    found = run("_identity_with_attr_like_rhs", {"lhs": lhs, "rhs": lhs + 1}, [head])
    np.testing.assert_array_equal(found.out, lhs)
    np.testing.assert_array_equal(found.gradients["lhs"], head)
    assert not found.gradients["rhs"].any()
    assert shapes_of("_identity_with_attr_like_rhs", {"rhs": (2, 3)})["lhs"] == (2, 3)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int32])
def test_numbers_along_an_axis_or_through_all(kind: Any) -> None:
    data = np.zeros((3, 4, 5), kind)
    for axis, count in ((0, 3), (-2, 4), (2, 5)):
        found = run("_contrib_arange_like", {"data": data}, axis=axis, start=2.0, step=3.0).out
        np.testing.assert_array_equal(found, (2 + 3 * np.arange(count)).astype(kind), strict=True)
    found = run("_contrib_arange_like", {"data": data}, repeat=4, step=2.0).out
    np.testing.assert_array_equal(found, np.repeat(2 * np.arange(15), 4).reshape(3, 4, 5).astype(kind), strict=True)
    found = run("_contrib_arange_like", {"data": data.astype(np.float32)}, np.ones((3, 4, 5), np.float32))
    assert not found.gradients["data"].any()
