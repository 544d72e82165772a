"""Broadcasting operators against NumPy's rules, spelled out: an index of length 1 stays at 0."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.dims import ANY, UNKNOWN, from_user
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import make_op
from arrayexec.symbol.graph import Graph, Node, variable
from arrayexec.symbol.infer import infer_shapes
from arrayexec.testing import check_op
from tests.ops.runs import close, run, shapes_of, types_of, uniform

SHAPES = [
    ((3, 1, 4), (3, 2, 1)),
    ((2, 3), (3,)),
    ((1,), (2, 3)),
    ((1, 1), (4, 5)),
    ((2, 1, 3), (5, 1)),
    ((2, 3), (2, 3)),
    ((0, 3), (1, 3)),
    ((1, 1, 2), (2,)),
]
FORMULAS: dict[str, Any] = {  # value, and derivatives by both operands, of numbers
    "broadcast_add": (lambda a, b: a + b, lambda a, b: 1.0, lambda a, b: 1.0),
    "broadcast_sub": (lambda a, b: a - b, lambda a, b: 1.0, lambda a, b: -1.0),
    "broadcast_mul": (lambda a, b: a * b, lambda a, b: b, lambda a, b: a),
    "broadcast_div": (lambda a, b: a / b, lambda a, b: 1 / b, lambda a, b: -a / b**2),
    "broadcast_maximum": (max, lambda a, b: float(a >= b), lambda a, b: float(a < b)),
    "broadcast_power": (lambda a, b: a**b, lambda a, b: b * a ** (b - 1), lambda a, b: a**b * np.log(a)),
    "broadcast_greater": (lambda a, b: float(a > b), lambda a, b: 0.0, lambda a, b: 0.0),
}


def place(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where an operand of ``shape`` is read for one index of the result."""
    return tuple(0 if dim == 1 else i for i, dim in zip(index[len(index) - len(shape) :], shape, strict=True))


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    value, by_lhs, by_rhs = FORMULAS[name]
    lhs, rhs = uniform(left, 1) + 2, uniform(right, 2) + 2
    out = run(name, {"lhs": lhs, "rhs": rhs}).out
    head = uniform(out.shape, 3)
    want, dlhs, drhs = np.empty(out.shape), np.zeros(left), np.zeros(right)
    for index in itertools.product(*map(range, out.shape)):
        a, b = lhs[place(index, left)], rhs[place(index, right)]
        want[index] = value(a, b)
        dlhs[place(index, left)] += head[index] * by_lhs(a, b)
        drhs[place(index, right)] += head[index] * by_rhs(a, b)
    found = run(name, {"lhs": lhs, "rhs": rhs}, [head])
    close(found.out, want)
    close(found.gradients["lhs"], dlhs)
    close(found.gradients["rhs"], drhs)


@pytest.mark.parametrize(("left", "right"), [((3, 1, 4), (3, 2, 1)), ((2, 3), (3,)), ((1,), (2, 3)), ((2, 2), (2, 2))])
@pytest.mark.parametrize("name", ["broadcast_mul", "broadcast_sub", "broadcast_maximum", "broadcast_hypot"])
def test_contract_for_other_shapes(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_op(name, {"lhs": left, "rhs": right})


def test_sums_of_half_precision_are_kept_in_single() -> None:
    lhs, rhs = np.ones((4096, 1), np.float16), np.ones((1, 1), np.float16)
    found = run("broadcast_mul", {"lhs": lhs, "rhs": rhs}, [np.full((4096, 1), 1.0, np.float16)])
    assert found.gradients["rhs"].tolist() == [[4096.0]]  # in float16 the sum of ones stays at 2048


def stretched(name: str, given: dict[str, np.ndarray], **attributes: Any) -> np.ndarray:
    """The output, after its gradient was found to be the sum over what was repeated."""
    first = next(iter(given))
    out = run(name, given, **attributes).out
    head = uniform(out.shape, 5)
    want = np.zeros(given[first].shape)
    for index in itertools.product(*map(range, out.shape)):
        want[place(index, want.shape)] += head[index]
    found = run(name, given, [head], **attributes).gradients
    close(found[first], want)
    assert not any(found[other].any() for other in found if other != first)
    return out


def test_stretching() -> None:
    data = uniform((1, 3, 1))
    np.testing.assert_array_equal(
        stretched("broadcast_to", {"data": data}, shape=(2, 0, 4)), np.broadcast_to(data, (2, 3, 4))
    )
    for axis in ((0, 2), (-3, -1)):
        got = stretched("broadcast_axis", {"data": data}, axis=axis, size=(2, 4))
        np.testing.assert_array_equal(got, np.broadcast_to(data, (2, 3, 4)))
    np.testing.assert_array_equal(stretched("broadcast_axes", {"data": data}, axis=2, size=5), np.tile(data, (1, 1, 5)))
    like = np.zeros((2, 3, 4))
    np.testing.assert_array_equal(
        stretched("broadcast_like", {"lhs": data, "rhs": like}), np.broadcast_to(data, (2, 3, 4))
    )
    got = stretched("broadcast_like", {"lhs": data, "rhs": like}, lhs_axes=(0, -1), rhs_axes=(2, 0))
    np.testing.assert_array_equal(got, np.broadcast_to(data, (4, 3, 2)))


def test_shape_like_takes_any_type() -> None:
    found = types_of("broadcast_like", {"lhs": np.float32, "rhs": np.int64})
    assert found["node_output"] == np.float32


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"lhs": (2, 3)}, {"rhs": ANY, "node_output": ANY}),
        ({"lhs": (2, 1, 3), "rhs": (1, 4, 1)}, {"node_output": (2, 4, 3)}),
        ({"lhs": (0, 3), "rhs": (5, 0)}, {"lhs": (UNKNOWN, 3), "rhs": (5, UNKNOWN), "node_output": (5, 3)}),
        ({"lhs": (0, 3), "rhs": (1, 3)}, {"lhs": (UNKNOWN, 3), "node_output": (UNKNOWN, 3)}),
        ({"lhs": (0, 3), "rhs": (3,)}, {"node_output": (UNKNOWN, 3)}),
    ],
)
def test_forward_inference(given: dict[str, Any], want: dict[str, Any]) -> None:
    found = shapes_of("broadcast_add", {name: from_user(shape) for name, shape in given.items()})
    for name, shape in want.items():
        assert same(found[name], shape), (name, found[name])


def same(found: Any, wanted: Any) -> bool:
    """Equal, unknown dims included."""
    return repr(found) == repr(wanted)


def test_backward_inference() -> None:
    """The result of an addition of equal shapes says what the operands of the broadcast are, as far as it follows."""

    def operands(lhs: Any, rhs: Any, out: tuple[int, ...]) -> list[Any]:
        stretch = Node(make_op("broadcast_mul", {}), "stretch", {}, [(variable("lhs"), 0), (variable("rhs"), 0)])
        plus = Node(make_op("elemwise_add", {}), "plus", {}, [(stretch, 0), (variable("other"), 0)])
        given = {name: from_user(shape) for name, shape in (("lhs", lhs), ("rhs", rhs), ("other", out)) if shape}
        return infer_shapes(Graph([(plus, 0)]), given)[:2]

    assert same(operands((0, 3), (1, 3), (5, 3)), [(5, 3), (1, 3)])
    assert same(operands((0, 3), (5, 3), (5, 3)), [(UNKNOWN, 3), (5, 3)])  # 1 or 5
    assert same(operands((0, 0), (0, 0), (1, 1)), [(1, 1), (1, 1)])
    assert same(operands((), (3,), (1, 3)), [(1, UNKNOWN), (3,)])  # only the left one can have the first axis


@pytest.mark.parametrize(
    ("name", "given", "attributes", "text"),
    [
        (
            "broadcast_add",
            {"lhs": (2, 3), "rhs": (2, 4)},
            {},
            "rhs 'rhs' must broadcast with lhs, but dim 1 is 4 and lhs has 3 there",
        ),
        (
            "broadcast_to",
            {"data": (2, 3)},
            {"shape": (4, 3)},
            "data 'data' must have 1 or 4 in dim 0, but it is 2",
        ),
        (
            "broadcast_axis",
            {"data": (2, 3)},
            {"axis": 2, "size": 4},
            "data 'data' must have an axis 2, but it is (2, 3)",
        ),
        (
            "broadcast_like",
            {"lhs": (2, 3), "rhs": (4, 3)},
            {},
            "lhs 'lhs' must have 1 or 4 in dim 0, but it is 2",
        ),
    ],
)
def test_refused(name: str, given: dict[str, Any], attributes: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        shapes_of(name, given, **attributes)
    assert str(caught.value).partition("\n")[0] == f"{name} 'node': {text}"


def test_axes_come_in_pairs() -> None:
    with pytest.raises(AttributeValueError, match="attribute 'size' must hold as many numbers >= 0 as 'axis'"):
        make_op("broadcast_axis", {"axis": (0, 1), "size": 4})
    for axes in ({"lhs_axes": 0}, {"lhs_axes": 0, "rhs_axes": (0, 1)}):
        with pytest.raises(AttributeValueError, match="attribute 'lhs_axes' must name as many axes as 'rhs_axes'"):
            make_op("broadcast_like", axes)


def test_a_size_of_0_is_what_the_users_say() -> None:
    row = sym.expand_dims(sym.broadcast_axis(sym.Variable("y"), axis=0, size=0), axis=1)
    joined = sym.Concat(sym.ones((5, 1, 3)), row, dim=1)
    assert joined.infer_shape(y=(1, 3)) == ([(1, 3)], [(5, 2, 3)], [])
    y = np.array([[1, 2, 4]], np.float32)
    executor = joined.bind(ax.cpu(), {"y": y}, {"y": np.zeros_like(y)})
    out = executor.forward(is_train=True)[0]
    np.testing.assert_array_equal(out[:, 1], np.repeat(y, 5, axis=0))
    executor.backward(np.ones_like(out))
    np.testing.assert_array_equal(executor.grad_dict["y"], [[5, 5, 5]])
    with pytest.raises(ShapeError, match=r"must have 1 or 5 in dim 0, but it is 2"):
        joined.infer_shape(y=(2, 3))
    assert sym.broadcast_axis(sym.Variable("y"), axis=0, size=0).infer_shape_partial(y=(1, 3))[1] == [(0, 3)]


@pytest.mark.parametrize("name", ["mul", "div", "power", "hypot"])
@pytest.mark.parametrize("seed", range(4))
def test_terms_that_cancel_are_not_rounded_before_they_are_summed(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lhs = np.float16([[1.7]])
    first = rng.uniform(0.5, 2.0, (1, 1024)).astype(np.float16)
    half = rng.uniform(0.5, 1.0, (1, 1024)).astype(np.float16)
    rhs = np.concatenate([first, first + np.float16(2.0**-6)], 1)
    dout = np.concatenate([half, -half], 1)
    exact = {key: value.astype(np.float64) for key, value in {"lhs": lhs, "rhs": rhs, "dout": dout}.items()}
    right = run(f"broadcast_{name}", {"lhs": exact["lhs"], "rhs": exact["rhs"]}, [exact["dout"]]).gradients["lhs"][0, 0]
    found = run(f"broadcast_{name}", {"lhs": lhs, "rhs": rhs}, [dout])
    assert abs(found.gradients["lhs"][0, 0] - right) <= 2.0**-11 * abs(right) + 2e-5  # rounded once
