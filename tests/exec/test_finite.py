"""``check='finite'`` names the first node that made a NaN or an infinity; ``internals=`` gives values by name."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.context import Context, asnumpy, copyto
from arrayexec.errors import ArgumentError, NonFiniteError, StaleForwardError, UnknownNameError
from arrayexec.executor import bind
from arrayexec.registry import Op, register_op
from tests.exec.test_memory import random_net
from tests.strict_device import strict

NAN, INF = np.nan, np.inf


@pytest.fixture(params=["cpu", "strict"])
def context(request: pytest.FixtureRequest) -> Context:
    """The host, and a device that behaves like a GPU."""
    return ax.cpu() if request.param == "cpu" else strict()


def fill(executor: Any, **values: Any) -> Any:
    """The executor with its arguments set, those not named to ones."""
    for name, array in executor.arg_dict.items():
        copyto(array, np.broadcast_to(np.asarray(values.get(name, 1), array.dtype), array.shape).copy())
    return executor


def log_net() -> Any:
    """fc (batch norm on its way) → log → relu in place → head."""
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    net = sym.Activation(sym.log(net, name="lg"), act_type="relu", name="act")
    return sym.FullyConnected(net, num_hidden=2, name="head")


def test_the_first_node_is_named_with_its_inputs(context: Context) -> None:
    executor = log_net().simple_bind(context, data=(2, 2))
    # fc = data @ ones + bias = 3 + bias: one logarithm of zero, one of a negative number, one right
    fill(executor, data=[[1, 2], [1, 2]], fc_bias=[-3, -7, 1])
    with pytest.raises(NonFiniteError) as caught:
        executor.forward(True, check="finite")
    assert isinstance(caught.value, FloatingPointError)
    fact, title, row, hint = str(caught.value).splitlines()
    assert fact.startswith("log 'lg' (test_finite.py:")
    assert "output 'lg_output' must be finite, but it holds 2 NaN and 2 infinite among 6 values" in fact
    assert row.split() == "data = fc_output (2, 3) float32 -4 to 4, mean 0 all finite".split()
    assert hint.strip() == "all inputs are finite: it began here" and title.strip() == "inputs:"


def test_what_came_in_is_told(context: Context) -> None:
    executor = fill(log_net().simple_bind(context, data=(2, 2)), data=[[1, NAN], [1, -INF]])
    with pytest.raises(NonFiniteError) as caught:
        executor.forward(check="finite")
    fact, _, *rows, hint = str(caught.value).splitlines()
    assert "FullyConnected 'fc'" in fact and "it holds 3 NaN and 3 infinite among 6 values" in fact
    assert rows[0].endswith("1 to 1, mean 1  1 NaN and 1 infinite of 4")
    assert [row.split()[0] for row in rows] == ["data", "weight", "bias"]
    assert hint.strip() == "not finite already: argument 'data'"


def test_a_value_that_is_overwritten_in_place_is_still_told() -> None:
    """In the plain plan ``grow`` writes over its input; the statistics are those of the input."""
    net = sym.exp(sym.Activation(sym.Variable("x") * 2.0, act_type="relu", name="act"), name="grow")
    executor = fill(net.simple_bind(ax.cpu(), grad_req="null", x=(3,)), x=[1, 60, 30])
    assert any(step.name.startswith("exp") and step.inplace for step in executor.plan().steps)
    with pytest.raises(NonFiniteError) as caught:
        executor.forward(check="finite")
    assert "act_output" in str(caught.value)
    assert "2 to 120, mean 60.6667" in str(caught.value)


def test_a_reshape_is_looked_through() -> None:
    net = sym.exp(sym.Reshape(sym.Variable("x"), shape=(3, 2), name="flat"), name="grow")
    executor = fill(net.simple_bind(ax.cpu(), x=(2, 3)), x=[[INF, 1, 1], [1, 1, 1]])
    with pytest.raises(NonFiniteError, match="exp 'grow'") as caught:
        executor.forward(check="finite")
    assert str(caught.value).endswith("not finite already: argument 'x'")


def test_a_finite_run_is_the_plain_run(context: Context) -> None:
    """Outputs, states, gradients and random numbers are the same, and a check between them changes nothing."""
    for seed in range(12):
        net = random_net(np.random.default_rng(seed))
        known = {n: (4, 6) for n in net.list_arguments() if n.startswith(("x", "loss"))}
        plain, checked = (net.simple_bind(place, **known) for place in (ax.cpu(), context))
        rng = np.random.default_rng(seed)
        for name, array in {**plain.arg_dict, **plain.aux_dict}.items():
            array[...] = rng.uniform(0.5, 1, array.shape)
            copyto({**checked.arg_dict, **checked.aux_dict}[name], array)
        heads = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in net.infer_shape(**known)[1]]
        for is_train, check in ((True, "finite"), (True, None), (False, "finite"), (True, "finite")):
            want = plain.forward(is_train)
            for one, other in zip(want, checked.forward(is_train, check="finite"), strict=True):
                assert np.array_equal(one, asnumpy(other)), seed
            plain.backward(heads)
            for _ in range(2):  # the second one repeats the forward
                checked.backward(heads, check=check)
            assert plain.step == checked.step
            for one, other in ((plain.grad_dict, checked.grad_dict), (plain.aux_dict, checked.aux_dict)):
                for name, array in one.items():
                    assert np.array_equal(array, asnumpy(other[name])), (seed, name)


def test_after_the_error_all_is_as_before() -> None:
    """States and the step have not moved, backward is refused, and the next forward is right."""
    data = sym.Variable("data")
    net = sym.log(sym.BatchNorm(data, fix_gamma=False, name="bn"), name="lg")
    executor, other = (fill(net.simple_bind(ax.cpu(), data=(4, 3))) for _ in range(2))
    good = np.linspace(1, 2, 12, dtype=np.float32).reshape(4, 3)
    for one in (executor, other):
        one.arg_dict["bn_beta"][...] = 9
        one.forward(True, data=good)
    with pytest.raises(NonFiniteError, match="'lg_output'"):
        executor.forward(True, data=good * 4, check="finite", bn_beta=np.zeros(3, np.float32))
    assert executor.step == other.step == 1
    for name, state in other.aux_dict.items():
        assert np.array_equal(executor.aux_dict[name], state) and state.any()
    with pytest.raises(StaleForwardError, match="the last forward did not finish"):
        executor.backward(good)
    executor.arg_dict["bn_beta"][...] = 9
    for one in (executor, other):
        one.forward(True, data=good)
        one.backward(good)
    for name, gradient in other.grad_dict.items():
        assert np.array_equal(executor.grad_dict[name], gradient)
    for name, state in other.aux_dict.items():
        assert np.array_equal(executor.aux_dict[name], state)


def test_a_state_that_becomes_infinite() -> None:
    executor = fill(sym.BatchNorm(sym.Variable("data"), name="bn").simple_bind(ax.cpu(), data=(4, 3)))
    executor.aux_dict["bn_moving_var"][1] = INF
    with pytest.raises(NonFiniteError, match="auxiliary state 'bn_moving_var' must be finite, but it holds 1 infinite") as caught:
        executor.forward(True, check="finite")
    assert str(caught.value).endswith("or was there before")
    assert np.isinf(executor.aux_dict["bn_moving_var"]).sum() == 1 and not executor.aux_dict["bn_moving_mean"].any()


def test_the_first_gradient_is_named(context: Context) -> None:
    """sqrt(0) is finite, its derivative is not."""
    net = sym.sqrt(sym.FullyConnected(sym.Variable("data"), num_hidden=2, no_bias=True, name="fc"), name="root")
    executor = fill(net.simple_bind(context, data=(2, 2)), data=[[1, 1], [-1, 1]])
    for before in ("finite", None):  # backward in the plan of the forward, and in another one
        executor.forward(True, check=before)
        with pytest.raises(NonFiniteError) as caught:
            executor.backward(np.ones((2, 2), np.float32), check="finite")
        text = str(caught.value)
        assert text.startswith("sqrt 'root'") and "the gradient of 'fc_output' must be finite" in text
        assert "it holds 2 infinite among 4 values (in backward of" in text
        assert text.endswith("it began here")
    executor.forward(True)
    with pytest.raises(NonFiniteError) as caught:
        executor.backward(np.full((2, 2), NAN, np.float32), check="finite")
    assert str(caught.value).endswith("not finite already: 'head gradient of root_output'")
    executor.forward(True, data=np.ones((2, 2), np.float32))
    executor.backward(np.ones((2, 2), np.float32), check="finite")
    assert np.allclose(asnumpy(executor.grad_dict["data"]), 2 * 0.5 / np.sqrt(2))


def test_gradients_that_overflow_when_they_are_summed() -> None:
    x = sym.Variable("x")
    executor = fill((x * 2e38 + x * 2e38).simple_bind(ax.cpu(), x=(2,)), x=0)
    executor.forward(True, check="finite")
    with pytest.raises(NonFiniteError, match="gradient of x must be finite, but it holds 2 infinite among 2 values"):
        executor.backward(np.ones(2, np.float32), check="finite")


def test_a_checked_backward_after_inference_is_in_inference_mode() -> None:
    net = sym.Dropout(sym.Variable("x"), p=0.5, name="drop")
    executor = fill(net.simple_bind(ax.cpu(), x=(50,)))
    for check in (None, "finite"):
        executor.forward(False, check=check)
        executor.backward(np.ones(50, np.float32), check="finite")
        assert np.array_equal(executor.grad_dict["x"], np.ones(50))


@register_op
class _LeavesItsMask(Op):
    """``out = data``; the hidden output is never written, as a mask outside training."""

    hidden: ClassVar[tuple[str, ...]] = ("mask",)
    examples: ClassVar[list[dict[str, Any]]] = [{"data": (2, 3)}]

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        s.mask = s.out

    def forward(self, xp: Any, data: Any, out: Any, mask: Any) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)


def test_hidden_outputs_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")
    net = sym._LeavesItsMask(sym._LeavesItsMask(sym.Variable("x")))
    executor = fill(net.simple_bind(strict(), x=(2, 3)))  # new memory of this device is NaN
    executor.forward(True, check="finite")
    executor.forward(True, check="finite")


def test_empty_arrays_and_whole_numbers_are_finite() -> None:
    net = sym.Group([sym.exp(sym.Variable("x")), sym.Cast(sym.Variable("y"), dtype="int32")])
    executor = bind(net, ax.cpu(), {"x": np.zeros((0, 3), np.float32), "y": np.ones(2, np.float32)})
    executor.forward(check="finite")


def test_the_plain_plan_is_not_touched() -> None:
    """The other plan is made when it is first asked for, and the arena grows then."""
    executor = fill(log_net().simple_bind(ax.cpu(), data=(64, 2)))
    before = executor.arena.nbytes
    executor.forward(True)
    executor.backward(np.ones((64, 2), np.float32))
    assert executor.arena.nbytes == before == executor.memory_plan()["arena"]
    assert not any("watched" in mode for mode in executor._plans)
    executor.forward(True, check="finite")
    assert executor.arena.nbytes == executor.plan("train, watched").arena_bytes > before


# --- internals -------------------------------------------------------------------------------------------------------


def test_internals_by_name(context: Context) -> None:
    executor = fill(log_net().simple_bind(context, data=(2, 2)), data=[[1, 2], [0, 0.5]])
    names = ["act_output", "fc_output", "data", "head_output"]
    found = executor.forward(True, internals=names)
    fc = np.repeat([[4.0], [1.5]], 3, axis=1).astype(np.float32)
    assert list(found) == names
    assert np.allclose(asnumpy(found["fc_output"]), fc)
    assert np.allclose(asnumpy(found["act_output"]), np.log(fc))
    assert np.array_equal(asnumpy(found["data"]), asnumpy(executor.arg_dict["data"]))
    head = asnumpy(executor.outputs[0]).copy()
    assert np.array_equal(asnumpy(found["head_output"]), head)
    executor.forward(True, data=np.ones((2, 2), np.float32))
    assert np.array_equal(asnumpy(found["head_output"]), head), "they are copies"
    executor.backward(np.ones((2, 2), np.float32))
    assert executor.forward(internals=[]) == {}


def test_internals_with_a_monitor_and_a_check() -> None:
    seen: list[str] = []
    executor = fill(log_net().simple_bind(ax.cpu(), data=(2, 2)))
    executor.set_monitor_callback(lambda name, array: seen.append(name))
    found = executor.forward(True, internals=["lg_output"], check="finite")
    assert seen == ["fc_output", "lg_output", "act_output", "head_output"] and list(found) == ["lg_output"]
    executor.backward(np.ones((2, 2), np.float32), check="finite")
    assert "lg_backward_output" in seen


def test_internals_of_states_are_those_after_the_forward() -> None:
    net = sym.BatchNorm(sym.Variable("data"), name="bn")
    executor = fill(net.simple_bind(ax.cpu(), data=(4, 1)), data=[[0], [2], [4], [6]])
    found = executor.forward(True, internals=["bn_moving_mean"])
    assert np.allclose(found["bn_moving_mean"], 0.3)


def test_refusals() -> None:
    executor = log_net().simple_bind(ax.cpu(), data=(2, 2))
    with pytest.raises(ArgumentError, match="check must be 'finite' or None, but it is 'nan'"):
        executor.forward(check="nan")
    with pytest.raises(ArgumentError, match="check must be 'finite' or None, but it is True"):
        executor.backward(check=True)
    with pytest.raises(UnknownNameError, match="none is 'fc_outptu'; did you mean 'fc_output'"):
        executor.forward(internals=["fc_outptu"])
    with pytest.raises(ArgumentError, match="internals must be a list of names, but they are 'fc_output'"):
        executor.forward(internals="fc_output")
