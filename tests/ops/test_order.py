"""topk, sort and argsort against Python's sorted: ties, NaN, every element type."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import graph_of, run, shapes_of, types_of, uniform

KINDS = ["float16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "bool"]


def in_order(line: Any, descending: bool) -> list[int]:
    """Positions of the values of a line in order: equal ones as they stand, NaN above infinity."""
    def key(i: int) -> Any:
        value = float(line[i]) if line.dtype.kind == "f" else int(line[i])
        rank = (1, 0) if value != value else (0, value)
        return (-rank[0], -rank[1]) if descending else rank

    return sorted(range(len(line)), key=key)


def orders(data: Any, axis: int | None, descending: bool) -> Any:
    """Positions along ``axis`` in order, as an array of data's shape (flat without an axis)."""
    if axis is None:
        return np.array(in_order(data.reshape(-1), descending))
    found = np.empty(data.shape, np.int64)
    lines, there = np.moveaxis(data, axis, -1), np.moveaxis(found, axis, -1)
    for place in itertools.product(*map(range, lines.shape[:-1])):
        there[place] = in_order(lines[place], descending)
    return found


def awkward(kind: str, shape: tuple[int, ...]) -> Any:
    """Many equal values, and what the type has of extremes."""
    data = np.random.default_rng(5).integers(-3 if np.dtype(kind).kind in "if" else 0, 4, shape).astype(kind)
    flat = data.reshape(-1)
    if data.dtype.kind == "f":
        flat[::7], flat[1::11], flat[2::13], flat[3::17], flat[4::19] = np.nan, -0.0, np.inf, -np.inf, -np.nan
    elif kind != "bool":
        flat[::7], flat[1::11] = np.iinfo(kind).max, np.iinfo(kind).min
    return data


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("kind", KINDS)
def test_order(kind: str, axis: int | None, descending: bool) -> None:
    data = awkward(kind, (5, 9, 4))
    wanted = orders(data, axis, descending)
    flat = data.reshape(-1) if axis is None else data
    values = np.take_along_axis(flat, wanted, -1 if axis is None else axis)
    attributes: dict[str, Any] = {"axis": axis, "is_ascend": not descending}
    np.testing.assert_array_equal(run("argsort", {"data": data}, dtype="int32", **attributes).out, wanted)
    np.testing.assert_array_equal(run("sort", {"data": data}, **attributes).out, values)
    k = 3
    first = (slice(None),) * (axis % 3 if axis is not None else 0) + (slice(0, k),)
    both = run("topk", {"data": data}, k=k, ret_typ="both", dtype="int64", **attributes)
    np.testing.assert_array_equal(both.outputs[0], values[first])
    np.testing.assert_array_equal(both.outputs[1], wanted[first])
    mask = run("topk", {"data": data}, k=k, ret_typ="mask", **attributes).out
    marked = np.zeros_like(flat)
    np.put_along_axis(marked, wanted[first], 1, -1 if axis is None else axis)
    np.testing.assert_array_equal(mask, marked.reshape(data.shape))
    assert mask.dtype == data.dtype


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("operator", ["sort", "topk"])
def test_gradient_goes_to_what_was_taken(operator: str, axis: int | None, kind: str) -> None:
    data = uniform((4, 6), 3, kind)
    attributes: dict[str, Any] = {"axis": axis, "is_ascend": False}
    if operator == "topk":
        attributes |= {"k": 2, "ret_typ": "value"}
    wanted = orders(data, axis, True)
    count = 2 if operator == "topk" else len(wanted) if axis is None else data.shape[axis]
    taken = wanted[:count] if axis is None else np.take(wanted, range(count), axis)
    head = uniform(taken.shape, 8, kind)
    back = np.zeros(data.size if axis is None else data.shape)
    np.put_along_axis(back, taken, head, -1 if axis is None else axis)
    found = run(operator, {"data": data}, [head], **attributes)
    np.testing.assert_array_equal(found.gradients["data"], back.reshape(data.shape))


def test_the_gradient_of_both_is_that_of_the_values() -> None:
    data = np.array([[3.0, 1.0, 2.0]])
    found = run("topk", {"data": data}, [np.array([[5.0, 7.0]]), np.array([[100.0, 100.0]])], k=2, ret_typ="both")
    np.testing.assert_array_equal(found.gradients["data"], [[5, 0, 7]])
    for kind in ("indices", "mask"):
        out = run("topk", {"data": data}, k=2, ret_typ=kind).out
        assert not run("topk", {"data": data}, [np.ones_like(out)], k=2, ret_typ=kind).gradients["data"].any()


@pytest.mark.parametrize("kind", ["float32", "float64", "uint32"])
def test_long_lines(kind: str) -> None:
    data = np.random.default_rng(2).integers(0, 1000, (3, 20_000)).astype(kind)
    wanted = np.stack([np.lexsort((np.arange(20_000), -line.astype(np.int64))) for line in data])
    found = run("topk", {"data": data}, k=300, dtype="int32").out  # far fewer than there are
    np.testing.assert_array_equal(found, wanted[:, :300])
    np.testing.assert_array_equal(run("argsort", {"data": data}, is_ascend=False, dtype="int32").out, wanted)


def test_strided_inputs() -> None:
    data = uniform((6, 8), 1, np.float32).T[::2]
    np.testing.assert_array_equal(run("sort", {"data": data}, axis=0).out, np.sort(data, 0))
    found = run("topk", {"data": data}, k=2, ret_typ="value").out
    np.testing.assert_array_equal(found, -np.sort(-data, -1)[:, :2])


@pytest.mark.parametrize(("operator", "shape"), [("topk", (0, 2)), ("sort", (0, 5)), ("argsort", (0, 5))])
def test_an_empty_batch(operator: str, shape: tuple[int, ...]) -> None:
    attributes: dict[str, Any] = {"k": 2} if operator == "topk" else {}
    assert run(operator, {"data": np.zeros((0, 5))}, **attributes).out.shape == shape
    assert run("sort", {"data": np.zeros((3, 0))}).out.shape == (3, 0)  # nothing is in order


def test_shapes_and_types() -> None:
    assert shapes_of("topk", {"data": (UNKNOWN, 7)}, k=3)["node_output"][1] == 3
    assert shapes_of("topk", {"data": (4, UNKNOWN, 2)}, k=3, axis=1, ret_typ="both")["node_output1"] == (4, 3, 2)
    assert shapes_of("topk", {"data": (4, 7)}, k=0)["node_output"] == (4, 7)
    assert shapes_of("topk", {"data": (4, 7)}, k=3, axis=None)["node_output"] == (3,)
    assert shapes_of("sort", {"data": (4, 7)}, axis=None)["node_output0"] == (28,)
    found = types_of("topk", {"data": np.float64}, k=2, ret_typ="both", dtype="int32")
    assert (found["node_output0"], found["node_output1"]) == (np.float64, np.int32)
    assert types_of("argsort", {"data": np.float64})["node_output"] == np.float32
    with pytest.raises(ShapeError, match=r"must have at least k=8 values in a line, but it is \(4, 7\)"):
        shapes_of("topk", {"data": (4, 7)}, k=8)
    with pytest.raises(ShapeError, match=r"must have at least k=8 values"):
        shapes_of("topk", {"data": (4, 7)}, k=8, ret_typ="mask")
    with pytest.raises(ShapeError, match="must have an axis 2"):
        shapes_of("sort", {"data": (4, 7)}, axis=2)
    with pytest.raises(AttributeValueError, match="'ret_typ' must be one of indices, value, mask, both"):
        graph_of("topk", ret_typ="values")
    with pytest.raises(AttributeValueError, match="'dtype' must be a type of whole or floating numbers"):
        graph_of("argsort", dtype="bool")


@pytest.mark.parametrize(
    ("dtype", "most"), [("uint8", 256), ("float16", 2049), ("float32", 2**24 + 1), ("int32", 2**31), ("float64", 2**53 + 1)]
)
def test_an_index_type_that_is_too_narrow_is_refused(dtype: str, most: int) -> None:
    assert shapes_of("argsort", {"data": (1, most)}, dtype=dtype)["node_output"] == (1, most)
    for operator in ("argsort", "topk"):
        with pytest.raises(ShapeError, match=f"must have at most {most} values in a line for an index of dtype={dtype}"):
            shapes_of(operator, {"data": (1, most + 1)}, dtype=dtype)
    assert shapes_of("sort", {"data": (1, 2**33)})["node_output0"] == (1, 2**33)
    assert math.prod(shapes_of("argsort", {"data": (2**20, 2**20)}, dtype="int64", axis=None)["node_output"]) == 2**40


@pytest.mark.parametrize("descending", [False, True])
def test_order_of_bfloat16(descending: bool) -> None:
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    data = awkward("float32", (3, 40)).astype(kind)
    wanted = orders(data.astype(np.float32), 1, descending)
    values = np.take_along_axis(data, wanted, 1)
    found = run("sort", {"data": data}, [np.ones_like(data)], is_ascend=not descending)
    np.testing.assert_array_equal(found.out.astype(np.float32), values.astype(np.float32))
    assert found.out.dtype == found.gradients["data"].dtype == kind
    both = run("topk", {"data": data}, k=9, ret_typ="both", is_ascend=not descending)
    np.testing.assert_array_equal(both.outputs[0].astype(np.float32), values[:, :9].astype(np.float32))
    np.testing.assert_array_equal(both.outputs[1], wanted[:, :9])
