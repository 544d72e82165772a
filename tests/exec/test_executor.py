"""The executor's promises: who may read what and when, on executors of their own memory and on shared ones."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.errors import (
    BindError,
    BusyExecutorError,
    NotBoundError,
    ShapeError,
    StaleForwardError,
    TypeInferenceError,
    UnknownNameError,
)
from arrayexec.registry import Op, register_op

RNG = np.random.default_rng(3)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def dense(hidden: int = 3, name: str = "fc") -> Any:
    return sym.FullyConnected(sym.Variable("data"), num_hidden=hidden, name=name)


def norm_net() -> Any:
    """Everything that makes repeating a forward hard: dropout, batch norm, a value that is overwritten in place."""
    net = sym.Dropout(dense(4), p=0.5, name="drop")
    net = sym.Activation(sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="relu", name="act")
    return sym.FullyConnected(net, num_hidden=2, name="out")


def fill(executor: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    for name, array in executor.arg_dict.items():
        array[...] = rng.uniform(-1, 1, array.shape)
        if name.endswith("gamma"):
            array[...] = 1
    for name, array in executor.aux_dict.items():
        array[...] = 1 if name.endswith("var") else 0
    return executor


@pytest.fixture(params=["own memory", "shared memory"])
def lender(request: pytest.FixtureRequest) -> Any:
    """None, or an executor of a larger batch whose arena the executor under test shares."""
    if request.param == "own memory":
        return None
    return norm_net().simple_bind(ax.cpu(), data=(32, 5))


def bind_norm(lender: Any, **options: Any) -> Any:
    return fill(norm_net().simple_bind(ax.cpu(), shared_exec=lender, data=(6, 5), **options))


HEAD = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


def gradients(executor: Any) -> dict[str, np.ndarray]:
    return {n: g.copy() for n, g in executor.grad_dict.items() if g is not None}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, gradient in one.items():
        assert np.array_equal(gradient, other[name]), name


# --- backward at odd times -------------------------------------------------------------------------------------------


def test_backward_twice_gives_the_same_and_moves_states_once(lender: Any) -> None:
    executor = bind_norm(lender)
    output = executor.forward(True)[0].copy()
    states = {n: a.copy() for n, a in executor.aux_dict.items()}
    executor.backward(HEAD)
    first = gradients(executor)
    for array in executor.grad_arrays:
        array.fill(np.nan)
    executor.backward(HEAD)
    same(first, gradients(executor))
    assert np.array_equal(executor.outputs[0], output), "dropout drew other numbers"
    same(states, executor.aux_dict)


def test_forward_without_backward_leaves_nothing_behind(lender: Any) -> None:
    """A forward whose backward never comes: the next one is that of an executor in the same state."""
    executor, other = bind_norm(lender), bind_norm(None)
    executor.forward(True, data=np.full((6, 5), 0.5, np.float32))
    for name, state in executor.aux_dict.items():
        other.aux_dict[name][...] = state
    other.step = executor.step
    data = np.random.default_rng(8).random((6, 5), np.float32)
    output, want = executor.forward(True, data=data)[0], other.forward(True, data=data)[0]
    assert np.array_equal(output, want)
    executor.backward(HEAD)
    other.backward(HEAD)
    same(gradients(executor), gradients(other))
    same(executor.aux_dict, other.aux_dict)


def test_backward_after_inference_is_in_inference_mode(lender: Any) -> None:
    executor = bind_norm(lender)
    output = executor.forward(False)[0].copy()
    executor.backward(HEAD)
    got = gradients(executor)
    # Inference: no dropout, batch norm by the moving statistics (mean 0, variance 1).
    args = {n: a.astype(np.float64) for n, a in executor.arg_dict.items()}
    hidden = args["data"] @ args["fc_weight"].T + args["fc_bias"]
    scaled = hidden / np.sqrt(1 + 1e-3) * args["bn_gamma"] + args["bn_beta"]
    act = np.maximum(scaled, 0)
    np.testing.assert_allclose(output, act @ args["out_weight"].T + args["out_bias"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["out_weight"], HEAD.T @ act, rtol=1e-4, atol=1e-5)
    back = (HEAD @ args["out_weight"]) * (scaled > 0)
    np.testing.assert_allclose(got["bn_beta"], back.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        got["fc_weight"], (back * args["bn_gamma"] / np.sqrt(1 + 1e-3)).T @ args["data"], rtol=1e-4, atol=1e-5
    )
    executor.forward(True)
    executor.backward(HEAD)
    assert not np.allclose(gradients(executor)["fc_weight"], got["fc_weight"])


def test_add_accumulates_and_repeats(lender: Any) -> None:
    executor = bind_norm(lender, grad_req="add")
    executor.forward(True)
    executor.backward(HEAD)
    once = gradients(executor)
    executor.backward(HEAD)
    executor.backward(HEAD)
    for name, gradient in gradients(executor).items():
        assert np.array_equal(gradient, once[name] + once[name] + once[name]), name


def test_training_moves_states_without_any_gradient(lender: Any) -> None:
    executor = bind_norm(lender, grad_req="null")
    before = {n: a.copy() for n, a in executor.aux_dict.items()}
    executor.forward(False)
    same(before, executor.aux_dict)
    executor.forward(True)
    assert all(not np.array_equal(a, before[n]) for n, a in executor.aux_dict.items())
    executor.backward(HEAD)  # nothing is wanted: nothing happens


def test_backward_before_forward() -> None:
    with pytest.raises(NotBoundError, match="the executor of 'out' on cpu.0.: backward needs a forward first"):
        bind_norm(None).backward(HEAD)


def test_two_executors_of_one_arena_interleaved() -> None:
    net = norm_net()
    large = fill(net.simple_bind(ax.cpu(), data=(32, 5)))
    small = fill(net.simple_bind(ax.cpu(), data=(6, 5), shared_exec=large))
    large.forward(True)
    small.forward(True)
    with pytest.raises(StaleForwardError, match="has run in the same memory since the last forward; run forward again"):
        large.backward(np.zeros((32, 2), np.float32))
    small.backward(HEAD)
    alone = fill(net.simple_bind(ax.cpu(), data=(6, 5)))
    alone.forward(True)
    alone.backward(HEAD)
    same(gradients(alone), gradients(small))


def test_growth_between_forward_and_backward() -> None:
    """A larger executor joins the arena after forward: when only it is bound, backward is still right."""
    net = norm_net()
    small = fill(net.simple_bind(ax.cpu(), data=(6, 5)))
    small.forward(True)
    large = net.simple_bind(ax.cpu(), data=(64, 5), shared_exec=small)
    assert large.outputs[0].shape == (64, 2)  # binds, and so grows the arena, without running
    small.backward(HEAD)
    alone = fill(net.simple_bind(ax.cpu(), data=(6, 5)))
    alone.forward(True)
    alone.backward(HEAD)
    same(gradients(alone), gradients(small))


@pytest.mark.parametrize("writer", ["forward of another", "copy_params_from", "update"])
def test_engine_writes_after_forward_are_noticed(writer: str, lender: Any) -> None:
    executor = bind_norm(lender)
    executor.forward(True)
    if writer == "copy_params_from":
        executor.copy_params_from({"fc_bias": draw(4)})
    elif writer == "update":
        from arrayexec.train.optimizer import create, get_updater

        get_updater(create("sgd", learning_rate=0.1))("fc_bias", draw(4), executor.arg_dict["fc_bias"])
    else:
        other = norm_net().simple_bind(
            ax.cpu(), data=(6, 5), shared_exec=executor, shared_arg_names=["data", "fc_weight", "fc_bias"]
        )
        other.arena = executor.arena
        other.forward(True, data=draw(6, 5))
    with pytest.raises(StaleForwardError, match="since the last forward; run forward again before backward"):
        executor.backward(HEAD)
    executor.forward(True)
    executor.backward(HEAD)


def test_writes_by_hand_are_the_users_wish() -> None:
    executor = bind_norm(None)
    executor.forward(True)
    executor.arg_dict["out_weight"][...] = 0
    executor.backward(HEAD)
    assert not executor.grad_dict["fc_weight"].any()


# --- exceptions, re-entrance, threads --------------------------------------------------------------------------------


@register_op
class FailsOnDemand(Op):
    """``out = data``; raises while the first value is negative."""

    examples = [{"data": (2, 2)}]

    def infer(self, s: Any) -> None:
        s.out = s.data

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        if data[0, 0] < 0:
            raise ZeroDivisionError("the body's own words")
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)


def test_exception_in_mid_forward(lender: Any) -> None:
    net = sym.FullyConnected(sym.FailsOnDemand(dense(2), name="trap"), num_hidden=2, name="after")
    executor = net.simple_bind(ax.cpu(), data=(3, 2), shared_exec=lender)
    executor.arg_dict["fc_weight"][...] = np.eye(2)
    with pytest.raises(ZeroDivisionError) as caught:
        executor.forward(True, data=-np.ones((3, 2), np.float32))
    assert caught.value.args == ("the body's own words",)
    (note,) = caught.value.__notes__
    assert "while running forward of FailsOnDemand 'trap' (test_executor.py:" in note
    assert "fc_output  (3, 2)  float32" in note
    with pytest.raises(StaleForwardError, match="the last forward did not finish"):
        executor.backward(np.ones((3, 2), np.float32))
    executor.forward(True, data=np.ones((3, 2), np.float32))
    executor.backward(np.ones((3, 2), np.float32))
    assert np.array_equal(executor.grad_dict["after_bias"], [3, 3])


def test_reentrance_from_a_monitor(lender: Any) -> None:
    executor = bind_norm(lender)
    errors: list[str] = []

    def again(name: str, array: np.ndarray) -> None:
        with pytest.raises(BusyExecutorError) as caught:
            executor.forward(True)
        errors.append(str(caught.value))

    executor.set_monitor_callback(again)
    executor.forward(True)
    assert errors and "cannot run now: the executor of 'out' on cpu(0) is running" in errors[0]
    executor.set_monitor_callback(None)
    executor.forward(True)
    executor.backward(HEAD)


def test_second_thread_is_refused_not_mixed() -> None:
    executor = bind_norm(None)
    started, go = threading.Event(), threading.Event()

    def hold(name: str, array: np.ndarray) -> None:
        started.set()
        assert go.wait(10)

    executor.set_monitor_callback(hold)
    thread = threading.Thread(target=executor.forward, args=(True,))
    thread.start()
    assert started.wait(10)
    with pytest.raises(BusyExecutorError):
        executor.backward(HEAD)
    go.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_refused() -> None:
    executor = bind_norm(None)
    executor.forward(True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            executor.forward(True)
            text = "ran"
        except NotBoundError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "was made before this process was forked" in os.read(read, 1000).decode()


def test_an_executor_does_not_pickle_and_says_what_does() -> None:
    with pytest.raises(TypeError, match=r"send its symbol \(symbol.tojson\(\)\) and its parameters"):
        pickle.dumps(bind_norm(None))


# --- the user's arrays -----------------------------------------------------------------------------------------------


def layouts(array: np.ndarray, kind: str) -> np.ndarray:
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return array


@pytest.mark.parametrize("kind", ["plain", "fortran", "strided"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_arrays_of_any_layout(kind: str, grad_req: str, lender: Any) -> None:
    """Arguments, gradients, states, inputs of forward and head gradients; views of arguments included."""
    net = sym.Reshape(norm_net(), shape=(-1, 4), name="reshaped")
    net = sym.elemwise_add(net, sym.Reshape(sym.Variable("shift"), shape=(-1, 4)), name="sum")
    net = sym.Group([net, sym.BatchNorm(sym.Variable("data"), name="bn2")])
    shapes, outputs, aux = net.infer_shape(data=(6, 5), shift=(6, 2))
    rng = np.random.default_rng(5)
    args = {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in zip(net.list_arguments(), shapes, strict=True)}
    states = {
        n: rng.uniform(0.5, 1, s).astype(np.float32) for n, s in zip(net.list_auxiliary_states(), aux, strict=True)
    }
    heads = [rng.uniform(-1, 1, s).astype(np.float32) for s in outputs]

    def run(kind: str, shared_exec: Any) -> Any:
        held = {n: layouts(a.copy(), kind) for n, a in args.items()}
        grads = {n: layouts(np.ones_like(a), kind) for n, a in args.items()}
        own = {n: layouts(a.copy(), kind) for n, a in states.items()}
        executor = net.bind(ax.cpu(), held, grads, grad_req, own, shared_exec=shared_exec)
        assert all(executor.arg_dict[n] is held[n] for n in held), "the user's arrays are used where they lie"
        executor.forward(True, data=layouts(args["data"], kind))
        executor.backward([layouts(h, kind) for h in heads])
        return executor

    want, got = run("plain", None), run(kind, lender)
    limit = 1e-5 if kind == "strided" else 0  # older NumPys multiply strided matrices in another order
    pairs = [(got.grad_dict[n], g) for n, g in gradients(want).items()]
    pairs += [(got.aux_dict[n], a) for n, a in want.aux_dict.items()]
    for one, other in [*pairs, *zip(got.outputs, want.outputs, strict=True)]:
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)
    assert all(output.flags.c_contiguous for output in got.outputs)


def test_overlapping_arrays(lender: Any) -> None:
    block = np.zeros(40, np.float32)
    net = dense(2)
    data, weight, bias = block[:8].reshape(4, 2), block[4:8].reshape(2, 2), np.zeros(2, np.float32)
    executor = net.bind(ax.cpu(), [data, weight, bias], shared_exec=lender)  # both are only read
    block[:] = np.arange(40)
    assert np.array_equal(executor.forward()[0], data @ weight.T)
    with pytest.raises(BindError, match="'fc_weight' and the gradient of 'data' share memory"):
        net.bind(
            ax.cpu(),
            [data, weight.copy() if False else block[20:24].reshape(2, 2), bias],
            {"data": block[22:30].reshape(4, 2)},
        )
    with pytest.raises(BindError, match="share memory"):
        gradient = np.zeros((2, 2), np.float32)
        net.bind(ax.cpu(), [np.zeros((2, 2), np.float32)] * 2 + [bias], {"data": gradient, "fc_weight": gradient})


def test_head_gradients_may_be_the_outputs_themselves() -> None:
    executor = bind_norm(None)
    output = executor.forward(True)[0]
    want = output.copy()
    executor.backward(output)
    first = gradients(executor)
    executor.forward(True)
    executor.step -= 1  # the same masks again
    executor.forward(True)
    executor.step = 0
    executor.forward(True)
    executor.backward(want)
    same(first, gradients(executor))


def test_outputs_are_never_the_users_arrays() -> None:
    data = sym.Variable("data")
    net = sym.Group([data, sym.Reshape(data, shape=(6,)), sym.identity(data), sym.BlockGrad(data), dense(2)])
    array = draw(2, 3)
    weight, bias = draw(2, 3), draw(2)
    executor = net.bind(
        ax.cpu(), {"data": array, "fc_weight": weight, "fc_bias": bias}, {"data": np.zeros((2, 3), np.float32)}
    )
    outputs = executor.forward(True)
    for output in outputs:
        assert not np.shares_memory(output, array)
    assert all(np.array_equal(o.reshape(2, 3), array) for o in outputs[:4])
    heads = [draw(*o.shape) for o in outputs]
    kept = [h.copy() for h in heads]
    executor.backward(heads)
    assert all(np.array_equal(h, k) for h, k in zip(heads, kept, strict=True))
    want = heads[0] + heads[1].reshape(2, 3) + heads[2] + heads[4] @ weight
    np.testing.assert_allclose(executor.grad_dict["data"], want, rtol=1e-5)


def test_training_and_inference_give_the_same_output_arrays() -> None:
    executor = bind_norm(None)
    one = executor.forward(True)[0]
    other = executor.forward(False)[0]
    assert one.__array_interface__["data"] == other.__array_interface__["data"]


# --- names, shapes, requests -----------------------------------------------------------------------------------------


def test_surface() -> None:
    executor = bind_norm(None)
    assert list(executor.arg_dict) == executor.symbol.list_arguments()
    assert [a.shape for a in executor.arg_arrays] == [a.shape for a in executor.arg_dict.values()]
    assert list(executor.output_dict) == ["out_output"]
    assert executor.aux_arrays[0] is executor.aux_dict["bn_moving_mean"]
    assert "Total" in executor.debug_str()
    stated = executor.memory_plan()
    assert stated["argument"] == sum(a.nbytes for a in executor.arg_arrays)
    assert stated["peak_step"]


def test_flat_segments_in_the_order_of_backward() -> None:
    executor = bind_norm(
        None, grad_req={"fc_weight": "write", "fc_bias": "write", "out_weight": "write", "out_bias": "write"}
    )
    places = {n: g.__array_interface__["data"][0] for n, g in executor.grad_dict.items() if g is not None}
    order = sorted(places, key=places.__getitem__)
    assert order == executor.plan().gradient_order()
    assert order[:2] in (["out_weight", "out_bias"], ["out_bias", "out_weight"])
    assert max(places.values()) - min(places.values()) < 4 * 64 + sum(executor.grad_dict[n].nbytes for n in places)


@register_op
class CountsItsStates(Op):
    """``out = data + state``; the state is the number of states made so far, which ``made`` lists by rows."""

    made: ClassVar[list[int]] = []
    examples = [{"data": (2, 2)}]

    def infer(self, s: Any) -> None:
        s.out = s.data

    def prepare(self, known: Any, context: Any) -> Any:
        self.made.append(known.data[0])
        return len(self.made)

    def forward(self, xp: Any, prepared: Any, data: Any, out: Any) -> None:
        xp.add(data, prepared, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)


def test_a_state_is_made_once_a_node_and_executor() -> None:
    CountsItsStates.made.clear()
    x = sym.Variable("x")
    executor = sym.CountsItsStates(sym.CountsItsStates(sym.tanh(x))).simple_bind(ax.cpu(), x=(2, 3))
    assert CountsItsStates.made == [], "binding allocates, it does not run"
    for is_train in (True, False, True):
        np.testing.assert_array_equal(executor.forward(is_train)[0], np.full((2, 3), 3, np.float32))
    executor.backward(np.ones((2, 3), np.float32))
    executor.reshape(x=(1, 3)).forward(True)
    assert CountsItsStates.made == [2, 2, 1, 1]


@register_op
class AddsOneTakesAway(Op):
    """``out = lhs + 1 - rhs``, in two calls over lhs: wrong if rhs is the same memory."""

    inplace: ClassVar[dict[str, str]] = {"out": "lhs"}
    examples = [{"lhs": (2, 2), "rhs": (2, 2)}]

    def infer(self, s: Any) -> None:
        s.out = s.lhs
        s.lhs = s.rhs = s.out

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:
        xp.add(lhs, 1, out=out)
        xp.subtract(out, rhs, out=out)

    def backward(self, xp: Any, dout: Any, dlhs: Any, drhs: Any) -> None:
        if dlhs is not None:
            xp.copyto(dlhs, dout)
        if drhs is not None:
            xp.negative(dout, out=drhs)


@pytest.mark.parametrize("second", ["the same value", "a view of it", "another"])
def test_in_place_only_over_an_input_that_occurs_once(second: str) -> None:
    x = sym.Variable("x")
    value = sym.sin(x)
    other = {"the same value": value, "a view of it": sym.Reshape(value, shape=(2, 3)), "another": sym.sin(x)}[second]
    net = sym.negative(sym.AddsOneTakesAway(value, other, name="node"))  # its output may lie anywhere
    executor = net.simple_bind(ax.cpu(), grad_req="null", x=(2, 3))
    assert np.array_equal(executor.forward(False, x=np.full((2, 3), 5, np.float32))[0], -np.ones((2, 3)))
    (step,) = [step for step in executor.plan("inference").steps if step.name.startswith("AddsOneTakesAway")]
    offsets = executor.plan("inference").offsets
    places = [offsets[number] for number in (*step.reads[:1], *step.writes)]
    assert (places[0] == places[1]) == (second == "another")


@pytest.mark.parametrize("watched", [False, True])
def test_on_ready_comes_in_order_while_backward_runs(watched: bool) -> None:
    executor = bind_norm(None)
    if watched:
        executor.set_monitor_callback(lambda name, array: None)
    executor.forward(True)
    seen: list[tuple[str, bool]] = []
    executor.grad_dict["data"].fill(np.nan)
    executor.backward(HEAD, on_ready=lambda name: seen.append((name, bool(np.isnan(executor.grad_dict["data"]).any()))))
    assert [name for name, _ in seen] == executor.plan().gradient_order()
    assert seen[0][1] and not seen[-1][1]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda e: e.forward(dat=draw(6, 5)), UnknownNameError, "forward has no argument 'dat'; did you mean 'data'?"),
        (lambda e: e.forward(data=draw(6, 4)), ShapeError, "argument 'data' must be (6, 5), but the array given to forward is (6, 4)"),
        (lambda e: e.forward(data=[1, 2]), BindError, "argument 'data' must be an array, but it is a list"),
        (lambda e: (e.forward(True), e.backward()), BindError, "backward needs out_grads: output 'out_output' is no loss head"),
        (lambda e: (e.forward(True), e.backward(draw(6, 3))), ShapeError, "head gradient of 'out_output' must be (6, 2), but it is (6, 3)"),
        (lambda e: (e.forward(True), e.backward({"nout": HEAD})), UnknownNameError, "there is no output 'nout'"),
        (lambda e: (e.forward(True), e.backward([HEAD, HEAD])), BindError, "2 head gradients for 1 outputs"),
        (lambda e: e.copy_params_from({"qq": draw(2)}), UnknownNameError, "there is no argument 'qq'"),
        (lambda e: e.copy_params_from({"fc_bias": draw(5)}), ShapeError, "argument 'fc_bias' must be (4,), but the array given is (5,)"),
        (lambda e: e.copy_params_from({}, {"bn_mean": draw(4)}), UnknownNameError, "there is no auxiliary state 'bn_mean'"),
        (lambda e: e.reshape(data=(9, 5)), ShapeError, "reshape: 'data' grows from (6, 5) to (9, 5); give allow_up_sizing=True"),
        (lambda e: e.reshape(allow_up_sizing=True, data=(6, 7)), ShapeError, "reshape: 'fc_weight' changes from (4, 5) to (4, 7)"),
    ],
)  # fmt: skip
def test_errors_of_executors(call: Any, error: type[Exception], text: str) -> None:
    executor = bind_norm(None)
    with pytest.raises(error) as caught:
        call(executor)
    assert text in str(caught.value)
    assert isinstance(caught.value, ax.ArrayExecError)
    executor.forward(True)
    executor.backward(HEAD)  # nothing is lost


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"args": {"data": draw(4, 3), "fc_weight": draw(2, 3)}}, BindError, "bind: 'fc_bias' is missing in args"),
        ({"args": [draw(4, 3), draw(2, 3)]}, BindError, "bind: args: 2 items for 3 names: data, fc_weight, fc_bias"),
        ({"args": [draw(4, 3), draw(2, 4), draw(2)]}, ShapeError, "weight 'fc_weight' must be (2, 3), but it is (2, 4) (differs in dim 1)"),
        ({"args": [draw(4, 3), draw(2, 3).astype(np.float64), draw(2)]}, TypeInferenceError, "must be float32, but it is float64"),
        ({"args": [draw(4, 3), draw(2, 3), draw(2)], "grad_req": "bogus", "args_grad": [None] * 3}, BindError, "grad_req of 'data' must be write, add or null, but it is 'bogus'"),
        ({"args": [draw(4, 3), draw(2, 3), draw(2)], "grad_req": {"wait": "add"}}, UnknownNameError, "grad_req: there is no argument 'wait'"),
        ({"args": [draw(4, 3), draw(2, 3), draw(2)], "args_grad": {"data": draw(3, 3)}}, ShapeError, "the gradient array of 'data' must be (4, 3), but it is (3, 3)"),
        ({"args": [draw(4, 3), draw(2, 3), [1.0, 2.0]]}, BindError, "argument 'fc_bias' must be an array of cpu(0), but it is a list"),
        ({"args": [draw(4, 3), draw(2, 3), draw(2)], "group2ctx": {"dev1": 1}}, BindError, "group2ctx must give a context for 'dev1', but it gives 1"),
    ],
)  # fmt: skip
def test_errors_of_bind(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        dense(2).bind(ax.cpu(), **arguments)
    assert text in str(caught.value)


def test_errors_of_simple_bind() -> None:
    net = dense(2)
    with pytest.raises(ShapeError, match="simple_bind: the shapes given do not say the shape of 'data'"):
        net.simple_bind(ax.cpu())
    with pytest.raises(UnknownNameError, match="simple_bind: there is no argument 'dta'; did you mean 'data'?"):
        net.simple_bind(ax.cpu(), dta=(2, 3))
    with pytest.raises(BindError, match="simple_bind: 'data' must be a shape"):
        net.simple_bind(ax.cpu(), data=np.zeros((2, 3)))
    with pytest.raises(BindError, match="'fc_weight' must be dense"):
        net.simple_bind(ax.cpu(), stype_dict={"fc_weight": "row_sparse"}, data=(2, 3))
    other = dense(2, "other").simple_bind(ax.cpu(), data=(2, 3))
    with pytest.raises(BindError, match="'fc_weight' is to be shared, but the executor of 'other' on cpu.0. has none"):
        net.simple_bind(ax.cpu(), shared_exec=other, shared_arg_names=["fc_weight"], data=(2, 3))
    wide = dense(5).simple_bind(ax.cpu(), data=(2, 3))
    with pytest.raises(BindError, match=r"'fc_weight' must be \(2, 3\) float32, but .* holds \(5, 3\) float32"):
        net.simple_bind(ax.cpu(), shared_exec=wide, shared_arg_names=["fc_weight"], data=(2, 3))


def test_reshape_shares_arrays() -> None:
    executor = bind_norm(None)
    small = executor.reshape(data=(3, 5))
    assert small.arg_dict["fc_weight"] is executor.arg_dict["fc_weight"]
    assert small.aux_dict["bn_moving_mean"] is executor.aux_dict["bn_moving_mean"]
    assert small.arg_dict["data"].base is not None and np.shares_memory(
        small.arg_dict["data"], executor.arg_dict["data"]
    )
    output = small.forward()[0]
    assert np.array_equal(output, executor.forward()[0][:3]) or np.allclose(
        output, executor.forward()[0][:3], atol=1e-6
    )
    large = executor.reshape(allow_up_sizing=True, data=(60, 5))
    assert large.forward(data=draw(60, 5))[0].shape == (60, 2)
    assert large.arena is executor.arena
    wider = executor.reshape(partial_shaping=True, allow_up_sizing=True, data=(6, 7))
    assert wider.arg_dict["fc_weight"].shape == (4, 7)


def test_simple_bind_shares_buffers_by_name() -> None:
    buffers: dict[str, np.ndarray] = {}
    net = norm_net()
    large = net.simple_bind(ax.cpu(), data=(8, 5), shared_data_arrays=buffers)
    assert buffers["data"].shape == (8, 5)
    parameters = [n for n in net.list_arguments() if n != "data"]
    small = net.simple_bind(
        ax.cpu(), data=(3, 5), shared_data_arrays=buffers, shared_exec=large, shared_arg_names=parameters
    )
    assert np.shares_memory(small.arg_dict["data"], large.arg_dict["data"])
    fill(large)
    values = draw(3, 5)
    got = small.forward(data=values)[0].copy()
    want = large.forward(data=np.concatenate([values, values, values])[:8])[0][:3]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    huge = net.simple_bind(
        ax.cpu(), data=(50, 5), shared_data_arrays=buffers, shared_exec=large, shared_arg_names=parameters
    )
    assert huge.arg_dict["data"].shape == (50, 5)
    assert np.shares_memory(large.arg_dict["data"], huge.arg_dict["data"]), "the old view is bound to the new bytes"
    large.forward(True, data=draw(8, 5))
    huge_data = draw(50, 5)
    huge.forward(True, data=huge_data)
    with pytest.raises(StaleForwardError):
        large.backward(np.zeros((8, 2), np.float32))


def test_types() -> None:
    for kind in ("float32", "float64"):
        executor = dense(2).simple_bind(ax.cpu(), type_dict={"data": kind}, data=(3, 4))
        assert {a.dtype.name for a in executor.arg_arrays} == {kind}
        assert executor.forward()[0].dtype == kind
    executor = dense(2).simple_bind(ax.cpu(), data=(3, 4))
    executor.forward(data=np.ones((3, 4), np.int64))
    assert np.array_equal(executor.arg_dict["data"], np.ones((3, 4)))


def test_zero_sized_batch() -> None:
    executor = fill(norm_net().simple_bind(ax.cpu(), data=(1, 5)))
    net = dense(2)
    empty = net.bind(
        ax.cpu(), [np.zeros((0, 5), np.float32), draw(2, 5), draw(2)], [None, np.ones((2, 5), np.float32), None]
    )
    assert empty.forward(True)[0].shape == (0, 2)
    empty.backward(np.zeros((0, 2), np.float32))
    assert not empty.grad_dict["fc_weight"].any()
    assert executor.forward()[0].shape == (1, 2)


# --- random streams --------------------------------------------------------------------------------------------------


def masks(executor: Any, rows: slice | None = None) -> np.ndarray:
    return (executor.forward(True)[0] != 0)[rows or slice(None)]


def test_masks_follow_seed_step_and_row() -> None:
    net = sym.Dropout(sym.Variable("data"), p=0.5, name="drop")
    ones = np.ones((8, 40), np.float32)

    def run(rows: slice, step: int, seed: int = 0) -> np.ndarray:
        ax.random.seed(seed)
        executor = net.bind(ax.cpu(), [ones[rows].copy()])
        executor.step, executor.first_row = step, rows.start
        return executor.forward(True)[0].copy()

    try:
        whole = run(slice(0, 8), 3)
        assert 0.3 < (whole != 0).mean() < 0.7
        assert np.array_equal(np.concatenate([run(slice(0, 5), 3), run(slice(5, 8), 3)]), whole)
        assert not np.array_equal(run(slice(0, 8), 4), whole)
        assert not np.array_equal(run(slice(0, 8), 3, seed=1), whole)
        assert np.array_equal(run(slice(0, 8), 3), whole)
    finally:
        ax.random.seed(0)


def test_training_forward_advances_the_step() -> None:
    executor = bind_norm(None)
    assert executor.step == 0
    executor.forward(False)
    assert executor.step == 0
    executor.forward(True)
    executor.backward(HEAD)
    executor.backward(HEAD)
    assert executor.step == 1


# --- monitors --------------------------------------------------------------------------------------------------------


def test_monitor_sees_true_values_in_order(lender: Any) -> None:
    """Values are reported before their bytes are used again: relu works in place on what batch norm wrote."""
    executor = bind_norm(lender)
    seen: dict[str, np.ndarray] = {}
    executor.set_monitor_callback(lambda name, array: seen.update({name: array}), monitor_all=True)
    executor.forward(True)
    executor.backward(HEAD)
    order = list(seen)
    assert order[:1] == ["data"]
    outputs = [n for n in order if n.endswith("_output") and "backward" not in n]
    assert outputs == ["fc_output", "drop_output", "bn_output", "act_output", "out_output"]
    args = executor.arg_dict
    np.testing.assert_allclose(
        seen["fc_output"], args["data"] @ args["fc_weight"].T + args["fc_bias"], rtol=1e-5, atol=1e-6
    )
    assert np.array_equal(seen["act_output"], np.maximum(seen["bn_output"], 0))
    assert (seen["bn_output"] < 0).any()
    np.testing.assert_allclose(seen["out_backward_output0"], HEAD @ args["out_weight"], rtol=1e-5, atol=1e-6)
    assert np.array_equal(seen["act_backward_output"], seen["out_backward_output0"] * (seen["bn_output"] > 0))
    assert np.array_equal(seen["fc_backward_output1"], executor.grad_dict["fc_weight"])
    plain = bind_norm(None)
    plain.forward(True)
    plain.backward(HEAD)
    same(gradients(plain), gradients(executor))


def test_monitor_sees_gradients_that_are_passed_on() -> None:
    """Additions and reshapes have no step of their own in backward; their gradients are reported all the same."""
    data = sym.Variable("data")
    net = sym.elemwise_add(sym.Reshape(data, shape=(-1, 2), name="flat"), sym.Variable("shift"), name="sum")
    net = sym.tanh(net, name="act")
    rng = np.random.default_rng(4)
    args = {"data": rng.random((2, 4), np.float32), "shift": rng.random((4, 2), np.float32)}
    executor = net.bind(ax.cpu(), args, {n: np.zeros_like(a) for n, a in args.items()})
    seen: dict[str, np.ndarray] = {}
    executor.set_monitor_callback(lambda name, array: seen.update({name: array}))
    out = executor.forward(True)[0].copy()
    head = rng.random((4, 2), np.float32)
    executor.backward(head)
    want = head * (1 - out * out)
    backward = [n for n in seen if "backward" in n]
    assert backward == ["act_backward_output", "sum_backward_output0", "sum_backward_output1", "flat_backward_output"]
    for name in backward:
        np.testing.assert_allclose(seen[name].reshape(4, 2), want, rtol=1e-6)
    assert seen["flat_backward_output"].shape == (2, 4)


def test_monitor_exceptions_propagate(lender: Any) -> None:
    executor = bind_norm(lender)

    def bad(name: str, array: np.ndarray) -> None:
        raise KeyboardInterrupt

    executor.set_monitor_callback(bad)
    with pytest.raises(KeyboardInterrupt):
        executor.forward(True)
    executor.set_monitor_callback(None)
    executor.forward(True)
    executor.backward(HEAD)


def test_same_name_twice_is_one_argument() -> None:
    net = sym.Variable("a") * sym.Variable("a")
    executor = net.bind(ax.cpu(), {"a": np.array([3.0], np.float32)}, {"a": np.zeros(1, np.float32)})
    assert executor.forward(True)[0] == 9
    executor.backward(np.ones(1, np.float32))
    assert executor.grad_dict["a"] == 6


def test_two_nodes_of_one_name_draw_different_numbers() -> None:
    data = sym.Variable("data")
    net = sym.Group([sym.Dropout(data, p=0.5, name="d"), sym.Dropout(data, p=0.5, name="d")])
    one, other = net.bind(ax.cpu(), [np.ones((8, 40), np.float32)]).forward(True)
    assert not np.array_equal(one, other)


def test_monitor_sees_each_gradient_once() -> None:
    """A gradient that lies in the user's array, where the sum comes later, is told as the operator has made it."""
    x = sym.Variable("x")
    net = sym.elemwise_add(sym.tanh(x, name="t"), sym.sigmoid(x, name="s"), name="both")
    executor = net.simple_bind(ax.cpu(), x=(3,))
    seen: list[tuple[str, np.ndarray]] = []
    executor.set_monitor_callback(lambda name, array: seen.append((name, array)))
    executor.forward(True)
    executor.backward(np.ones(3, np.float32))
    own = {name: array for name, array in seen if name in ("t_backward_output", "s_backward_output")}
    assert len(own) == sum(name in own for name, _ in seen) == 2
    assert np.array_equal(own["t_backward_output"], np.ones(3)) and np.array_equal(own["s_backward_output"], np.full(3, 0.25))
    assert np.array_equal(executor.grad_dict["x"], np.full(3, 1.25))
