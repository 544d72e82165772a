"""Look-ups against loops over indices: every rule for indices that are fractions, negative or too large."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, IndexRangeError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, types_of, uniform


def legal(index: float, count: int, mode: str = "clip") -> int:
    """The row that an index means: truncated toward zero, then clipped or wrapped."""
    number = int(index)
    return number % count if mode == "wrap" else min(max(number, 0), count - 1)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_pick(mode: str, axis: int, keepdims: bool) -> None:
    data = uniform((3, 4, 2))
    index = np.random.default_rng(1).integers(-6, 9, np.delete(data.shape, axis)).astype(np.float64) + 0.7
    shown = np.expand_dims(index, axis) if keepdims else index
    wanted, back = np.empty_like(shown), np.zeros_like(data)
    head = uniform(shown.shape, 2)
    for place in itertools.product(*map(range, index.shape)):
        there = list(place)
        there.insert(axis % 3, legal(index[place], data.shape[axis], mode))
        at = list(place)
        if keepdims:
            at.insert(axis % 3, 0)
        wanted[tuple(at)] = data[tuple(there)]
        back[tuple(there)] = head[tuple(at)]
    found = run("pick", {"data": data, "index": shown}, [head], axis=axis, keepdims=keepdims, mode=mode)
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["data"], back)
    assert not found.gradients["index"].any()


def test_pick_takes_both_ranks_of_index_and_any_memory_order() -> None:
    data = np.asfortranarray(uniform((3, 4)))
    index = np.array([0, 3, 1], np.uint8)
    for shape in ((3,), (3, 1)):
        found = run("pick", {"data": data, "index": index.reshape(shape)}, [np.ones(3)])
        np.testing.assert_array_equal(found.out, data[range(3), index])


def test_pick_infers() -> None:
    for index in ((3,), (3, 1)):
        found = shapes_of("pick", {"data": (UNKNOWN, 4), "index": index})
        assert (found["data"], found["node_output"]) == ((3, 4), (3,))
    assert shapes_of("pick", {"data": (3, 4), "index": (UNKNOWN,)})["index"] == (3,)
    assert shapes_of("pick", {"data": (3, 2, 4)}, axis=1)["index"] == (3, 4)  # of labels that nobody gives a shape
    assert shapes_of("pick", {"data": (3, 2, 4), "index": (3, 1, UNKNOWN)}, axis=1)["index"] == (3, 1, 4)
    with pytest.raises(
        ShapeError, match=r"pick 'node': index 'index' must be \(3,\), but it is \(4,\) \(differs in dim 0\)"
    ):
        shapes_of("pick", {"data": (3, 4), "index": (4,)})
    with pytest.raises(ShapeError, match=r"must have an axis 2"):
        shapes_of("pick", {"data": (3, 4), "index": (3,)}, axis=2)
    with pytest.raises(ShapeError, match="at least 2 dims without keepdims=True"):
        shapes_of("pick", {"data": (3,), "index": (1,)})


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_take(mode: str, axis: int, dtype: Any) -> None:
    a = uniform((4, 3, 5), 0, dtype)
    indices = np.random.default_rng(3).integers(-7, 9, (2, 6)).astype(np.float32)
    rows = np.vectorize(lambda i: legal(i, a.shape[axis], mode))(indices)
    wanted = np.take(a, rows, axis)
    head = uniform(wanted.shape, 4, dtype)
    back = np.zeros(a.shape)
    for place in itertools.product(*map(range, wanted.shape)):
        before, inside, behind = place[: axis % 3], place[axis % 3 : axis % 3 + 2], place[axis % 3 + 2 :]
        back[(*before, rows[inside], *behind)] += head[place]
    found = run("take", {"a": a, "indices": indices}, [head], axis=axis, mode=mode)
    np.testing.assert_array_equal(found.out, wanted)
    close(found.gradients["a"], back, 12 if dtype == np.float64 else 2)
    assert found.out.dtype == dtype


def test_take_may_raise() -> None:
    a = uniform((4, 3))
    for index in (4, -1, np.nan):
        with pytest.raises(IndexRangeError, match=r"take: indices must be from 0 to 3, but there is -?\d+"):
            run("take", {"a": a, "indices": np.array([0, index])}, mode="raise")
    found = run("take", {"a": a, "indices": np.array([3, 0])}, [np.ones((2, 3))], mode="raise")
    np.testing.assert_array_equal(found.out, a[[3, 0]])
    np.testing.assert_array_equal(found.gradients["a"][:, 0], [1, 0, 0, 1])


def test_take_infers() -> None:
    assert shapes_of("take", {"a": (4, 3), "indices": (2, 5)}, axis=1)["node_output"] == (4, 2, 5)
    assert types_of("take", {"a": np.float64, "indices": np.int32})["node_output"] == np.float64
    with pytest.raises(ShapeError, match="must hold something along axis 0"):
        shapes_of("take", {"a": (0, 3), "indices": (2,)})
    with pytest.raises(AttributeValueError, match="'mode' must be one of clip, wrap, raise, but it is 'error'"):
        graph_of("take", mode="error")


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.float16, np.int8])
def test_one_hot(kind: Any) -> None:
    indices = np.array([[0, 2, -1], [3, 1, 2]], kind)
    wanted = np.full((2, 3, 3), -2.0)
    for place in itertools.product(range(2), range(3)):
        if 0 <= indices[place] < 3:
            wanted[(*place, int(indices[place]))] = 7
    found = run("one_hot", {"indices": indices}, [np.ones((2, 3, 3))], depth=3, on_value=7, off_value=-2, dtype="int32")
    np.testing.assert_array_equal(found.out, wanted)
    assert found.out.dtype == np.int32
    assert not found.gradients["indices"].any()


def test_one_hot_of_what_is_no_number_is_off() -> None:
    found = run("one_hot", {"indices": np.array([np.nan, np.inf, -np.inf, 1.9, -0.9])}, depth=2)
    np.testing.assert_array_equal(found.out, [[0, 0], [0, 0], [0, 0], [0, 1], [1, 0]])


def test_one_hot_infers() -> None:
    assert shapes_of("one_hot", {"indices": (4, 5)}, depth=3)["node_output"] == (4, 5, 3)
    assert types_of("one_hot", {"indices": np.int32}, depth=3)["node_output"] == np.float32
    with pytest.raises(AttributeValueError, match="'depth' must be at least 1, but it is 0"):
        graph_of("one_hot", depth=0)
