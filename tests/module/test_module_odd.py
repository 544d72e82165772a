"""Modules where programs seldom go: fewer rows than devices from the start, sums of gradients of inputs, copies."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArgumentError, CheckpointError
from tests.module.test_module import X, Y, assert_same, batch, ready, values
from tests.parallel.networks import mlp

sym = ax.sym
CPUS = [ax.cpu(i) for i in range(4)]


def test_fewer_rows_than_devices_may_be_bound_and_trained() -> None:
    found = []
    for devices in (1, 4):
        module = ax.mod.Module(mlp(), context=CPUS[:devices])
        module.bind([("data", (2, 6))], [("softmax_label", (2,))])
        module.init_params(None, *values(mlp(), data=(2, 6)))
        module.init_optimizer(optimizer="adam")
        for rows in (2, 1, 9, 3, 24):
            module.forward_backward(batch(rows=rows))
            module.update()
        found.append(module.get_params())
    assert_same(found[0], found[1])
    module = ax.mod.Module(mlp(), context=CPUS)
    module.fit(ax.io.NDArrayIter(X, Y, 2), num_epoch=1)
    assert module.optimizer.num_update == 12


@pytest.mark.parametrize("devices", [1, 2])
def test_zero_grad_also_zeroes_gradients_of_inputs_of_all_sizes(devices: int) -> None:
    net = sym.MakeLoss(sym.broadcast_mul(sym.Variable("data"), sym.Variable("w_weight", shape=(1, 1))))
    module = ax.mod.Module(net, label_names=None, context=CPUS[:devices])
    module.bind([("data", (4, 2))], inputs_need_grad=True, grad_req="add")
    module.init_params(ax.init.One())

    def gradient(rows: int) -> float:
        module.forward_backward(ax.io.DataBatch([np.ones((rows, 2), np.float32)]))
        values = np.unique(module.get_input_grads()[0])
        assert len(values) == 1
        return float(values[0])

    assert [gradient(4), gradient(4), gradient(3)] == [1, 2, 1]
    module.zero_grad()
    assert [gradient(4), gradient(3), gradient(3)] == [1, 1, 2]


def test_what_a_sharing_module_has_alone_gets_its_first_value() -> None:
    first = ready()
    hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=7, name="own")
    second = ax.mod.Module(sym.SoftmaxOutput(hidden, name="softmax"))
    first.init_params(ax.init.Constant(0.25), force_init=True)
    second.bind([("data", (4, 6))], [("softmax_label", (4,))], shared_module=first)
    assert (second.get_params()[0]["own_weight"] == 0.25).all()
    assert first.get_params()[0]["own_bias"].tolist() == [0] * 7


def test_a_bound_module_says_what_to_send_instead() -> None:
    module = ready()
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ArgumentError, match=r"symbol.tojson\(\) and module.get_params\(\), or save_checkpoint"):
            call(module)
    again = ax.mod.Module(ax.sym.load_json(module.symbol.tojson()))
    again.bind([("data", (8, 6))], [("softmax_label", (8,))])
    again.set_params(*module.get_params())
    assert np.array_equal(again.predict(X[:8]), module.predict(X[:8]))
    assert pickle.loads(pickle.dumps(ax.mod.Module(mlp()))).data_names == ["data"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_store_for_ranks_leaves_out_padded_rows_with_one_rank_too(devices: int) -> None:
    found = []
    for handle, store in (("pad", "dist_sync"), ("cut", "local"), ("pad", "local")):
        module = ready(devices=CPUS[:devices])
        module.init_optimizer(store, "adam", {"rescale_grad": 0.1})
        counted = ax.metric.create("acc")
        for one in ax.io.NDArrayIter(X, Y, 10):
            if handle == "cut":
                one = ax.io.DataBatch([one.data[0][: 10 - one.pad]], [one.label[0][: 10 - one.pad]])
            module.forward_backward(one)
            module.update()
            module.update_metric(counted, one.label)
            assert counted.num_inst % 10 in (0, 4)
        found.append(module.get_params())
    assert_same(found[0], found[1])
    assert not np.allclose(found[0][0]["fc1_weight"], found[2][0]["fc1_weight"], 1e-4)


@pytest.mark.parametrize("devices", [1, 3])
def test_labels_that_are_not_named_are_no_parameters(devices: int, tmp_path: Path) -> None:
    trained = ready()
    module = ax.mod.Module(mlp(), label_names=None, context=CPUS[:devices])
    module.bind([("data", (8, 6))], for_training=False)
    module.set_params(*trained.get_params())  # all there are
    np.testing.assert_allclose(module.predict(X), trained.predict(X), 1e-5)
    np.testing.assert_allclose(module.predict(ax.io.NDArrayIter(X, Y, 7)), trained.predict(X), 1e-5)
    trained.save_checkpoint(tmp_path / "net", 1)
    module = ax.mod.Module.load(tmp_path / "net", 1, label_names=None)
    module.bind([("data", (5, 6))], for_training=False)
    np.testing.assert_allclose(module.predict(X), trained.predict(X), 1e-5)


def test_a_file_that_lacks_a_parameter_is_refused_by_bind(tmp_path: Path) -> None:
    trained, prefix = ready(), str(tmp_path / "net")
    trained.save_checkpoint(prefix, 1)
    held = ax.nd.load(prefix + "-0001.params")
    del held["arg:fc1_bias"]
    ax.nd.save(prefix + "-0001.params", held)
    module = ax.mod.Module.load(prefix, 1)
    with pytest.raises(CheckpointError, match="bind: the checkpoint must have 'fc1_bias'"):
        module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    assert not module.binded
    symbol, arg_params, aux_params = ax.model.load_checkpoint(prefix, 1)
    module = ax.mod.Module(symbol)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.set_params(arg_params, aux_params, allow_missing=True)


def test_feed_forward_is_pickled_with_its_parameters() -> None:
    model = ax.model.FeedForward(mlp(), num_epoch=2, numpy_batch_size=8, learning_rate=0.1)
    model.fit(X, Y)
    expected = model.predict(X)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(again.predict(X), expected)
    assert np.array_equal(model.predict(X), expected)


def test_names_that_nobody_knows_are_taken_in_order() -> None:
    found = []
    for data_name, label_name in (("data", "softmax_label"), ("data", "label"), ("image", "label")):
        module = ready()
        module.init_optimizer()
        for each in ax.io.NDArrayIter(X, Y, 5, data_name=data_name, label_name=label_name):
            module.forward_backward(each)
            module.update()
        found.append(module.get_params())
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


def test_labels_of_another_batch_train_nothing() -> None:
    heads = [sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=3), name=name) for name in ("a", "b")]
    module = ax.mod.Module(sym.Group(heads), label_names=("a_label", "b_label"))
    module.bind([("data", (8, 6))], [("a_label", (8,)), ("b_label", (8,))])
    module.init_params()
    described = [("a_label", (8,)), ("c_label", (8,))]
    module.forward(ax.io.DataBatch([X[:8]], [Y[:8], Y[:8]], provide_label=described), is_train=True)
    with pytest.raises(ArgumentError, match="the batch must have the label 'b_label', which was bound, but it has a_label"):
        module.backward()
    module.forward(ax.io.DataBatch([X[:8]]), is_train=True)
    with pytest.raises(ArgumentError, match="the batch must have the label 'a_label', which was bound, but it has none"):
        module.backward()


def test_callbacks_of_evaluations_that_never_come(caplog: pytest.LogCaptureFixture) -> None:
    data = ax.io.NDArrayIter(X, Y, 8)
    for evaluated in (data, None):
        ax.mod.Module(mlp()).fit(data, evaluated, num_epoch=1, eval_end_callback=ax.callback.EarlyStopping())
        assert ("without eval_data callbacks of evaluations are never called" in caplog.text) == (evaluated is None)


def test_labels_of_batches_that_are_not_trained_on_may_be_anything() -> None:
    module = ready()
    module.forward(ax.io.DataBatch([X[:8]], [np.zeros((8, 7))], provide_label=[("other", (8, 7))]), is_train=False)
    np.testing.assert_allclose(module.get_outputs()[0], module.predict(X[:8]), 1e-6)
