"""Reports about metrics, first values, rates and optimizers. Numbers are those of the reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy, context_of, copyto
from arrayexec.errors import ShapeError
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import initializer, lr_scheduler, metric, optimizer
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, mlp, values
from tests.strict_device import strict

sym = ax.sym
RULES = [
    ("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {}), ("adamax", {}), ("ftml", {}), ("nadam", {}), ("lamb", {}),
    ("lars", {"momentum": 0.9, "eta": 0.1}), ("rmsprop", {}),
]  # fmt: skip


# --- metrics ------------------------------------------------------------------------------------------------------------


def test_bug_16880_f1_of_a_column_of_labels() -> None:
    label, scores = np.array([[1.0], [0.0], [1.0]]), np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    for one in (metric.F1(), metric.F1(average="micro")):
        one.update([label], [scores])
        flat = metric.F1()
        flat.update([label[:, 0]], [scores])
        assert one.get()[1] == flat.get()[1] == pytest.approx(0.8)
    other = metric.MCC()
    other.update([np.array([[1.0], [0.0], [0.0]])], [np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])])
    assert other.get()[1] == pytest.approx(0.5)


def test_bug_5316_9589_f1_of_many_classes_and_of_pixels() -> None:
    label = np.array([0, 1, 2, 2])
    scores = np.eye(3)[[0, 2, 2, 1]]
    by_class = [1.0, 0.0, 0.5]
    for average, wanted in (("macro", np.mean(by_class)), ("micro", 0.5), ("weighted", (1 + 0 + 2 * 0.5) / 4)):
        one = metric.create("f1", average=average, class_type="multiclass")
        one.update([label], [scores])
        assert one.get()[1] == pytest.approx(wanted)
        pixels = metric.create("f1", average=average, class_type="multiclass")
        pixels.update([label.reshape(1, 2, 2)], [scores.T.reshape(1, 3, 2, 2)])
        assert pixels.get()[1] == pytest.approx(wanted)


def test_bug_2116_labels_and_outputs_are_named() -> None:
    one = metric.create("acc")
    outputs = {"class_output": np.eye(3), "box_output": np.zeros((3, 4))}
    with pytest.raises(ShapeError, match="labels 'class_label'; outputs 'class_output', 'box_output'"):
        one.update_dict({"class_label": np.arange(3)}, outputs)
    chosen = metric.create("acc", output_names=["class_output"], label_names=["class_label"])
    chosen.update_dict({"class_label": np.arange(3), "more": np.zeros(3)}, outputs)
    assert chosen.get()[1] == 1.0


def test_bug_1312_accuracy_of_dense_predictions_is_a_share() -> None:
    one = metric.create("acc")
    draw = np.random.default_rng(0)
    label, scores = draw.integers(0, 4, (2, 5, 6)), draw.random((2, 4, 5, 6))
    one.update([label], [scores])
    assert one.get()[1] == pytest.approx((scores.argmax(1) == label).mean())
    one.update([label], [np.moveaxis(np.eye(4)[label], 3, 1)])
    assert one.get()[1] <= 1.0


@pytest.mark.parametrize("name", ["top_k_accuracy", "acc", "ce", "f1", "pcc", "perplexity", "nll_loss", "loss"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_bug_16239_metrics_of_16_bits(name: str, kind: str) -> None:
    if kind == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="there is no bfloat16 without ml_dtypes").bfloat16
    else:
        dtype = np.dtype(kind)
    classes = 2 if name == "f1" else 5
    draw = np.random.default_rng(1)
    scores = draw.permuted(np.tile(np.arange(1.0, classes + 1) / 16, (7, 1)), axis=1)  # exact in both types
    label = draw.integers(0, classes, 7)
    options = {"top_k": 2} if name.startswith("top") else {}
    narrow, wide = (metric.create(name, **options) for _ in range(2))
    narrow.update([label.astype(dtype)], [scores.astype(dtype)])
    wide.update([label], [scores])
    assert narrow.get()[1] == pytest.approx(wide.get()[1], rel=1e-6)


# --- first values -------------------------------------------------------------------------------------------------------


def test_bug_5271_5894_4885_a_variables_own_initialiser_wins() -> None:
    net = sym.FullyConnected(
        sym.Variable("data"), sym.Variable("anything", init=initializer.Constant(3.0)),
        sym.Variable("fc_bias", init=initializer.LSTMBias(2.0)), num_hidden=8, name="fc",
    )  # fmt: skip
    attributes = net.attr_dict()
    for name, shape, wanted in (("anything", (8, 2), [3.0]), ("fc_bias", (8,), [0.0, 2.0])):
        array = np.full(shape, np.nan, np.float32)
        initializer.Xavier()(initializer.InitDesc(name, attributes.get(name)), array)
        assert sorted(set(array.ravel())) == wanted


def test_bug_5286_slopes_begin_at_a_quarter() -> None:
    net = sym.LeakyReLU(sym.Variable("data"), act_type="prelu", name="relu1")
    array = np.zeros(3, np.float32)
    initializer.Xavier()(initializer.InitDesc("relu1_gamma", net.attr_dict()["relu1_gamma"]), array)
    assert array.tolist() == [0.25] * 3
    norm = np.zeros(3, np.float32)
    initializer.Xavier()(initializer.InitDesc("bn1_gamma", {}), norm)
    assert norm.tolist() == [1.0] * 3


# --- optimizers ---------------------------------------------------------------------------------------------------------


def manager(count: int) -> DataParallelExecutorManager:
    described = Described({"data": (8, 6)}, {"softmax_label": (8,)})
    made = DataParallelExecutorManager(mlp(), [ax.cpu(i) for i in range(count)], described)
    made.set_params(values(mlp(), data=(8, 6))[0])
    return made


def train(made: DataParallelExecutorManager, updater: Any, steps: range) -> dict[str, np.ndarray]:
    for step in steps:
        draw = np.random.default_rng(step)
        made.load_data_batch(DataBatch([draw.normal(size=(8, 6))], [draw.integers(0, 3, 8)]))
        made.forward(is_train=True)
        made.backward()
        made.update(updater)
    store = made.stores[0].parameters
    return {name: np.array(array) for name, array in store.items()}


@pytest.mark.parametrize(("name", "options"), RULES)
def test_bug_13752_12713_7847_one_count_a_step_whatever_the_devices(name: str, options: dict[str, Any]) -> None:
    found = []
    for count in (1, 2, 3):
        schedule = lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.05)
        rule = optimizer.create(name, rescale_grad=1 / 8, lr_scheduler=schedule, **options)
        found.append(train(manager(count), optimizer.get_updater(rule), range(5)))
        assert rule.num_update == 5 and set(rule.update_counts.values()) == {5}
        assert rule.learning_rate == 0.05 / 4
    for other in found[1:]:
        for key, array in found[0].items():
            np.testing.assert_allclose(other[key], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), RULES)
def test_bug_17357_5059_counts_and_schedule_go_on(name: str, options: dict[str, Any]) -> None:
    def made() -> optimizer.Updater:
        schedule = lr_scheduler.CosineScheduler(6, base_lr=0.05, warmup_steps=2)
        return optimizer.get_updater(optimizer.create(name, rescale_grad=1 / 8, lr_scheduler=schedule, **options))

    straight = train(manager(1), made(), range(5))
    first, half = manager(1), made()
    train(first, half, range(3))
    second, resumed = manager(1), made()
    second.set_params({key: array.copy() for key, array in first.stores[0].parameters.items()})
    resumed.set_states(half.get_states())
    assert resumed.optimizer.num_update == 3 and resumed.optimizer.learning_rate == half.optimizer.learning_rate
    for key, array in train(second, resumed, range(3, 5)).items():
        np.testing.assert_array_equal(array, straight[key])


@pytest.mark.parametrize("at_once", [True, False])
def test_bug_5428_6716_6731_states_go_to_the_device_of_the_parameter(at_once: bool) -> None:
    host = optimizer.get_updater(optimizer.create("adam"))
    weight, grad = np.ones(5, np.float32), np.ones(5, np.float32)
    host.update_all(["w"], [grad], [weight])
    context = strict(1)
    device = optimizer.get_updater(optimizer.create("adam"))
    device.set_states(host.get_states())
    there, slope = (context.zeros((5,), np.float32, role) for role in ("parameter", "gradient"))
    copyto(there, weight)
    copyto(slope, grad)
    if at_once:
        device.update_all(["w"], [slope], [there])
    else:
        device("w", slope, there)
    assert {context_of(array) for array in device.states["w"].values()} == {context}
    host("w", grad, weight)
    np.testing.assert_array_equal(asnumpy(there), weight)


def test_bug_of_buckets_that_swap_momentum() -> None:
    """M3: in MXNet states are kept by the place of a parameter in the bucket at hand."""
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0, momentum=0.5))
    a, b, slope = np.zeros(2), np.zeros(2), np.ones(2)
    updater.update_all(["a_weight", "b_weight"], [slope, -slope], [a, b])
    updater.update_all(["b_weight"], [0 * slope], [b])
    assert b.tolist() == [1.5, 1.5] and a.tolist() == [-1.0, -1.0]


def test_bug_9511_14703_an_optimizer_object_knows_what_decays() -> None:
    weight, bias = np.ones(2), np.ones(2)
    updater = optimizer.get_updater(optimizer.SGD(learning_rate=0.1, wd=0.5))
    updater.update_all(["fc_weight", "fc_bias"], [np.zeros(2)] * 2, [weight, bias])
    assert weight.tolist() == [0.95] * 2 and bias.tolist() == [1.0] * 2


def test_bug_4163_7961_a_rate_times_zero_is_frozen() -> None:
    """Also where a rule has momentum left, decays, or has no rate (AdaDelta)."""
    for name, options in [("sgd", {"momentum": 0.9}), ("adadelta", {}), ("adam", {}), ("signum", {"wd_lh": 0.1})]:
        rule = optimizer.create(name, wd=0.1, **options)
        updater, weight = optimizer.get_updater(rule), np.ones(3)
        updater.update_all(["x_weight"], [np.ones(3)], [weight])
        moved = weight.copy()
        assert (moved != 1).all()
        rule.set_lr_mult({"x_weight": 0.0})
        updater.update_all(["x_weight"], [np.ones(3)], [weight])
        updater("x_weight", np.ones(3), weight)
        np.testing.assert_array_equal(weight, moved)


def test_bug_4856_8907_rates_change_while_training() -> None:
    rule = optimizer.create("sgd", learning_rate=1.0)
    updater, a, b = optimizer.get_updater(rule), np.zeros(1), np.zeros(1)
    rule.set_lr_mult({"b_weight": 0.5})
    for change in (lambda: None, lambda: rule.set_learning_rate(0.1), lambda: setattr(rule, "lr", rule.lr * 0.1)):
        change()
        updater.update_all(["a_weight", "b_weight"], [np.ones(1)] * 2, [a, b])
    np.testing.assert_allclose([a[0], b[0]], [-1.11, -0.555])
