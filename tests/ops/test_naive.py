"""The naive interpreter: what a gradient is where values are used several times, stopped, or asked for in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from arrayexec import registry, sym
from arrayexec.errors import BindError, ShapeError, UnknownNameError
from arrayexec.registry import Op, register_op
from arrayexec.symbol import Group, Variable
from arrayexec.testing import NaiveRun, run_planned


@pytest.fixture(autouse=True)
def forget_operators_of_the_tests() -> Iterator[None]:
    yield
    for name in [name for name, cls in registry._OPERATORS.items() if cls.__module__ == __name__]:
        del registry._OPERATORS[name]


def loss() -> Any:
    """A loss head of its own: half the square of data minus label; its gradient ignores what arrives."""

    @register_op(name="_HalfSquare")
    class HalfSquare(Op):
        no_gradient = ("label",)

        def infer(self, s: Any) -> None:
            s.out = s.label = s.data
            s.data = s.out

        def forward(self, xp: Any, data: Any, label: Any, out: Any) -> None:
            xp.subtract(data, label, out=out)
            xp.multiply(out, out, out=out)
            xp.multiply(out, 0.5, out=out)

        def backward(self, xp: Any, data: Any, label: Any, ddata: Any) -> None:
            xp.subtract(data, label, out=ddata)

    return sym._HalfSquare


A = np.array([[1.0, -2.0, 3.0]])
B = np.array([[0.5, 4.0, -1.0]])
x, y = Variable("x"), Variable("y")


def gradients(symbol: Any, heads: Any = None, **args: np.ndarray) -> dict[str, np.ndarray]:
    run = NaiveRun(symbol, args)
    run.forward()
    found = run.backward(heads)
    planned = run_planned(symbol, args, {}, True, None if heads is None else list(heads))
    for name, gradient in planned.gradients.items():
        np.testing.assert_array_equal(gradient, found[name])
    return found


def test_a_value_used_several_times_sums_its_contributions() -> None:
    square = x * x
    found = gradients(square * x + y, [np.ones((1, 3))], x=A, y=B)
    np.testing.assert_allclose(found["x"], 3 * A * A, rtol=1e-15)
    np.testing.assert_array_equal(found["y"], np.ones((1, 3)))


def test_contributions_are_added_from_the_last_user_to_the_first() -> None:
    big, one = np.full((1, 1), 2.0**53), np.ones((1, 1))
    group = Group([x * 1.0, x * 2.0, x * 4.0])
    # (1 + 1) + 2**53 keeps both ones, (2**53 + 1) + 1 loses them.
    found = gradients(group, [big, one * 0.5, one * 0.25], x=np.ones((1, 1)))
    assert found["x"][0, 0] == 2.0**53 + 2
    assert (2.0**53 + 1) + 1 == 2.0**53


def test_head_gradients_come_first_and_a_head_may_be_a_variable() -> None:
    found = gradients(Group([x, x * 2.0]), [A, B], x=A)
    np.testing.assert_array_equal(found["x"], A + 2.0 * B)


def test_the_same_output_twice_takes_both_head_gradients() -> None:
    double = x * 2.0
    found = gradients(Group([double, double]), [A, B], x=A)
    np.testing.assert_array_equal(found["x"], 2.0 * (A + B))


def test_a_loss_head_starts_the_flow_by_itself() -> None:
    found = gradients(loss()(data=x * 3.0, label=y), x=A, y=B)
    np.testing.assert_allclose(found["x"], 3.0 * (3.0 * A - B), rtol=1e-15)
    assert not found["y"].any()


def test_a_loss_that_others_use_runs_where_the_flow_reaches_it() -> None:
    head = loss()(data=x, label=y)
    found = gradients(head * 5.0, [np.ones((1, 3))], x=A, y=B)
    np.testing.assert_array_equal(found["x"], A - B)


def test_nothing_flows_through_an_operator_without_backward() -> None:
    found = gradients(Group([sym.sign(x), y * 2.0]), [np.ones((1, 3)), B], x=A, y=B)
    assert not found["x"].any()
    np.testing.assert_array_equal(found["y"], 2.0 * B)
    head = loss()(data=x, label=y)
    blocked = gradients(sym.sign(head), x=A, y=B)
    assert not blocked["x"].any(), "the loss stands behind an operator that gives no gradient"


def test_an_output_that_nobody_used_has_the_gradient_zero() -> None:
    parts = sym.SliceChannel(x, num_outputs=3, axis=1)
    found = gradients(parts[1] * 2.0, [np.ones((1, 1))], x=A)
    np.testing.assert_array_equal(found["x"], [[0.0, 2.0, 0.0]])


def test_write_add_and_null() -> None:
    run = NaiveRun(x * y, {"x": A, "y": B})
    run.forward()
    given = {"x": np.full((1, 3), 10.0), "y": np.full((1, 3), 20.0)}
    assert list(run.backward([np.ones((1, 3))], {"x": "add", "y": "null"}, given)) == ["x"]
    np.testing.assert_array_equal(given["x"], 10.0 + B)
    np.testing.assert_array_equal(given["y"], np.full((1, 3), 20.0))
    run.backward([np.ones((1, 3))], {"y": "write"}, given)
    np.testing.assert_array_equal(given["y"], A)


def test_a_wanted_argument_without_contributions() -> None:
    run = NaiveRun(Group([sym.sign(x), y * 1.0]), {"x": A, "y": B})
    run.forward()
    given = {"x": np.full((1, 3), 7.0)}
    run.backward([A, A], {"x": "add"}, given)
    np.testing.assert_array_equal(given["x"], np.full((1, 3), 7.0))
    run.backward([A, A], {"x": "write"}, given)
    assert not given["x"].any()


def test_auxiliary_states_move_once_a_training_forward() -> None:
    data = Variable("data")
    bn = sym.BatchNorm(data, name="bn", momentum=0.5, fix_gamma=False)
    args = {"data": np.array([[1.0], [3.0]]), "bn_gamma": np.ones(1), "bn_beta": np.zeros(1)}
    aux = {"bn_moving_mean": np.zeros(1), "bn_moving_var": np.ones(1)}
    run = NaiveRun(bn, args, aux)
    run.forward()
    run.backward([np.ones((2, 1))])
    assert run.aux["bn_moving_mean"].tolist() == [1.0]
    run.forward(is_train=False)
    assert run.aux["bn_moving_mean"].tolist() == [1.0]
    assert aux["bn_moving_mean"].tolist() == [0.0], "the caller's array stays"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="bind: argument 'y' must be given; there are: x"):
        NaiveRun(x * y, {"x": A})
    with pytest.raises(UnknownNameError, match="bind: the symbol has no argument 'z'"):
        NaiveRun(x * y, {"x": A, "y": B, "z": B})
    with pytest.raises(ShapeError):
        NaiveRun(x * y, {"x": A, "y": B[:, :2]})
    run = NaiveRun((x * y).__copy__(), {"x": A, "y": B})
    name = run.graph.entry_name(run.graph.heads[0])
    run.forward()
    with pytest.raises(BindError) as caught:
        run.backward()
    assert str(caught.value) == f"backward needs out_grads: output '{name}' is no loss head"
    with pytest.raises(BindError, match=r"out_grads must hold 1 arrays, one an output, but has 2"):
        run.backward([A, A])
    with pytest.raises(BindError, match=rf"the gradient of '{name}' must be \(1, 3\), but it is \(1, 2\)"):
        run.backward([A[:, :2]])


def test_a_body_cannot_write_what_it_reads() -> None:
    @register_op(name="_Writes")
    class Writes(Op):
        def infer(self, s: Any) -> None:
            s.out = s.data

        def forward(self, xp: Any, data: Any, out: Any) -> None:
            data += 1

    with pytest.raises(ValueError, match="read-only"):
        NaiveRun(sym._Writes(x), {"x": A}).forward()
    assert A.tolist() == [[1.0, -2.0, 3.0]]
