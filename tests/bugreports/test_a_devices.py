"""Reports about several devices, by the calls that their authors made (executor_manager, FeedForward). Numbers are the
reports'; the same through modules: test_module.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import DeviceError, ShapeError
from arrayexec.parallel.executor_manager import DataParallelExecutorManager, _split_input_slice
from tests.parallel.networks import Described, mlp, values

sym = ax.sym
X = np.random.default_rng(8).normal(size=(24, 6)).astype(np.float32)
Y = X[:, :3].argmax(axis=1).astype(np.float32)


def devices(count: int) -> list[Any]:
    return [ax.cpu(i) for i in range(count)]


def manager(symbol: Any, count: int, rows: int = 8, **options: Any) -> Any:
    made = DataParallelExecutorManager(symbol, devices(count), ax.io.NDArrayIter(X[:rows], Y[:rows], rows), **options)
    made.set_params(*values(symbol, data=(rows, 6)))
    return made


def run(made: Any, rows: int = 8) -> Any:
    made.load_data_batch(ax.io.DataBatch([X[:rows]], [Y[:rows]]))
    made.forward(is_train=True)
    made.backward()
    return made


@pytest.mark.parametrize(("rows", "count"), [(71, 8), (25, 10), (20, 8), (6, 4), (15, 10), (3, 3)])
def test_bug_2593_9877_12803_1061_slices_differ_by_one_row(rows: int, count: int) -> None:
    slices = _split_input_slice(rows, [1] * count)
    assert [s.start for s in slices] == [0, *(s.stop for s in slices[:-1])]
    sizes = [s.stop - s.start for s in slices]
    assert sum(sizes) == rows
    assert (min(sizes), max(sizes)) == (rows // count, -(-rows // count))


def test_bug_2593_too_few_rows_are_told_with_both_numbers() -> None:
    with pytest.raises(DeviceError, match="split of 3 rows over 4 devices.*must have at least 4 rows"):
        _split_input_slice(3, [1] * 4)
    with pytest.raises(ValueError, match="split of 3 rows over 4 devices"):
        manager(mlp(), 4, 3)
    model = ax.model.FeedForward(mlp(), ctx=devices(4), num_epoch=1, numpy_batch_size=6)
    model.fit(X, Y)
    assert model.predict(X).shape == (24, 3)


@pytest.mark.parametrize(("loads", "sizes"), [([5, 1.5, 5], [3, 1, 4]), ([1, 0, 3], [2, 0, 6]), ([2, 2, 4], [2, 2, 4])])
def test_bug_566_work_loads_are_shares(loads: list[float], sizes: list[int]) -> None:
    slices = _split_input_slice(8, loads)
    assert [s.stop - s.start for s in slices] == sizes


@pytest.mark.parametrize(("normalization", "per_device"), [("batch", 2.0), ("valid", 2.0), ("null", 1.0)])
def test_bug_6710_what_normalised_losses_of_two_devices_add_up_to(normalization: str, per_device: float) -> None:
    """A manager gives the plain sum over devices, each of which divides by its own rows; modules can make up for it."""
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    net = sym.SoftmaxOutput(net, normalization=normalization, name="softmax")
    sums = []
    for count in (1, 2):
        made, found = run(manager(net, count)), {}
        made.update(lambda name, gradient, parameter: found.update({name: gradient.copy()}))  # noqa: B023
        sums.append(found["fc_bias"])
    np.testing.assert_allclose(sums[1], per_device * sums[0], 1e-5, 1e-6)
    biases = []
    for count in (1, 2, 3):
        module = ax.mod.Module(net, context=devices(count), loss_weighting="samples" if per_device != 1 else "devices")
        module.bind([("data", (8, 6))], [("softmax_label", (8,))])
        module.init_params(ax.init.One())
        module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
        module.forward_backward(ax.io.DataBatch([X[:8]], [Y[:8]]))
        module.update()
        biases.append(module.get_params()[0]["fc_bias"])
    for other in biases[1:]:
        np.testing.assert_allclose(other, biases[0], 1e-5, 1e-6)


def test_bug_6587_labels_of_a_metric_that_are_no_rows_of_the_batch() -> None:
    made, metric = run(manager(mlp(), 2)), ax.metric.create("acc")
    with pytest.raises(ShapeError, match=r"label 'softmax_label' must have the 8 rows of the batch on axis 0, but it is \(24,\)"):
        made.update_metric(metric, [np.tile(Y[:8], 3)])
    made.update_metric(metric, [Y[:8]])
    (outputs,) = made.get_outputs()
    assert metric.get()[1] == pytest.approx((outputs.argmax(1) == Y[:8]).mean())


def test_bug_5509_6707_a_time_major_batch_is_not_cut_along_the_time() -> None:
    data = ax.io.BucketSentenceIter([[1, 2, 3, 4]] * 6, 6, buckets=[4], invalid_label=0, layout="TN")
    net = sym.FullyConnected(
        sym.Embedding(sym.Variable("data"), input_dim=7, output_dim=5, name="embed"), num_hidden=7, flatten=False, name="out"
    )  # fmt: skip
    net = sym.SoftmaxOutput(net, preserve_shape=True, name="softmax")
    made = DataParallelExecutorManager(net, devices(3), data)
    assert made.slices == [slice(0, 2), slice(2, 4), slice(4, 6)]
    made.set_params(*values(net, data=(4, 6)))
    made.load_data_batch(next(iter(data)))
    made.forward()
    (parts,) = made.curr_execgrp.get_outputs(merge_multi_context=False)
    assert [part.shape for part in parts] == [(4, 2, 7)] * 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_bug_4900_2830_7847_feed_forward_learns_alike_on_any_number_of_devices(optimizer: str) -> None:
    found = []
    for count in (1, 2, 3):
        ax.random.seed(3)
        model = ax.model.FeedForward(
            mlp(), ctx=devices(count), num_epoch=4, optimizer=optimizer, learning_rate=0.05, numpy_batch_size=8,
            initializer=ax.init.Xavier(),
        )  # fmt: skip
        model.fit(ax.io.NDArrayIter(X, Y, 8))
        found.append(model.predict(X))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], 1e-4, 1e-5)


def test_bug_5347_each_line_of_a_monitor_has_its_device() -> None:
    made, monitor = manager(mlp(), 3), ax.mon.Monitor(1, pattern="fc2_output|fc1_weight")
    made.install_monitor(monitor)
    monitor.tic()
    run(made)
    names = [name for _, name, _ in monitor.toc()]
    assert sorted(names) == sorted(f"{name}[cpu({i})]" for name in ("fc2_output", "fc1_weight") for i in range(3))


def test_bug_6815_constants_of_the_whole_batch() -> None:
    net = sym.slice_axis(sym.Variable("data"), axis=0, begin=4, end=8, name="part")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    described = Described({"data": (8, 6)}, {"softmax_label": (8,)})
    with pytest.raises(ShapeError, match=r"slice_axis 'part' .*but it is \(2, 6\)"):
        DataParallelExecutorManager(net, devices(4), described)


@pytest.mark.parametrize("name", ["out", "target"])
def test_bug_992_3465_5125_8802_feed_forward_predicts_arrays_of_any_size_and_labels_of_any_name(name: str) -> None:
    """Fewer rows than devices, too: an array has no labels, so whatever the net calls its own is not asked for."""
    label = sym.Variable("target") if name == "target" else None
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    net = sym.LinearRegressionOutput(net, *([] if label is None else [label]), name="out")
    label_name = "target" if name == "target" else "out_label"
    model = ax.model.FeedForward(net, ctx=devices(3), num_epoch=1, learning_rate=0.1)
    data = ax.io.NDArrayIter(X, X[:, :3], 6, label_name=label_name)  # two rows a device
    model.fit(data, eval_metric="mse")
    wanted = X @ model.arg_params["fc_weight"].T + model.arg_params["fc_bias"]
    for rows in (1, 2, 5, 24):
        np.testing.assert_allclose(model.predict(X[:rows]), wanted[:rows], 1e-4, 1e-5)
    assert model.score(data, "mse") == pytest.approx(((wanted - X[:, :3]) ** 2).mean(), rel=1e-4)
    outputs, inputs, _ = model.predict(X[:5], return_data=True)
    assert (outputs.shape, inputs.shape) == ((5, 3), (5, 6))
