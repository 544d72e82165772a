"""Module: what it computes on one and several devices, with every option of bind, parameters and optimizer."""

from __future__ import annotations

import logging
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import CheckpointError, ShapeError, UnknownNameError
from tests.parallel.networks import mlp

sym = ax.sym
RNG = np.random.default_rng(7)
X = RNG.normal(size=(24, 6)).astype(np.float32)
Y = (X[:, :3].argmax(axis=1)).astype(np.float32)
CPUS = [ax.cpu(i) for i in range(3)]


def batches(size: int, pad: bool = False) -> Any:
    return ax.io.NDArrayIter(X, Y, size, last_batch_handle="pad" if pad else "discard")


def values(symbol: Any, **shapes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reproducible parameters and states."""
    rng = np.random.default_rng(3)
    arguments, _, aux = symbol.infer_shape(**shapes)
    names = symbol.list_arguments()
    args = {
        n: rng.normal(0, 0.5, s).astype(np.float32)
        for n, s in zip(names, arguments, strict=True)
        if n not in shapes and not n.endswith("label")
    }
    states = {n: np.full(s, n.endswith("var"), np.float32) for n, s in zip(symbol.list_auxiliary_states(), aux, strict=True)}
    return args, states


def ready(symbol: Any = None, devices: Any = None, rows: int = 8, **options: Any) -> Any:
    symbol = mlp() if symbol is None else symbol
    bind = {k: options.pop(k) for k in ("inputs_need_grad", "grad_req", "for_training", "shared_module") if k in options}
    module = ax.mod.Module(symbol, context=devices or ax.cpu(), **options)
    module.bind([("data", (rows, 6))], [("softmax_label", (rows,))], **bind)
    module.init_params(None, *values(symbol, data=(rows, 6)))
    return module


def batch(start: int = 0, rows: int = 8) -> Any:
    return ax.io.DataBatch([X[start : start + rows]], [Y[start : start + rows]])


def assert_same(one: Any, two: Any, rtol: float = 1e-5) -> None:
    for mine, other in zip(one, two, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            np.testing.assert_allclose(mine[name], other[name], rtol, 1e-6, err_msg=name)


# --- several devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loads", [[1, 1, 1], [1, 2, 5]])
def test_devices_train_as_one(optimizer: str, loads: list[int]) -> None:
    found = []
    for devices, work in ((ax.cpu(), None), (CPUS, loads)):
        module = ready(devices=devices, work_load_list=work)
        module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.1, "wd": 0.01})
        for start in (0, 8, 16, 0):
            module.forward_backward(batch(start))
            module.update()
        assert set(module.optimizer.update_counts.values()) == {4}  # once a parameter, whatever the devices
        found.append((*module.get_params(), module.get_outputs()[0]))
    assert_same(found[0][:2], found[1][:2])
    np.testing.assert_allclose(found[0][2], found[1][2], 1e-4, 1e-6)


def test_kvstore_none_sums_over_devices_too() -> None:
    found = []
    for store in (None, "device"):
        module = ready(devices=CPUS)
        module.init_optimizer(kvstore=store, optimizer_params={"learning_rate": 0.1})
        module.forward_backward(batch())
        module.update()
        found.append(module.get_params())
    assert_same(*found, rtol=0)


@pytest.mark.parametrize("rows", [1, 2, 5, 24])
def test_any_number_of_rows(rows: int) -> None:
    one, several = ready(), ready(devices=CPUS)
    for module in (one, several):
        module.forward(batch(0, rows), is_train=False)
    wanted = one.get_outputs()[0]
    assert wanted.shape == (rows, 3)
    np.testing.assert_allclose(several.get_outputs()[0], wanted, 1e-6)
    assert several.data_shapes[0].shape == (rows, 6)
    assert several.output_shapes == [("softmax_output", (rows, 3))]
    pieces = several.get_outputs(merge_multi_context=False)
    assert [len(piece) for piece in pieces[0]] == [len(p) for p in np.array_split(wanted, min(rows, 3))]


def test_outputs_are_copies_unless_views_are_asked_for() -> None:
    module = ready()
    module.forward(batch(), is_train=False)
    kept, view = module.get_outputs()[0], module.get_outputs(copy=False)[0]
    before = kept.copy()
    module.forward(batch(8), is_train=False)
    np.testing.assert_array_equal(kept, before)
    assert not np.array_equal(view, before)


def test_work_of_groups_on_other_contexts() -> None:
    with ax.AttrScope(ctx_group="first"):
        hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1")
    with ax.AttrScope(ctx_group="second"):
        net = sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")
    found = []
    for devices, groups in (
        (ax.cpu(), None),
        (ax.cpu(), {"first": ax.cpu(1), "second": ax.cpu(2)}),
        ([ax.cpu(0), ax.cpu(1)], [{"first": ax.cpu(0), "second": ax.cpu(2)}, {"first": ax.cpu(1), "second": ax.cpu(3)}]),
    ):
        module = ready(net, devices, group2ctxs=groups)
        module.init_optimizer(optimizer_params={"learning_rate": 0.1})
        for start in (0, 8):
            module.forward_backward(batch(start))
            module.update()
        found.append(module.get_params())
    assert_same(found[0], found[1], rtol=0)
    assert_same(found[0], found[2])


# --- padding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_padded_rows_count_nowhere(devices: Any) -> None:
    module = ready(devices=devices)
    whole = module.predict(X)
    accuracy = float((whole.argmax(axis=1) == Y).mean())
    padded = batches(7, pad=True)
    np.testing.assert_allclose(module.predict(padded), whole, 1e-6)
    assert module.score(padded, "acc") == [("accuracy", pytest.approx(accuracy))]
    counted = module.score(padded, "acc", drop_pad=False)[0][1]
    repeated = np.concatenate([whole, whole[:4]]).argmax(axis=1) == np.concatenate([Y, Y[:4]])
    assert counted == pytest.approx(float(repeated.mean()))
    sizes = [(outputs[0].shape[0], number, one.pad) for outputs, number, one in module.iter_predict(padded)]
    assert sizes == [(7, 0, 0), (7, 1, 0), (7, 2, 0), (3, 3, 4)]
    assert [len(outputs[0]) for outputs in module.predict(padded, merge_batches=False)] == [7, 7, 7, 3]


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_padded_rows_do_not_count_in_the_metric_of_training(devices: Any) -> None:
    module = ready(devices=devices)
    metric = ax.metric.create("acc")
    for one in batches(7, pad=True):
        module.forward(one, is_train=True)
        module.update_metric(metric, one.label)
    assert metric.num_inst == 24
    assert metric.get()[1] == pytest.approx(float((module.predict(X).argmax(axis=1) == Y).mean()))


def test_a_batch_without_pad_or_label_is_taken() -> None:
    Batch = namedtuple("Batch", ["data"])
    module = ready()
    module.forward(Batch([X[:5]]), is_train=False)
    np.testing.assert_allclose(module.get_outputs()[0], module.predict(X)[:5], 1e-6)


# --- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_gradients_of_inputs(devices: Any) -> None:
    net = sym.SoftmaxOutput(
        sym.FullyConnected(sym.Variable("b") + 2 * sym.Variable("a"), num_hidden=3, no_bias=True, name="fc"), name="softmax"
    )
    module = ax.mod.Module(net, ("a", "b"), context=devices)
    module.bind([("b", (8, 6)), ("a", (8, 6))], [("softmax_label", (8,))], inputs_need_grad=True)
    weight = RNG.normal(size=(3, 6)).astype(np.float32)
    module.init_params(None, {"fc_weight": weight})
    module.forward_backward(ax.io.DataBatch([X[:8], X[8:16]], [Y[:8]]))  # in the order of data_shapes
    probability = module.get_outputs()[0]
    logits = (X[:8] + 2 * X[8:16]) @ weight.T
    np.testing.assert_allclose(probability, np.exp(logits) / np.exp(logits).sum(1, keepdims=True), 1e-4, 1e-6)
    wanted = (probability - np.eye(3, dtype=np.float32)[Y[:8].astype(int)]) @ weight
    for found, factor in zip(module.get_input_grads(), (2, 1), strict=True):  # in the order of data_names
        np.testing.assert_allclose(found, factor * wanted, 1e-4, 1e-5)
    parts = module.get_input_grads(merge_multi_context=False)[0]
    np.testing.assert_array_equal(np.concatenate(parts), module.get_input_grads()[0])


def test_head_gradients_are_cut_like_the_batch() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, no_bias=True, name="fc")
    weight, head = RNG.normal(size=(4, 6)).astype(np.float32), RNG.normal(size=(8, 4)).astype(np.float32)
    module = ax.mod.Module(net, label_names=None, context=CPUS)
    module.bind([("data", (8, 6))], inputs_need_grad=True)
    module.init_params(None, {"fc_weight": weight})
    module.forward(ax.io.DataBatch([X[:8]]), is_train=True)
    module.backward([head])
    np.testing.assert_allclose(module.get_input_grads()[0], head @ weight, 1e-4, 1e-5)


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_accumulation_is_one_large_batch(devices: Any) -> None:
    large, small = ready(rows=24), ready(devices=devices, rows=8, grad_req="add")
    options = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / 24}
    for module in (large, small):
        module.init_optimizer(optimizer_params=options)
    for _ in range(3):
        large.forward_backward(batch(0, 24))
        large.update()
        for start in (0, 8, 16):
            small.forward_backward(batch(start))
        small.update()
        small.zero_grad()
    assert_same(large.get_params(), small.get_params())


def test_requests_by_name_and_in_order() -> None:
    symbol = mlp()
    names = symbol.list_arguments()
    for request in (
        {"fc1_weight": "null", "fc2_bias": "add"},
        ["null" if n in ("fc1_weight", "data", "softmax_label") else "add" if n == "fc2_bias" else "write" for n in names],
    ):
        module = ready(symbol, grad_req=request)
        executor = module._manager.execgrp.train_execs[0]
        wanted = dict.fromkeys(names, "write") | {
            "fc1_weight": "null", "fc2_bias": "add", "data": "null", "softmax_label": "null",
        }  # fmt: skip
        assert executor.grad_req == wanted
        before = module.get_params()[0]
        module.init_optimizer(optimizer_params={"learning_rate": 0.1})
        module.forward_backward(batch())
        module.update()
        changed = {n for n, a in module.get_params()[0].items() if not np.array_equal(a, before[n])}
        assert changed == {"fc1_bias", "fc2_weight", "fc2_bias"}


def test_fixed_parameters_stay() -> None:
    module = ready(fixed_param_names=["fc1_weight", "fc1_bias"], devices=CPUS)
    before = module.get_params()[0]
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "wd": 0.1, "momentum": 0.9})
    for _ in range(2):
        module.forward_backward(batch())
        module.update()
    after = module.get_params()[0]
    assert {n for n in after if not np.array_equal(after[n], before[n])} == {"fc2_weight", "fc2_bias"}
    assert module._manager.execgrp.train_execs[0].grad_dict["fc1_weight"] is None


def test_frozen_layers_keep_their_running_statistics() -> None:
    net = mlp(norm=True)
    fixed = ["bn_gamma", "bn_beta"]
    moving, still = ready(net, fixed_param_names=fixed), ready(net, fixed_param_names=fixed, freeze_aux=True)
    for module in (moving, still):
        module.forward(batch(), is_train=True)
    assert not np.array_equal(moving.get_params()[1]["bn_moving_mean"], np.zeros(8))
    np.testing.assert_array_equal(still.get_params()[1]["bn_moving_mean"], np.zeros(8))
    np.testing.assert_allclose(still.get_outputs()[0], still.predict(X[:8]), 1e-6)  # training uses them, too
    assert still.symbol is net  # what is saved is the user's symbol
    other = ready(net, freeze_aux=True)  # nothing is fixed: nothing is frozen
    other.forward(batch(), is_train=True)
    assert not np.array_equal(other.get_params()[1]["bn_moving_mean"], np.zeros(8))


def test_inference_has_no_gradients() -> None:
    module = ready(for_training=False)
    assert set(module._manager.execgrp.train_execs[0].grad_req.values()) == {"null"}


# --- states, sharing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_states_are_kept_from_batch_to_batch(devices: Any) -> None:
    state = sym.Variable("state")
    total = sym.Group([state + sym.Variable("data"), sym.BlockGrad(2 * state)])
    module = ax.mod.Module(total, label_names=None, state_names=["state"], context=devices)
    module.bind([("data", (8, 6))], for_training=False)
    module.init_params()
    module.set_states(value=1.5)
    np.testing.assert_array_equal(module.get_states()[0], np.full((8, 6), 1.5))
    for number in range(3):
        module.forward(ax.io.DataBatch([X[:8]]), is_train=False)
        module.set_states(module.get_outputs(merge_multi_context=number % 2 == 0)[:1])
    np.testing.assert_allclose(module.get_states()[0], 1.5 + 3 * X[:8], 1e-5)
    assert module.get_params() == ({}, {})


def test_a_module_shares_parameters_and_the_optimizer() -> None:
    first = ready(devices=CPUS[:2])
    first.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    second = ax.mod.Module(mlp(), context=CPUS[:2])
    second.bind([("data", (4, 6))], [("softmax_label", (4,))], shared_module=first)
    assert second.params_initialized
    second.borrow_optimizer(first)
    for module, rows in ((first, 8), (second, 4)):
        before = first.get_params()
        module.forward_backward(batch(0, rows))
        module.update()
        after = first.get_params()
        assert_same(after, second.get_params(), rtol=0)
        assert not np.array_equal(before[0]["fc1_weight"], after[0]["fc1_weight"])
    assert first.optimizer.num_update == 2


# --- parameters ----------------------------------------------------------------------------------------------------


def test_names_of_parameters_are_checked() -> None:
    module = ready()
    args, aux = module.get_params()
    with pytest.raises(CheckpointError, match="arg_params must have 'fc2_bias'"):
        module.set_params({n: a for n, a in args.items() if n != "fc2_bias"}, aux)
    with pytest.raises(UnknownNameError, match="arg_params has 'fc3_bias', which the symbol has not; did you mean"):
        module.set_params(args | {"fc3_bias": np.ones(3)}, aux)
    with pytest.raises(ShapeError, match="fc2_bias"):
        module.set_params(args | {"fc2_bias": np.ones(4)}, aux)
    assert_same((args, aux), module.get_params(), rtol=0)
    module.set_params({"fc2_bias": np.ones(3)}, {}, allow_missing=True)
    module.set_params(args | {"fc2_bias": np.full(3, 2.0), "fc3_bias": np.ones(3)}, aux, allow_extra=True)
    after = module.get_params()[0]
    np.testing.assert_array_equal(after.pop("fc2_bias"), np.full(3, 2.0))
    assert_same([after], [{n: a for n, a in args.items() if n != "fc2_bias"}], rtol=0)


def test_initializers_fill_what_is_missing() -> None:
    module = ax.mod.Module(mlp(norm=True))
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(ax.init.One(), {"fc1_bias": np.full(8, 3.0)}, allow_missing=True)
    args, aux = module.get_params()
    assert {n: float(a.mean()) for n, a in args.items()} == {
        "fc1_weight": 1, "fc1_bias": 3, "bn_gamma": 1, "bn_beta": 0, "fc2_weight": 1, "fc2_bias": 0,
    }  # fmt: skip
    assert {n: float(a.mean()) for n, a in aux.items()} == {"bn_moving_mean": 0, "bn_moving_var": 1}
    module.init_params(ax.init.Zero())  # there are parameters already
    assert_same(module.get_params(), (args, aux), rtol=0)


def test_binding_anew_keeps_parameters() -> None:
    module = ready()
    before = module.get_params()
    module.bind([("data", (4, 6))], [("softmax_label", (4,))], force_rebind=True)
    assert module.data_shapes[0].shape == (4, 6)
    assert_same(module.get_params(), before, rtol=0)


def test_binding_anew_in_training_changes_nothing() -> None:
    found = []
    for anew in (False, True):
        ax.random.seed(3)
        module = ready(mlp(dropout=0.5), CPUS[:2], compression_params={"type": "2bit", "threshold": 0.01})
        module.init_optimizer("device", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
        for start in (0, 8):
            module.forward_backward(batch(start))
            module.update()
            if anew:
                module.bind([("data", (8, 6))], [("softmax_label", (8,))], force_rebind=True)
        found.append(module.get_params())
    assert_same(*found, rtol=0)


def test_parameter_files(tmp_path: Any) -> None:
    module = ready(mlp(norm=True))
    module.save_params(str(tmp_path / "x.params"))
    other = ax.mod.Module(mlp(norm=True))
    other.bind([("data", (8, 6))], [("softmax_label", (8,))])
    other.load_params(str(tmp_path / "x.params"))
    assert_same(module.get_params(), other.get_params(), rtol=0)


# --- optimizer -----------------------------------------------------------------------------------------------------


def test_multipliers_of_parameters() -> None:
    weight = sym.Variable("fc_weight", lr_mult=0.0)
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), weight, num_hidden=3, name="fc"), name="softmax")
    module = ready(net)
    before = module.get_params()[0]
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    module.optimizer.set_lr_mult({"fc_bias": 2.0})
    module.forward_backward(batch())
    gradient = module._manager.execgrp.train_execs[0].grad_dict["fc_bias"].copy()
    module.update()
    after = module.get_params()[0]
    np.testing.assert_array_equal(after["fc_weight"], before["fc_weight"])
    np.testing.assert_allclose(after["fc_bias"], before["fc_bias"] - 0.2 * gradient / 8, 1e-5)


def test_the_learning_rate_may_change_in_a_callback() -> None:
    seen = []

    def slower(param: Any) -> None:
        module = param.locals["self"]
        seen.append(module.optimizer.lr)
        module.optimizer.lr *= 0.5

    module = ready()
    module.fit(batches(8), num_epoch=1, optimizer_params={"learning_rate": 0.4}, batch_end_callback=slower)
    assert seen == [0.4, 0.2, 0.1]


def test_rescale_is_that_of_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    module = ready()
    module.init_optimizer()
    assert module.optimizer.rescale_grad == 1 / 8
    module.init_optimizer(optimizer="sgd", optimizer_params={"rescale_grad": 0.5}, force_init=True)
    assert module.optimizer.rescale_grad == 0.5
    with caplog.at_level(logging.WARNING):
        module.init_optimizer(optimizer=ax.optimizer.create("sgd", learning_rate=0.1), force_init=True)
    assert "rescale_grad is 1, not 1 / rows of a batch, 0.125" in caplog.text


def test_two_bits_keep_what_they_leave_out() -> None:
    module = ready(devices=CPUS[:2], compression_params={"type": "2bit", "threshold": 0.5})
    before = module.get_params()[0]["fc2_bias"]
    module.init_optimizer("device", optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
    exact = ready(devices=CPUS[:2])
    residual, total = np.zeros((2, 3)), np.zeros(3)
    for start in (0, 8, 16):
        exact.set_params(*module.get_params())
        for one in (module, exact):
            one.forward_backward(batch(start))
        gradients = np.stack([e.grad_dict["fc2_bias"] for e in exact._manager.execgrp.train_execs])
        residual += gradients
        sent = 0.5 * (residual >= 0.5) - 0.5 * (residual <= -0.5)
        residual -= sent
        total += sent.sum(axis=0)
        module.update()
    np.testing.assert_allclose(module.get_params()[0]["fc2_bias"], before - total, 1e-4, 1e-5)
    assert total.any()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_training_goes_on_from_a_checkpoint(optimizer: str, tmp_path: Any) -> None:
    prefix, options = str(tmp_path / "net"), {"learning_rate": 0.01, "wd": 0.001}
    if optimizer == "sgd":
        options |= {"momentum": 0.9, "lr_scheduler": ax.lr_scheduler.FactorScheduler(2, 0.5)}
    module = ready(mlp(norm=True), CPUS[:2])
    module.init_optimizer(optimizer=optimizer, optimizer_params=options)

    def train(one: Any) -> None:
        for start in (0, 8, 16):
            one.forward_backward(batch(start))
            one.update()

    train(module)
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net-0001.params", "net-0001.states", "net-symbol.json"]
    if "lr_scheduler" in options:
        options["lr_scheduler"] = ax.lr_scheduler.FactorScheduler(2, 0.5)
    other = ax.mod.Module.load(prefix, 1, load_optimizer_states=True, context=CPUS[:2])
    other.bind([("data", (8, 6))], [("softmax_label", (8,))])
    other.init_optimizer(optimizer=optimizer, optimizer_params=options)
    assert other.optimizer.num_update == 3
    module.set_params(*module.get_params())  # as saved: the mean of the devices' states
    for one in (module, other):
        train(one)
    assert_same(module.get_params(), other.get_params(), rtol=0)


# --- labels, layouts, several inputs and outputs -------------------------------------------------------------------


def test_training_without_labels() -> None:
    data = sym.Variable("data")
    code = sym.FullyConnected(data, num_hidden=2, name="code")
    loss = sym.MakeLoss(sym.sum(sym.square(sym.FullyConnected(code, num_hidden=6, name="out") - data), axis=1), name="loss")
    for shapes in ([], None):
        module = ax.mod.Module(loss, label_names=None)
        module.bind([("data", (8, 6))], shapes)
        module.init_params(ax.init.Xavier())
    module = ax.mod.Module(loss, label_names=None)
    losses = []
    module.fit(
        ax.io.NDArrayIter(X, batch_size=8), eval_metric=ax.metric.Loss(), num_epoch=30, initializer=ax.init.Xavier(),
        optimizer_params={"learning_rate": 0.05}, batch_end_callback=lambda p: losses.append(p.eval_metric.get()[1]),
    )  # fmt: skip
    assert losses[-1] < 0.8 * losses[2]


def test_labels_nobody_asked_for_are_for_metrics_alone() -> None:
    data = sym.Variable("data")
    net = sym.LinearRegressionOutput(sym.FullyConnected(data, num_hidden=6, name="fc"), sym.BlockGrad(data), name="out")
    losses = []
    for names in (None, ("softmax_label",)):
        module = ax.mod.Module(net, label_names=names)
        metric = ax.metric.CustomMetric(lambda label, pred: float(len(label) + len(pred)))
        module.fit(batches(8), batches(7, pad=True), metric, num_epoch=1, initializer=ax.init.One(), validation_metric=metric)
        losses.append(module.score(batches(8), metric)[0][1])
    assert losses == [16.0, 16.0]


def test_labels_nobody_asked_for_are_left_alone() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    module = ax.mod.Module(net, label_names=None)
    module.bind([("data", (8, 6))], for_training=False)
    module.init_params()
    module.forward(batch(0, 5), is_train=False)
    assert module.get_outputs()[0].shape == (5, 3)


def test_a_module_bound_without_labels_takes_batches_with_labels() -> None:
    module = ax.mod.Module(mlp())
    module.bind([("data", (8, 6))], for_training=False)
    module.init_params(None, *values(mlp(), data=(8, 6)))
    for rows in (8, 5):
        module.forward(batch(0, rows))
    assert module.score(batches(8), "acc") == ready().score(batches(8), "acc")


def test_several_outputs_and_labels_by_name() -> None:
    hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1")
    classes = sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="kind")
    amount = sym.LinearRegressionOutput(sym.FullyConnected(hidden, num_hidden=1, name="fc3"), name="amount")
    module = ax.mod.Module(sym.Group([classes, amount]), label_names=("amount_label", "kind_label"), context=CPUS[:2])
    data = ax.io.NDArrayIter({"data": X}, {"kind_label": Y, "amount_label": X[:, 0]}, 8)
    metrics = [
        ax.metric.Accuracy(output_names=["kind_output"], label_names=["kind_label"]),
        ax.metric.MSE(output_names=["amount_output"], label_names=["amount_label"]),
    ]
    module.fit(
        data, eval_metric=metrics, num_epoch=60, optimizer_params={"learning_rate": 0.3},
        initializer=ax.init.Xavier(),
    )  # fmt: skip
    found = dict(module.score(data, metrics))
    outputs = module.predict(data)
    assert found["accuracy"] == pytest.approx(float((outputs[0].argmax(axis=1) == Y).mean()))
    assert found["mse"] == pytest.approx(float(np.mean((outputs[1][:, 0] - X[:, 0]) ** 2)), rel=1e-5)
    assert found["accuracy"] > 0.8
    assert found["mse"] < 0.1


def test_time_major_data_are_cut_and_put_together_along_the_batch() -> None:
    data = sym.Variable("data")  # (time, batch, features)
    net = sym.FullyConnected(data, num_hidden=4, flatten=False, name="fc")
    sequence = RNG.normal(size=(5, 7, 6)).astype(np.float32)
    described = [ax.io.DataDesc("data", (5, 7, 6), layout="TNC")]
    found = []
    for devices in (ax.cpu(), CPUS):
        module = ax.mod.Module(net, label_names=None, context=devices)
        module.bind(described, for_training=True, inputs_need_grad=True)
        module.init_params(None, {"fc_weight": X[:4], "fc_bias": Y[:4]})
        module.forward(ax.io.DataBatch([sequence], provide_data=described), is_train=True)
        module.backward([sequence[:, :, :4]])
        found.append((module.get_outputs()[0], module.get_input_grads()[0]))
        merged = module.predict(_Batches([sequence[:, :4], sequence[:, 4:]]))
        np.testing.assert_allclose(merged, found[-1][0], 1e-5, 1e-6)
    np.testing.assert_allclose(found[0][0], sequence @ X[:4].T + Y[:4], 1e-4, 1e-5)
    for one, several in zip(*found, strict=True):
        np.testing.assert_allclose(one, several, 1e-5, 1e-6)


class _Batches:
    """Time-major batches of several sizes; of the last the last row is padding."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __iter__(self) -> Any:
        for number, part in enumerate(self.parts):
            pad = int(number + 1 == len(self.parts))
            array = np.concatenate([part, part[:, :pad]], axis=1)
            yield ax.io.DataBatch([array], pad=pad, provide_data=[ax.io.DataDesc("data", array.shape, layout="TNC")])


def test_batches_are_cast_to_the_types_that_were_bound() -> None:
    module = ax.mod.Module(mlp(), context=CPUS[:2])
    module.bind([ax.io.DataDesc("data", (8, 6), np.float16)], [ax.io.DataDesc("softmax_label", (8,), np.int32)])
    module.init_params(ax.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "multi_precision": True})
    for _ in range(20):
        for one in batches(8):  # which describe themselves as float32
            module.forward_backward(one)
            module.update()
    assert {a.dtype for a in module.get_params()[0].values()} == {np.dtype(np.float16)}
    assert module.get_outputs()[0].dtype == np.float16
    assert module.score(batches(5), "acc")[0][1] > 0.8


def test_outputs_that_are_no_rows_stand_side_by_side() -> None:
    net = sym.MakeLoss(sym.mean(sym.Variable("data")), name="loss")
    module = ax.mod.Module(net, label_names=None, context=CPUS[:2])
    module.bind([("data", (8, 6))])
    module.init_params()
    module.forward(ax.io.DataBatch([X[:8]]), is_train=True)
    np.testing.assert_allclose(module.get_outputs()[0], [X[:4].mean(), X[4:8].mean()], 1e-5)


# --- fit -----------------------------------------------------------------------------------------------------------


def test_fit_tells_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    module = ax.mod.Module(mlp(), context=CPUS[:2])
    with caplog.at_level(logging.INFO):
        module.fit(
            batches(8), batches(8), num_epoch=2, initializer=ax.init.Xavier(),
            batch_end_callback=[lambda p: calls.append(("batch", p.epoch, p.nbatch)), lambda p: None],
            epoch_end_callback=lambda epoch, symbol, args, aux: calls.append(("epoch", epoch, symbol is module.symbol, len(args))),
            eval_end_callback=lambda p: calls.append(("eval", p.epoch, p.nbatch)),
            eval_batch_end_callback=lambda p: calls.append(("eval batch", p.epoch, p.nbatch)),
        )  # fmt: skip
    one = [("batch", n) for n in range(3)] + [("epoch", True)] + [("eval batch", n) for n in range(3)] + [("eval", 3)]
    assert [(call[0], call[2]) for call in calls] == one * 2
    assert [call[1] for call in calls] == [0] * 8 + [1] * 8
    text = [record.getMessage().split("=")[0] for record in caplog.records]
    assert text == [f"Epoch[{e}] {what}" for e in (0, 1) for what in ("Train-accuracy", "Time cost", "Validation-accuracy")]


def test_a_module_goes_away_with_its_arrays() -> None:
    import gc
    import weakref

    module = ready(devices=CPUS[:2])
    module.init_optimizer()
    module.forward_backward(batch())
    module.update()
    arrays = [weakref.ref(a) for a in module._manager.held("parameters").values()]
    gc.collect()
    gc.disable()
    try:
        del module
        assert all(ref() is None for ref in arrays)
    finally:
        gc.enable()
