"""where, diagonals, splits, slices like others and assignments to slices, value by value."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import graph_of, run, shapes_of, types_of, uniform


@pytest.mark.parametrize("rows", [False, True])
def test_where(rows: bool) -> None:
    x, y, head = uniform((3, 4)), uniform((3, 4), 1), uniform((3, 4), 2)
    condition = np.array([0.0, np.nan, -0.5]) if rows else np.arange(12).reshape(3, 4) % 3 - 1
    head[0, 0] = np.inf  # not multiplied by a mask
    found = run("where", {"condition": condition, "x": x, "y": y}, [head])
    for place in itertools.product(range(3), range(4)):
        chosen = bool(condition[place[:1] if rows else place])
        assert found.out[place] == (x if chosen else y)[place]
        assert found.gradients["x"][place] == (head[place] if chosen else 0)
        assert found.gradients["y"][place] == (0 if chosen else head[place])
    assert not found.gradients.get("condition", np.zeros(1)).any()


def test_where_infers() -> None:
    found = shapes_of("where", {"condition": (3, UNKNOWN), "x": (UNKNOWN, 4)})
    assert (found["y"], found["condition"]) == ((3, 4), (3, 4))
    found = shapes_of("where", {"condition": (3,), "x": (UNKNOWN, 4)})
    assert (found["x"], found["node_output"]) == ((3, 4), (3, 4))
    assert shapes_of("where", {"x": (3,)})["condition"] == (3,)
    assert repr(shapes_of("where", {"x": (3, 4)})["condition"]) == "?"  # one dim or two
    assert types_of("where", {"condition": np.int32, "x": np.float16})["y"] == np.float16
    with pytest.raises(ShapeError, match=r"condition 'condition' must be \(3,\), but it is \(4,\)"):
        shapes_of("where", {"condition": (4,), "x": (3, 4)})


@pytest.mark.parametrize(("axes", "like"), [((), (2, 3, 1)), ((1,), (9, 2)), ((-1, 0), (1, 9, 2))])
def test_slice_like(axes: tuple[int, ...], like: tuple[int, ...]) -> None:
    data = uniform((4, 5, 3))
    named = {a % 3 for a in axes} or {0, 1, 2}
    shape = tuple(like[i] if i in named else n for i, n in enumerate(data.shape))
    head = uniform(shape, 3)
    found = run("slice_like", {"data": data, "shape_like": uniform(like)}, [head], axes=axes)
    assert found.out.shape == shape
    for place in itertools.product(*map(range, data.shape)):
        inside = all(i < n for i, n in zip(place, shape, strict=True))
        assert found.gradients["data"][place] == (head[place] if inside else 0)
        assert not inside or found.out[place] == data[place]
    assert not found.gradients["shape_like"].any()


def test_slice_like_infers() -> None:
    assert shapes_of("slice_like", {"data": (UNKNOWN, 5), "shape_like": (2, 3)})["node_output"] == (2, 3)
    with pytest.raises(ShapeError, match=r"must be at least \(5, 3\) in every dim, but it is \(4, 5\)"):
        shapes_of("slice_like", {"data": (4, 5), "shape_like": (5, 3)})
    with pytest.raises(ShapeError, match="shape_like 'shape_like' must have an axis 1"):
        shapes_of("slice_like", {"data": (4, 5), "shape_like": (5,)}, axes=(1,))


def test_reshape_like() -> None:
    lhs, head = uniform((2, 12, 5)), uniform((2, 3, 4, 5), 1)
    bounds = {"lhs_begin": 1, "lhs_end": 2, "rhs_begin": 1, "rhs_end": -1}
    found = run("reshape_like", {"lhs": lhs, "rhs": uniform((7, 3, 4, 9))}, [head], **bounds)
    np.testing.assert_array_equal(found.out, lhs.reshape(2, 3, 4, 5))
    np.testing.assert_array_equal(found.gradients["lhs"], head.reshape(2, 12, 5))
    assert not found.gradients["rhs"].any()
    assert shapes_of("reshape_like", {"lhs": (UNKNOWN, 6), "rhs": (3, 4)})["lhs"] == (2, 6)
    assert shapes_of("reshape_like", {"rhs": (3, 4)})["node_output"] == (3, 4)
    found_shapes = shapes_of("reshape_like", {"lhs": (2, 12, 5), "rhs": (7, UNKNOWN, 4, 9)}, **bounds)
    assert (found_shapes["rhs"], found_shapes["node_output"]) == ((7, 3, 4, 9), (2, 3, 4, 5))
    with pytest.raises(ShapeError, match=r"lhs 'lhs' must have as many values as \(3, 4\), but it is \(5, 2\)"):
        shapes_of("reshape_like", {"lhs": (5, 2), "rhs": (3, 4)})


@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize(("shape", "axes"), [((3, 4), (0, 1)), ((4, 2, 5), (2, 0)), ((4, 5, 2), (-3, -2))])
def test_diag(shape: tuple[int, ...], axes: tuple[int, int], k: int) -> None:
    data = uniform(shape)
    wanted = np.diagonal(data, k, *axes)
    head, back = uniform(wanted.shape, 1), np.zeros(shape)
    lined = np.moveaxis(back, axes, (-2, -1))
    for i in range(wanted.shape[-1]):
        lined[..., i + max(-k, 0), i + max(k, 0)] = head[..., i]
    found = run("diag", {"data": data}, [head], k=k, axis1=axes[0], axis2=axes[1])
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["data"], back)


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diag_of_a_vector_is_a_matrix(k: int) -> None:
    data, head = uniform((3,)), uniform((3 + abs(k),) * 2, 1)
    found = run("diag", {"data": data}, [head], k=k)
    np.testing.assert_array_equal(found.out, np.diag(data, k))
    np.testing.assert_array_equal(found.gradients["data"], np.diagonal(head, k))
    assert shapes_of("diag", {"data": (3,)}, k=k)["node_output"] == (3 + abs(k),) * 2


def test_diag_infers() -> None:
    assert shapes_of("diag", {"data": (UNKNOWN, 3, 4)}, axis1=1, axis2=2)["node_output"][1] == 3
    assert shapes_of("diag", {"data": (2**33, 2**32)}, k=-5)["node_output"] == (2**32,)
    with pytest.raises(ShapeError, match="must have a diagonal 4"):
        shapes_of("diag", {"data": (3, 4)}, k=4)
    with pytest.raises(ShapeError, match="must have two different axes 1, -1"):
        shapes_of("diag", {"data": (3, 4)}, axis1=1, axis2=-1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("cut", [(0, 1, 4), (0,), (0, 2, 2), 3])
def test_split(axis: int, cut: Any) -> None:
    data = uniform((6, 6, 6))
    attributes: dict[str, Any] = {"sections": cut} if isinstance(cut, int) else {"indices": cut}
    edges = range(0, 6, 2) if isinstance(cut, int) else cut
    heads, back = [], np.zeros(data.shape)
    wanted = []
    for start, end in itertools.pairwise((*edges, 6)):
        part = [slice(None)] * 3
        part[axis] = slice(start, end)
        wanted.append(data[tuple(part)])
        heads.append(uniform(wanted[-1].shape, start))
        back[tuple(part)] = heads[-1]
    found = run("_split_v2", {"data": data}, heads, axis=axis, **attributes)
    for got, want in zip(found.outputs, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(found.gradients["data"], back)


def test_split_infers() -> None:
    squeezed = shapes_of("_split_v2", {"data": (2, 3, UNKNOWN)}, indices=(0, 1, 2), axis=1, squeeze_axis=True)
    assert squeezed["node_output2"][0] == 2
    with pytest.raises(ShapeError, match="must be a multiple of 4 in dim 1"):
        shapes_of("_split_v2", {"data": (2, 6)}, sections=4)
    with pytest.raises(ShapeError, match="must be at least 7 long in dim 1"):
        shapes_of("_split_v2", {"data": (2, 6)}, indices=(0, 7))
    with pytest.raises(ShapeError, match="must give pieces of 1 in dim 1 to squeeze them"):
        shapes_of("_split_v2", {"data": (2, 6)}, sections=3, squeeze_axis=True)
    for wrong in ((), (1, 2), (0, 3, 2)):
        with pytest.raises(AttributeValueError, match="'indices' must begin with 0 and not fall"):
            graph_of("_split_v2", indices=wrong)


@pytest.mark.parametrize(
    ("begin", "end", "step"), [((1, None), (3, 4), ()), ((None, 4), (None, 0), (2, -2)), ((-2,), (None,), ())]
)
def test_assignments(begin: Any, end: Any, step: Any) -> None:
    lhs, head = uniform((4, 5)), uniform((4, 5), 1)
    parts = tuple(slice(*bounds) for bounds in zip(begin, end, step or (None,) * len(begin), strict=True))
    rhs = uniform(lhs[parts].shape, 2)
    attributes = {"begin": begin, "end": end, "step": step}
    wanted, back = lhs.copy(), head.copy()
    wanted[parts], back[parts] = rhs, 0
    found = run("_slice_assign", {"lhs": lhs, "rhs": rhs}, [head], **attributes)
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["lhs"], back)
    np.testing.assert_array_equal(found.gradients["rhs"], head[parts])
    wanted[parts] = 7
    found = run("_crop_assign_scalar", {"data": lhs}, [head], scalar=7, **attributes)
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["data"], back)
    assert shapes_of("_crop_assign", {"lhs": (4, 5)}, **attributes)["rhs"] == rhs.shape
    with pytest.raises(ShapeError, match="must have at least"):
        shapes_of("_slice_assign_scalar", {"data": (4,)}, begin=(0, 0), end=(1, 1))
