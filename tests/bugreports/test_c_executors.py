"""Reports about executors that were bound by hand: what programs met, and what happens here. Numbers are the reports'."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import BindError, CompositionError
from tests.ops.runs import run
from tests.parallel.networks import mlp
from tests.strict_device import strict

sym = ax.sym
RNG = np.random.default_rng(11)
X = RNG.normal(size=(8, 6)).astype(np.float32)
Y = (np.arange(8) % 3).astype(np.float32)


def bound(net: Any, rows: int = 8, **options: Any) -> Any:
    executor = net.simple_bind(ax.cpu(), data=(rows, 6), **options)
    draw = np.random.default_rng(3)
    for name, array in executor.arg_dict.items():
        array[...] = 1 if name.endswith("gamma") else draw.normal(size=array.shape)
    for name, array in executor.aux_dict.items():
        array[...] = name.endswith("var")
    return executor


def trained(executor: Any, times: int = 1) -> dict[str, Any]:
    for _ in range(times):
        executor.forward(is_train=True, data=X[: len(executor.arg_dict["data"])])
        executor.backward()
    return {name: array.copy() for name, array in executor.grad_dict.items() if array is not None}


# --- one name twice -------------------------------------------------------------------------------------------------


def test_bug_10782_two_arrays_for_one_name() -> None:
    net = sym.Variable("a") * sym.Variable("a")
    assert net.list_arguments() == ["a"]
    with pytest.raises(BindError, match="args: 2 items for 1 names: a"):
        net.bind(ax.cpu(), [np.array([2.0]), np.array([5.0])])
    executor = net.bind(ax.cpu(), {"a": np.array([3.0])}, {"a": np.zeros(1)})
    executor.forward(is_train=True)
    executor.backward([np.ones(1)])
    assert (executor.outputs[0].item(), executor.grad_dict["a"].item()) == (9.0, 6.0)


def test_bug_2036_variables_of_one_name_must_agree() -> None:
    one, two = (sym.Variable("embed_weight", shape=(rows, 2)) for rows in (5, 7))
    both = [sym.Embedding(sym.Variable("data"), weight, input_dim=5, output_dim=2) for weight in (one, two)]
    with pytest.raises(CompositionError, match="two variables are named 'embed_weight' but disagree in shape"):
        sym.Group(both).list_arguments()
    alike = [sym.FullyConnected(sym.Variable("data"), sym.Variable("w_weight"), no_bias=True, num_hidden=3) for _ in range(2)]
    model = ax.model.FeedForward(sym.SoftmaxOutput(alike[0] + alike[1], name="softmax"), num_epoch=1)
    model.fit(X, Y)
    assert set(model.arg_params) == {"w_weight"}


# --- gradients ------------------------------------------------------------------------------------------------------


def test_bug_16969_18659_gradients_stay_until_they_are_zeroed() -> None:
    once = trained(bound(mlp()))
    executor = bound(mlp(), grad_req="add")
    for name, gradient in trained(executor, 3).items():
        np.testing.assert_allclose(gradient, 3 * once[name], 1e-5, 1e-6, err_msg=name)
    for gradient in executor.grad_arrays:
        gradient[...] = 0
    for name, gradient in trained(executor).items():
        np.testing.assert_array_equal(gradient, once[name])


@pytest.mark.parametrize("fix_gamma", [True, False])
def test_bug_18499_accumulated_gradients_of_batch_norm(fix_gamma: bool) -> None:
    net = sym.BatchNorm(sym.Variable("data"), name="bn", fix_gamma=fix_gamma)
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    once, thrice = trained(bound(net)), trained(bound(net, grad_req="add"), 3)
    assert once["bn_gamma"].any() != fix_gamma
    for name, gradient in thrice.items():
        np.testing.assert_allclose(gradient, 3 * once[name], 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("uses", [2, 5, 9])
def test_bug_17989_16708_the_gradient_of_a_weight_that_is_used_many_times(uses: int) -> None:
    """Sums of several paths must be added to what was there, once and whole."""
    weight, net = sym.Variable("w"), sym.Variable("data")
    for number in range(uses):
        net = sym.FullyConnected(net, weight, num_hidden=6, no_bias=True, name=f"fc{number}")
    value = np.eye(6) + 0.1 * RNG.normal(size=(6, 6))
    wanted, left = np.zeros((6, 6)), [X.astype(np.float64)]
    for _ in range(uses):
        left.append(left[-1] @ value.T)
    heads = np.ones((8, 6))
    head = heads
    for values in left[-2::-1]:
        wanted += head.T @ values
        head = head @ value
    start = RNG.normal(size=(6, 6))
    executor = net.bind(
        ax.cpu(), {"data": left[0], "w": value}, {"w": start.copy()}, {"data": "null", "w": "add"}
    )  # fmt: skip
    for times in (1, 2):
        executor.forward(is_train=True)
        executor.backward([heads])
        np.testing.assert_allclose(executor.grad_dict["w"], start + times * wanted, 1e-10)


def test_bug_18539_outputs_given_as_head_gradients_are_head_gradients() -> None:
    """They are multiplied with the derivatives, as `Executor.backward` says in its own words."""
    net = sym.square(sym.Variable("data"))
    executor = net.bind(ax.cpu(), {"data": X}, {"data": np.zeros_like(X)})
    (out,) = executor.forward(is_train=True)
    executor.backward([out])
    np.testing.assert_allclose(executor.grad_dict["data"], 2 * X * X**2, 1e-5)
    executor.backward([np.ones_like(X)])
    np.testing.assert_allclose(executor.grad_dict["data"], 2 * X, 1e-5)
    assert "never the outputs" in ax.Executor.backward.__doc__


def test_bug_1388_7879_heads_that_are_no_loss() -> None:
    hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    loss = sym.SoftmaxOutput(hidden, name="softmax")
    wanted = trained(bound(loss))
    for name, gradient in trained(bound(sym.Group([sym.BlockGrad(hidden), loss]))).items():
        np.testing.assert_array_equal(gradient, wanted[name])
    executor = bound(sym.Group([hidden, loss]))
    executor.forward(is_train=True, data=X)
    with pytest.raises(BindError, match="backward needs out_grads: output 'fc_output' is no loss head"):
        executor.backward()
    executor.backward([np.zeros((8, 3), np.float32), np.ones((8, 3), np.float32)])
    np.testing.assert_allclose(executor.grad_dict["fc_weight"], wanted["fc_weight"], 1e-5, 1e-6)


# --- batch norm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BatchNorm", "CuDNNBatchNorm", "BatchNorm_v1"])
def test_bug_2617_batch_norm_is_the_same_everywhere(name: str) -> None:
    """Both ways that CuPy's arrays go too, of every spelling: with the biased variance, as the page of operators says."""
    data = RNG.normal(size=(4, 3, 2, 2)).astype(np.float32)
    found = []
    for context in (ax.cpu(), strict(0)):
        net = getattr(sym, name)(sym.Variable("data"), name="bn", fix_gamma=False, momentum=0.5, eps=1e-3)
        executor = net.simple_bind(context, data=data.shape)
        for key, array in {**executor.arg_dict, **executor.aux_dict}.items():
            ax.copyto(array, data if key == "data" else np.full(3, key.endswith(("gamma", "var")), np.float32))
        executor.forward(is_train=True)
        head = np.random.default_rng(2).normal(size=data.shape).astype(np.float32)
        heads = context.zeros(data.shape, np.float32, "input")
        ax.copyto(heads, head)
        executor.backward([heads])
        arrays = [executor.outputs[0], executor.grad_dict["data"], *executor.aux_dict.values()]
        found.append([ax.asnumpy(array).copy() for array in arrays])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, 1e-6, 1e-6)
    mean, variance = data.mean((0, 2, 3)), data.var((0, 2, 3))  # biased
    middle, spread = mean[:, None, None], np.sqrt(variance + 1e-3)[:, None, None]
    np.testing.assert_allclose(found[0][0], (data - middle) / spread, 1e-4, 1e-5)
    np.testing.assert_allclose(found[0][2], 0.5 * mean, 1e-5, 1e-6)
    np.testing.assert_allclose(found[0][3], 0.5 + 0.5 * variance, 1e-5)


def test_bug_18751_running_statistics_of_ones_in_one_executor() -> None:
    net = sym.BatchNorm(sym.Variable("data"), name="bn", momentum=0.9)
    executor = bound(net, grad_req="null")
    for step in range(1, 101):
        executor.forward(is_train=True, data=np.ones((8, 6)))
        if step in (1, 10):
            np.testing.assert_allclose(executor.aux_dict["bn_moving_mean"], 1 - 0.9**step, 1e-4)
            np.testing.assert_allclose(executor.aux_dict["bn_moving_var"], 0.9**step, 1e-4)
    np.testing.assert_allclose(executor.aux_dict["bn_moving_mean"], 1, atol=1e-4)
    np.testing.assert_allclose(executor.aux_dict["bn_moving_var"], 0, atol=1e-4)


def test_bug_9624_3037_3424_other_readers_see_the_gamma_that_counts(tmp_path: Any) -> None:
    """What is saved of a fixed gamma is the 1 that the net computes with, so a reader without fix_gamma finds the same."""
    net = sym.BatchNorm(sym.Variable("data"), name="bn", fix_gamma=True)
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    model = ax.model.FeedForward(net, num_epoch=5, wd=0.5, learning_rate=0.1, initializer=ax.init.Xavier())
    model.fit(X, Y)
    model.save(str(tmp_path / "m"))
    saved = ax.nd.load(str(tmp_path / "m-0005.params"))
    np.testing.assert_array_equal(saved["arg:bn_gamma"], np.ones(6))
    values = {name.split(":")[1]: array for name, array in saved.items()}
    scale = values["bn_gamma"] / np.sqrt(values["bn_moving_var"] + 1e-3)
    hidden = ((X - values["bn_moving_mean"]) * scale + values["bn_beta"]) @ values["fc_weight"].T + values["fc_bias"]
    powers = np.exp(hidden - hidden.max(1, keepdims=True))
    np.testing.assert_allclose(model.predict(X), powers / powers.sum(1, keepdims=True), 1e-4, 1e-5)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_bug_2232_1952_1474_executors_of_a_thousand_sizes_share_one_block() -> None:
    executor = bound(mlp(), 700)
    before, sizes = executor.arena.nbytes, np.random.default_rng(4).integers(600, 700, 1000)
    gone: list[weakref.ref[Any]] = []
    for rows in map(int, sizes):
        small = executor.reshape(data=(rows, 6), softmax_label=(rows,))
        assert small.arena is executor.arena
        gone.append(weakref.ref(small))
    (out,) = small.forward(data=np.ones((rows, 6)))
    assert out.shape == (rows, 3)
    assert executor.arena.nbytes == before
    del small, out
    gc.collect()
    assert not any(ref() for ref in gone)


def test_bug_5983_6737_9451_arrays_go_with_their_executor() -> None:
    executor = bound(mlp())
    trained(executor)
    held = [weakref.ref(array) for array in (*executor.arg_arrays, *executor.grad_dict.values())]
    held += [weakref.ref(block) for block in executor.arena.blocks.values()]
    gc.collect()
    gc.disable()
    try:
        del executor
        assert not any(ref() is not None for ref in held)
    finally:
        gc.enable()


def test_bug_10692_a_monitor_keeps_no_arrays() -> None:
    seen: list[weakref.ref[Any]] = []
    for _ in range(20):
        executor = bound(mlp())
        executor.set_monitor_callback(lambda name, array: seen.append(weakref.ref(array)), True)
        trained(executor)
    del executor
    gc.collect()
    assert len(seen) > 100
    assert not any(ref() is not None for ref in seen)


@pytest.mark.parametrize("late", [False, True])
def test_bug_5691_5752_a_monitor_that_comes_after_bind_sees_every_output(late: bool) -> None:
    executor, monitor = bound(mlp()), ax.mon.Monitor(1, lambda array: float(np.abs(array).max()))
    if late:
        trained(executor)
    monitor.install(executor)
    for _ in range(2):
        monitor.tic()
        executor.forward(is_train=True, data=X)
        found = {name: value for _, name, value in monitor.toc()}
        wanted = {"fc1_output", "relu1_output", "fc2_output", "softmax_output"}
        assert wanted <= found.keys()
        assert float(found["softmax_output"]) == pytest.approx(executor.outputs[0].max())


# --- losses ---------------------------------------------------------------------------------------------------------


def test_bug_5981_6202_of_probability_labels_only_the_scale_counts() -> None:
    """As in MXNet, and as the operator's own documents say."""
    data, label = RNG.normal(size=(4, 3)), np.array([[1, 0, 0], [0.2, 0.3, 0.5], [-1, -1, -1], [0, 0, 1]])
    powers = np.exp(data - data.max(1, keepdims=True))
    wanted = 2 * (powers / powers.sum(1, keepdims=True) - label)
    for options in ({}, {"normalization": "batch"}, {"normalization": "valid"}, {"use_ignore": True, "ignore_label": -1}):
        found = run("SoftmaxOutput", {"data": data, "label": label}, [None], grad_scale=2.0, **options)
        np.testing.assert_allclose(found.gradients["data"], wanted, 1e-6)
    assert "holds probabilities" in sym.SoftmaxOutput.__doc__


def test_bug_4761_2994_losses_that_divide_want_a_scale_of_one(caplog: pytest.LogCaptureFixture) -> None:
    """Modules divide by the rows of a batch; a loss that does so too would divide twice, and a word is said about it."""
    found = []
    for options, rescale in (({}, None), ({"normalization": "batch"}, 1.0), ({"normalization": "valid"}, 1.0)):
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
        module = ax.mod.Module(sym.SoftmaxOutput(net, name="softmax", **options))
        module.bind([("data", (8, 6))], [("softmax_label", (8,))])
        module.init_params(ax.init.One())
        module.init_optimizer(optimizer_params={"learning_rate": 1.0, **({} if rescale is None else {"rescale_grad": rescale})})
        module.forward_backward(ax.io.DataBatch([X], [Y]))
        module.update()
        found.append(module.get_params()[0])
        assert not caplog.records
    for other in found[1:]:
        for name, array in other.items():
            np.testing.assert_allclose(array, found[0][name], 1e-5, 1e-6)
    module.init_optimizer(force_init=True)  # the default divides by 8 once more
    assert module.optimizer.rescale_grad == 1 / 8
    (record,) = caplog.records
    assert "'softmax' has normalization='valid'" in record.getMessage()
    assert "rescale_grad=1" in record.getMessage()
