"""Look-ups by several indices, assignments and indices as numbers, against loops over places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec import cpu, sym
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, IndexRangeError, ShapeError, TypeInferenceError
from tests.ops.runs import close, graph_of, run, shapes_of, types_of, uniform

RNG = np.random.default_rng(4)


def some_indices(shape: tuple[int, ...], dims: tuple[int, ...], kind: str = "float64") -> Any:
    """Rows of legal indices, negative ones too, and fractions where the type has them."""
    rows = [RNG.integers(-dim, dim, shape) for dim in dims]
    found = np.stack(rows).astype(kind)
    return np.where(found > 0, found + 0.9, found) if kind.startswith("float") else found


@pytest.mark.parametrize(
    ("shape", "depth", "places"), [((3, 4, 2), 2, (5,)), ((3, 4, 2), 3, (2, 3)), ((6, 2), 1, (40,)), ((3, 4, 2), 2, ())]
)
@pytest.mark.parametrize("kind", ["float64", "int8"])
def test_gather_and_scatter(shape: tuple[int, ...], depth: int, places: tuple[int, ...], kind: str) -> None:
    data, indices = uniform(shape), some_indices(places, shape[:depth], kind)
    whole = (*places, *shape[depth:])
    head, back, wanted = uniform(whole, 1), np.zeros(shape), np.empty(whole)
    source, scattered, taken = uniform(whole, 2), np.zeros(shape), np.empty(whole)
    whole_head = uniform(shape, 3)
    for place in itertools.product(*map(range, places)):
        there = tuple(int(indices[(j, *place)]) for j in range(depth))
        wanted[place] = data[there]
        back[there] += head[place]
        scattered[there] = source[place]  # the last one stays
        taken[place] = whole_head[there]
    found = run("gather_nd", {"data": data, "indices": indices}, [head])
    np.testing.assert_array_equal(found.out, wanted)
    close(found.gradients["data"], back)
    given = {"data": source, "indices": indices}
    found = run("scatter_nd", given, [whole_head], shape=shape)
    np.testing.assert_array_equal(found.out, scattered)
    np.testing.assert_array_equal(found.gradients["data"], taken)
    lhs = uniform(shape, 5)
    found = run("_scatter_set_nd", {"lhs": lhs, "rhs": source, "indices": indices}, [whole_head], shape=shape)
    touched = run("scatter_nd", {**given, "data": np.ones(whole)}, shape=shape).out > 0
    np.testing.assert_array_equal(found.out, np.where(touched, scattered, lhs))
    np.testing.assert_array_equal(found.gradients["lhs"], np.where(touched, 0, whole_head))
    np.testing.assert_array_equal(found.gradients["rhs"], taken)


@pytest.mark.parametrize("wrong", [3, -4, np.nan, np.inf, 1e30])
@pytest.mark.parametrize("operator", ["gather_nd", "scatter_nd", "_scatter_set_nd", "_contrib_index_copy"])
def test_an_index_that_is_no_place_is_refused(operator: str, wrong: float) -> None:
    indices = np.array([[1, wrong]])
    if operator == "_contrib_index_copy":
        arrays = {"old_tensor": np.ones((3, 2)), "index_vector": indices[0], "new_tensor": np.ones((2, 2))}
        attributes: dict[str, Any] = {}
    else:
        names = {"gather_nd": {"data": np.ones((3, 2))}, "scatter_nd": {"data": np.ones((2, 2))}}
        arrays = {**names.get(operator, {"lhs": np.ones((3, 2)), "rhs": np.ones((2, 2))}), "indices": indices}
        attributes = {} if operator == "gather_nd" else {"shape": (3, 2)}
    text = rf"{operator}: row 0 of indices must be from -3 to 2, but there is -?\d+"
    with pytest.raises(IndexRangeError, match=text), np.errstate(invalid="ignore"):
        run(operator, arrays, **attributes)


def test_the_error_names_the_node() -> None:
    looked_up = sym.gather_nd(sym.Variable("data"), sym.Variable("places"), name="rows")
    executor = looked_up.bind(cpu(), {"data": np.ones((3, 2)), "places": np.array([[5.0]])}, grad_req="null")
    with pytest.raises(IndexRangeError, match="row 0 of indices must be from -3 to 2, but there is 5") as caught:
        executor.forward()
    assert "gather_nd 'rows'" in "".join(caught.value.__notes__)


def test_sums_of_gather_nd_are_made_in_32_bits() -> None:
    found = run(
        "gather_nd", {"data": np.ones(2, np.float16), "indices": np.zeros((1, 4096))}, [np.ones(4096, np.float16)]
    )
    np.testing.assert_array_equal(found.gradients["data"], [4096, 0])


def test_index_copy() -> None:
    old, new, head = uniform((4, 3)), uniform((2, 3), 1), uniform((4, 3), 2)
    found = run("_contrib_index_copy", {"old_tensor": old, "index_vector": np.array([2, -4]), "new_tensor": new}, [head])
    np.testing.assert_array_equal(found.out, [new[1], old[1], new[0], old[3]])
    np.testing.assert_array_equal(found.gradients["new_tensor"], head[[2, 0]])
    np.testing.assert_array_equal(found.gradients["old_tensor"], head * [[0], [1], [0], [1]])
    shapes = shapes_of("_contrib_index_copy", {"old_tensor": (4, 3), "index_vector": (2,)})
    assert (shapes["new_tensor"], shapes["node_output"]) == ((2, 3), (4, 3))


def test_batch_take_and_its_gradient() -> None:  # D13
    a, indices, head = uniform((4, 3)), np.array([2.0, -1.0, 7.0, 1.9]), uniform((4,), 1)
    rows = [2, 0, 2, 1]
    back = np.zeros((4, 3))
    back[range(4), rows] = head
    found = run("batch_take", {"a": a, "indices": indices}, [head])
    np.testing.assert_array_equal(found.out, a[range(4), rows])
    np.testing.assert_array_equal(found.gradients["a"], back)
    assert shapes_of("batch_take", {"a": (UNKNOWN, 3), "indices": (4,)})["a"] == (4, 3)
    with pytest.raises(ShapeError, match="must have at least 2 dims and something in the last"):
        shapes_of("batch_take", {"a": (4, 0)})


def test_fill_element_0index() -> None:
    lhs, mhs, rhs, head = uniform((4, 3)), uniform((4,), 1), np.array([2.0, -1.0, 7.0, 1.9]), uniform((4, 3), 2)
    rows, wanted, back = [2, 0, 2, 1], lhs.copy(), head.copy()
    wanted[range(4), rows], back[range(4), rows] = mhs, 0
    found = run("fill_element_0index", {"lhs": lhs, "mhs": mhs, "rhs": rhs}, [head])
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["lhs"], back)
    np.testing.assert_array_equal(found.gradients["mhs"], head[range(4), rows])
    assert shapes_of("fill_element_0index", {"lhs": (UNKNOWN, 3), "rhs": (4,)})["node_output"] == (4, 3)
    taken = run("choose_element_0index", {"data": lhs, "index": rhs}).out
    np.testing.assert_array_equal(taken, lhs[range(4), rows])


@pytest.mark.parametrize("axes", [None, (1,), (-1, 0)])
def test_index_array(axes: Any) -> None:
    found = run("_contrib_index_array", {"data": uniform((2, 3))}, axes=axes).out
    assert found.dtype == np.int64
    for place in itertools.product(range(2), range(3)):
        assert found[place].tolist() == [place[axis] for axis in axes or range(2)]


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8"])
def test_ravel_and_unravel(kind: str) -> None:
    shape = (3, 4, 2)
    numbers = RNG.integers(0, 24, (5, 2))
    places = np.stack(np.unravel_index(numbers, shape)).astype(kind)
    found = run("_ravel_multi_index", {"data": places}, shape=shape).out
    np.testing.assert_array_equal(found, numbers)
    back = run("_unravel_index", {"data": numbers.astype(kind)}, shape=(-1, 4, 2)).out
    np.testing.assert_array_equal(back, places)
    assert found.dtype == back.dtype == kind
    np.testing.assert_array_equal(run("_unravel_index", {"data": np.array([24.0])}, shape=shape).out[:, 0], [3, 0, 0])
    one = run("_ravel_multi_index", {"data": np.array([1.0, 2.0])}, shape=(3, 4)).out
    np.testing.assert_array_equal(one, [6])


def test_numbers_that_a_type_cannot_hold_are_refused() -> None:
    for operator in ("_ravel_multi_index", "_unravel_index"):
        assert types_of(operator, {"data": "int64"}, shape=(2**33, 4))["node_output"] == np.int64
        for kind, shape in (("float32", (2**12, 2**13)), ("int32", (2**33, 4)), ("uint8", (16, 17))):
            with pytest.raises(TypeInferenceError, match="must be of a type that holds"):
                types_of(operator, {"data": kind}, shape=shape)
    found = run("_ravel_multi_index", {"data": np.array([[2**33 - 1], [3]])}, shape=(2**33, 4)).out
    np.testing.assert_array_equal(found, [2**35 - 1])


def test_shapes() -> None:
    many = 2**32 + 1
    found = shapes_of("gather_nd", {"data": (many, 4, 3), "indices": (2, many, 5)})
    assert found["node_output"] == (many, 5, 3)
    assert shapes_of("gather_nd", {"data": (3, 4), "indices": (2,)})["node_output"] == (1,)
    assert shapes_of("gather_nd", {"indices": (2, UNKNOWN), "data": (3, 4, 5)})["node_output"][1] == 5
    assert shapes_of("scatter_nd", {"indices": (1, 7)}, shape=(many, 3))["data"] == (7, 3)
    assert shapes_of("_unravel_index", {"data": (2, 3)}, shape=(4, 5, 6))["node_output"] == (3, 2, 3)
    assert shapes_of("_contrib_index_array", {"data": (2, 3)}, axes=(1,))["node_output"] == (2, 3, 1)
    with pytest.raises(ShapeError, match="must have a row for each of the first dims of data"):
        shapes_of("gather_nd", {"data": (3, 4), "indices": (3, 2)})
    with pytest.raises(ShapeError, match=r"data 'data' must be \(7, 3\), but it is \(7, 4\)"):
        shapes_of("scatter_nd", {"indices": (1, 7), "data": (7, 4)}, shape=(9, 3))
    for operator in ("scatter_nd", "_scatter_set_nd", "_unravel_index", "_ravel_multi_index"):
        with pytest.raises(AttributeValueError, match="'shape' must hold whole numbers of at least 1"):
            graph_of(operator, shape=(3, 0))


def test_nothing_to_look_up() -> None:
    found = run("gather_nd", {"data": np.ones((3, 2)), "indices": np.zeros((1, 0))}, [np.zeros((0, 2))])
    assert found.out.shape == (0, 2)
    assert not found.gradients["data"].any()
    assert run("batch_take", {"a": np.zeros((0, 3)), "indices": np.zeros(0)}).out.shape == (0,)
