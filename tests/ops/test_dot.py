"""FullyConnected, dot and batch_dot against einsum in float64; what their shapes say."""

from __future__ import annotations

import numpy as np
import pytest

from arrayexec.dims import ANY, UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import get_op, make_op
from arrayexec.testing.inference import inferred
from arrayexec.testing.trial import Trial
from tests.ops.runs import close, run, shapes_of, types_of, uniform


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3), (3, 2, 1, 4), (5,), (0, 3)])
def test_fully_connected_flattens_all_but_the_first_axis(shape: tuple[int, ...]) -> None:
    k = int(np.prod(shape[1:]))
    x, w, b, head = uniform(shape), uniform((2, k), 1), uniform((2,), 2), uniform((shape[0], 2), 3)
    got = run("FullyConnected", {"data": x, "weight": w, "bias": b}, head, num_hidden=2)
    flat = x.reshape(shape[0], k)
    close(got.out, np.einsum("nk,hk->nh", flat, w) + b)
    close(got.gradients["data"], np.einsum("nh,hk->nk", head, w).reshape(shape))
    close(got.gradients["weight"], np.einsum("nh,nk->hk", head, flat))
    close(got.gradients["bias"], head.sum(axis=0))


def test_fully_connected_without_flatten_keeps_the_leading_axes() -> None:
    x, w, head = uniform((2, 3, 4)), uniform((5, 4), 1), uniform((2, 3, 5), 2)
    got = run("FullyConnected", {"data": x, "weight": w}, head, num_hidden=5, flatten=False, no_bias=True)
    close(got.out, np.einsum("abk,hk->abh", x, w))
    close(got.gradients["data"], np.einsum("abh,hk->abk", head, w))
    close(got.gradients["weight"], np.einsum("abh,abk->hk", head, x))


def test_fully_connected_reads_fortran_ordered_data() -> None:
    x, w = np.asfortranarray(uniform((4, 2, 3))), uniform((2, 6), 1)
    got = run("FullyConnected", {"data": x, "weight": w}, num_hidden=2, no_bias=True)
    close(got.out, x.reshape(4, 6) @ w.T)


def test_fully_connected_keeps_what_the_wanted_gradients_need() -> None:
    op = make_op("FullyConnected", {"num_hidden": 2})
    assert list(op.keeps(frozenset({"bias"}))) == []
    assert list(op.keeps(frozenset({"weight", "bias"}))) == ["data"]
    assert list(op.keeps(frozenset({"data"}))) == ["weight"]


def test_fully_connected_sums_sixteen_bits_in_thirty_two() -> None:
    ones = np.ones((4096, 1), np.float16)
    got = run("FullyConnected", {"data": ones, "weight": ones[:1], "bias": ones[:1, 0]}, ones, num_hidden=1)
    assert got.gradients["bias"].dtype == np.float16
    assert got.gradients["bias"][0] == 4096  # a sum in float16 stops at 2048
    assert got.gradients["weight"][0, 0] == 4096


def test_fully_connected_takes_whole_numbers() -> None:
    x, w = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(3, dtype=np.int32).reshape(1, 3)
    got = run("FullyConnected", {"data": x, "weight": w}, num_hidden=1, no_bias=True)
    assert got.out.dtype == np.int32
    np.testing.assert_array_equal(got.out, [[5], [14]])


@pytest.mark.parametrize(
    ("given", "attributes", "wanted"),
    [
        ({"weight": (4, 7)}, {}, {"data": ANY, "node_output": (UNKNOWN, 4), "bias": (4,)}),
        ({"data": (3, UNKNOWN), "weight": (4, 7)}, {}, {"data": (3, 7), "node_output": (3, 4)}),
        ({"data": (3, UNKNOWN, 2), "weight": (4, 8)}, {}, {"data": (3, 4, 2)}),
        ({"data": (3, UNKNOWN, UNKNOWN), "weight": (4, 8)}, {}, {"data": (3, UNKNOWN, UNKNOWN)}),
        ({"data": (UNKNOWN, 7)}, {}, {"weight": (4, 7), "node_output": (UNKNOWN, 4)}),
        (
            {"data": (2, 3, UNKNOWN), "weight": (4, 7)},
            {"flatten": False},
            {"data": (2, 3, 7), "node_output": (2, 3, 4)},
        ),
    ],
)
def test_fully_connected_infers_what_follows(given: dict, attributes: dict, wanted: dict) -> None:
    found = shapes_of("FullyConnected", given, num_hidden=4, **attributes)
    for name, shape in wanted.items():
        assert str(found[name]) == str(shape), name


def test_fully_connected_refuses_a_weight_that_cannot_be_split_into_rows() -> None:
    with pytest.raises(ShapeError, match=r"data 'data' must have 7 values a row like the weight, but has a multiple of 2"):
        shapes_of("FullyConnected", {"data": (3, 2, UNKNOWN), "weight": (4, 7)}, num_hidden=4)


def test_fully_connected_refuses_no_units() -> None:
    with pytest.raises(AttributeValueError, match="'num_hidden' must be at least 1, but it is 0"):
        make_op("FullyConnected", {"num_hidden": 0})


DOTS = [
    ((2, 3), (3, 4), False, False, "ik,kj->ij"),
    ((3, 2), (3, 4), True, False, "ki,kj->ij"),
    ((2, 3), (4, 3), False, True, "ik,jk->ij"),
    ((3, 2), (4, 3), True, True, "ki,jk->ij"),
    ((2, 3, 4), (4, 5, 2), False, False, "abk,kcd->abcd"),
    ((4, 2, 3), (5, 2, 4), True, True, "kab,cdk->abcd"),
    ((4,), (4, 3), False, False, "k,kj->j"),
    ((2, 4), (4,), False, False, "ik,k->i"),
    ((4,), (4,), False, False, "k,k->"),
]


@pytest.mark.parametrize(("left", "right", "ta", "tb", "text"), DOTS)
def test_dot_contracts_one_axis(left: tuple, right: tuple, ta: bool, tb: bool, text: str) -> None:
    a, b = uniform(left), uniform(right, 1)
    wanted = np.atleast_1d(np.einsum(text, a, b))
    head = uniform(wanted.shape, 2)
    got = run("dot", {"lhs": a, "rhs": b}, head, transpose_a=ta, transpose_b=tb)
    close(got.out, wanted)
    (first, second), out = text.split("->")[0].split(","), text.split("->")[1]
    given = head if out else head[0]
    close(got.gradients["lhs"], np.einsum(f"{out},{second}->{first}", given, b))
    close(got.gradients["rhs"], np.einsum(f"{out},{first}->{second}", given, a))


def test_dot_infers_the_contracted_axis_and_the_rest_from_the_result() -> None:
    found = shapes_of("dot", {"lhs": (UNKNOWN, 3), "rhs": (UNKNOWN, 4)})
    assert found["rhs"] == (3, 4)
    with pytest.raises(ShapeError, match=r"dot 'node': lhs 'lhs' must be|dot 'node': rhs 'rhs' must be"):
        shapes_of("dot", {"lhs": (2, 3), "rhs": (4, 2)})


@pytest.mark.parametrize(("left", "right", "ta", "tb", "text"), DOTS)
def test_dot_infers_an_operand_from_the_other_and_the_result(
    left: tuple, right: tuple, ta: bool, tb: bool, text: str
) -> None:
    out = np.einsum(text, np.zeros(left), np.zeros(right)).shape or (1,)
    trial = Trial(get_op("dot"), {"lhs": left, "rhs": right, "transpose_a": ta, "transpose_b": tb})
    for given, place, other in (({"lhs": left}, 1, right), ({"rhs": right}, 0, left)):
        (shape,) = given.values()
        found = inferred(trial, {**given, "out": out})[place]
        # A vector leaves no dim in the result, and (1,) may be the result of two vectors.
        assert str(found) == ("?" if len(shape) == 1 else str(other))


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("lead", [(3,), (2, 2), (0,)])
def test_batch_dot_multiplies_pair_by_pair(lead: tuple[int, ...], ta: bool, tb: bool) -> None:
    a = uniform((*lead, 4, 2) if ta else (*lead, 2, 4))
    b = uniform((*lead, 3, 4) if tb else (*lead, 4, 3), 1)
    head = uniform((*lead, 2, 3), 2)
    got = run("batch_dot", {"lhs": a, "rhs": b}, head, transpose_a=ta, transpose_b=tb)
    first, second = "...ki" if ta else "...ik", "...jk" if tb else "...kj"
    close(got.out, np.einsum(f"{first},{second}->...ij", a, b))
    close(got.gradients["lhs"], np.einsum(f"...ij,{second}->{first}", head, b))
    close(got.gradients["rhs"], np.einsum(f"...ij,{first}->{second}", head, a))


def test_batch_dot_infers_both_ways() -> None:
    found = shapes_of("batch_dot", {"lhs": (5, UNKNOWN, 3), "rhs": (UNKNOWN, UNKNOWN, 4)})
    assert (str(found["lhs"]), str(found["rhs"])) == ("(5, ?, 3)", "(5, 3, 4)")
    with pytest.raises(ShapeError, match=r"rhs 'rhs' must have at least 3 dims, but it is \(2, 3\)"):
        shapes_of("batch_dot", {"rhs": (2, 3)})


def test_types_follow_the_data() -> None:
    assert types_of("FullyConnected", {"weight": np.float64}, num_hidden=2)["data"] == np.float64
