"""The loss scale: where it is written, when it moves, and that a network whose gradients underflow learns with it alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.errors import ArgumentError, AttributeValueError, UnknownNameError
from arrayexec.parallel.executor_group import DataParallelExecutorGroup
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.parallel.loading import Described
from arrayexec.train import optimizer
from arrayexec.train.io import DataDesc, NDArrayIter
from arrayexec.train.loss_scale import DynamicLossScale, all_finite, scale_loss
from tests.parallel.mpi_helper import run_ranks

SMALL = 2.0**-14  # of the targets: gradients of the network are below what float16 can hold


def network(kind: str = "float16") -> Any:
    hidden = sym.Activation(sym.FullyConnected(sym.Variable("data", dtype=kind), num_hidden=16, name="one"), act_type="tanh")
    out = sym.FullyConnected(hidden, num_hidden=1, name="two") * SMALL
    return sym.LinearRegressionOutput(out, sym.Variable("label"), name="loss")


def problem() -> tuple[Any, Any, dict[str, Any]]:
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, (64, 2)).astype(np.float16)
    label = (data[:, :1] * data[:, 1:]).astype(np.float16) * np.float16(SMALL)
    shapes = {"one_weight": (16, 2), "one_bias": (16,), "two_weight": (1, 16), "two_bias": (1,)}
    return data, label, {name: rng.normal(0, 0.7, shape).astype(np.float16) for name, shape in shapes.items()}


def rule(name: str = "sgd") -> Any:
    rates = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "nag": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.02}}
    return optimizer.create(name, rescale_grad=SMALL**-2 / 64, multi_precision=True, **rates[name])


def trained(symbol: Any, scale: DynamicLossScale | None, name: str = "sgd", steps: int = 300) -> tuple[float, float]:
    """The squared error before and after, in squares of the size of the targets."""
    data, label, parameters = problem()
    executor = symbol.simple_bind(ax.cpu(), grad_req="write", data=data.shape, label=label.shape)
    executor.copy_params_from(parameters)
    updater = optimizer.get_updater(rule(name), scale)
    if scale is not None:
        scale.attach(executor)
    losses = []
    for _ in range(steps):
        out = executor.forward(is_train=True, data=data, label=label)[0]
        losses.append(float(np.mean(((out.astype(np.float32) - label) / SMALL) ** 2)))
        executor.backward()
        updater.update_all(parameters, [executor.grad_dict[n] for n in parameters], [executor.arg_dict[n] for n in parameters])
    return losses[0], losses[-1]


@pytest.mark.parametrize("name", ["sgd", "nag", "adam"])
def test_gradients_that_underflow_train_with_a_scale_and_not_without(name: str) -> None:
    first, last = trained(network(), None, name)
    assert last > 0.9 * first
    scale = DynamicLossScale(window=20)
    first, last = trained(scale_loss(network()), scale, name)
    assert last < 0.1 * first
    assert scale.scale > 2**16 or scale.skipped  # it has looked for its place


def test_outputs_are_the_same_and_gradients_are_multiplied() -> None:
    data, label, parameters = problem()
    wide = {n: v.astype(np.float32) for n, v in parameters.items()}
    found = []
    for symbol in (network("float32"), scale_loss(network("float32"))):
        assert symbol.list_arguments() == ["data", "one_weight", "one_bias", "two_weight", "two_bias", "label"]
        assert symbol.list_outputs() == ["loss_output"]
        executor = symbol.simple_bind(ax.cpu(), grad_req="write", data=data.shape, label=label.shape)
        executor.copy_params_from(wide)
        for name in symbol.list_auxiliary_states():
            executor.aux_dict[name][...] = 1024
        executor.forward(is_train=True, data=data.astype(np.float32), label=label.astype(np.float32))
        executor.backward()
        found.append((executor.outputs[0].copy(), {n: executor.grad_dict[n].copy() for n in wide}))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for name in wide:
        np.testing.assert_array_equal(found[0][1][name] * 1024, found[1][1][name])


def test_every_head_and_every_loss_has_its_place() -> None:
    data = sym.Variable("data")
    one, two = sym.FullyConnected(data, num_hidden=3, name="one"), sym.FullyConnected(data, num_hidden=3, name="two")
    both = sym.Group([sym.SoftmaxOutput(one, name="softmax"), two, sym.BlockGrad(one, name="seen"), data])
    scaled = scale_loss(both, "by")
    assert scaled.list_auxiliary_states() == ["by"]  # one for all
    assert scaled.list_outputs() == ["softmax_output", "two_scaled_output", "seen_output", "data"]
    assert scaled.list_arguments() == both.list_arguments()
    assert sym.load_json(scaled.tojson()).tojson() == scaled.tojson()
    executor = scaled.simple_bind(ax.cpu(), grad_req="write", data=(4, 2))
    assert executor.aux_dict["by"] == [0]
    grads = []
    for value in (0, 1, 8):  # 0, as new arrays are: 1
        executor.aux_dict["by"][...] = value
        executor.arg_dict["data"][...] = 0.5
        executor.forward(is_train=True)
        executor.backward([None, np.ones((4, 3), np.float32), None, np.zeros((4, 2), np.float32)])
        grads.append({name: executor.grad_dict[name].copy() for name in ("one_bias", "two_bias")})
    for name in ("one_bias", "two_bias"):
        assert np.abs(grads[0][name]).max() > 0
        np.testing.assert_array_equal(grads[0][name], grads[1][name])
        np.testing.assert_array_equal(grads[1][name] * 8, grads[2][name])


def test_a_cut_graph_keeps_its_context() -> None:
    with ax.AttrScope(ctx_group="far"):
        loss = sym.SoftmaxOutput(sym.Variable("data"), name="softmax")
    nodes = {node.name: node for node in scale_loss(loss).graph.nodes}
    assert nodes["softmax_scaled_data"].attributes == {"__ctx_group__": "far"}


class Held:
    """What has an auxiliary state, as an executor has."""

    def __init__(self) -> None:
        self.aux_dict = {"loss_scale": np.zeros(1, np.float32)}


def test_the_scale_moves_by_the_rule() -> None:
    scale, held = DynamicLossScale(init=8, window=3, least=2, most=32), Held()
    good, bad = [np.ones(3, np.float16)], [np.array([1, np.inf], np.float16)]
    scale.attach(held)
    assert held.aux_dict["loss_scale"] == [8]
    told = [(scale.accepts(good), scale.used, scale.scale) for _ in range(7)]
    assert told == [(True, 8, 8), (True, 8, 8), (True, 8, 16), (True, 16, 16), (True, 16, 16), (True, 16, 32), (True, 32, 32)]
    scale.good_steps = 2
    assert scale.accepts(good)
    assert scale.scale == 32  # most
    told = [(scale.accepts(bad), scale.used, scale.scale) for _ in range(5)]
    assert told == [(False, 32, 16), (False, 16, 8), (False, 8, 4), (False, 4, 2), (False, 2, 2)]
    assert scale.skipped == 5
    assert scale.good_steps == 0
    held.aux_dict["loss_scale"][...] = 4  # a checkpoint was loaded: gradients are divided by what they were multiplied with
    assert scale.accepts(good)
    assert (scale.used, scale.scale) == (4, 2)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_all_finite(kind: Any) -> None:
    most = np.full(5000, np.finfo(kind).max if kind == np.float16 else 1e30, kind)
    assert all_finite([most, np.zeros(0, kind), np.arange(3)])
    for value in (np.nan, np.inf, -np.inf):
        bad = most.copy()
        bad[4711] = value
        assert not all_finite([most, bad])
    assert not all_finite([np.array([np.inf, -np.inf], kind)])


def test_a_skipped_step_changes_nothing_and_resuming_goes_on() -> None:
    scale, held = DynamicLossScale(init=8), Held()
    scale.attach(held)
    updater = optimizer.get_updater(optimizer.create("adam", multi_precision=True), scale)
    weight, grad = np.ones(4, np.float16), np.full(4, 8, np.float16)
    updater.update_all(["w"], [grad], [weight])
    moved = weight.copy()
    assert (moved < 1).all()
    saved = pickle.dumps(updater.get_states())
    grad[1] = np.nan
    updater.update_all(["w"], [grad], [weight])
    np.testing.assert_array_equal(weight, moved)
    assert updater.optimizer.num_update == 1
    assert updater.optimizer.rescale_grad == 1
    assert scale.scale == 4
    again = DynamicLossScale(init=2)
    other = optimizer.get_updater(optimizer.create("adam", multi_precision=True), again)
    other.set_states(pickle.loads(saved))
    held = Held()
    again.attach(held)
    assert (again.scale, again.good_steps, held.aux_dict["loss_scale"][0]) == (8, 1, 8)
    grad[1] = 8
    other.update_all(["w"], [grad], [weight])
    assert (weight < moved).all()


def test_refusals() -> None:
    with pytest.raises(AttributeValueError, match=r"^DynamicLossScale: 0 < least <= init <= most must hold, but they are 1, 0.5, 2$"):
        DynamicLossScale(0.5, least=1, most=2)
    with pytest.raises(AttributeValueError, match=r"^DynamicLossScale: window must be at least 1, but it is 0$"):
        DynamicLossScale(window=0)
    with pytest.raises(ArgumentError, match=r"^DynamicLossScale: attach\(executor, group or manager\) comes before the first update$"):
        DynamicLossScale().accepts([])
    executor = network().simple_bind(ax.cpu(), data=(2, 2), label=(2, 1))
    text = r"^DynamicLossScale: there is no auxiliary state 'loss_scale'; bind scale_loss\(symbol\), not symbol$"
    with pytest.raises(UnknownNameError, match=text):
        DynamicLossScale().attach(executor)


def managed(comm: Any = None, devices: int = 1, poisoned: int = -1) -> tuple[Any, DynamicLossScale, list[Any]]:
    """A manager trained for 30 steps, its scale, and the parameters after every step.

    In step 5 one row of the batch (on rank ``poisoned``, or alone) makes infinity.
    """
    data, label, parameters = problem()
    shards = {} if comm is None else {"num_shards": comm.size, "shard_id": comm.rank}
    iterator = NDArrayIter({"data": data}, {"label": label}, 64, **shards)
    ax.random.seed(1)
    contexts = [ax.cpu(i) for i in range(devices)]
    manager = DataParallelExecutorManager(scale_loss(network()), contexts, iterator, comm=comm)
    manager.set_params(parameters)
    scale = DynamicLossScale(window=10)
    scale.attach(manager)
    updater, history = optimizer.get_updater(rule(), scale), []
    for step in range(30):
        iterator.reset()
        batch = next(iter(iterator))
        if step == 5 and (comm is None or comm.rank == poisoned):
            batch.data[0] = batch.data[0].copy()
            batch.data[0][-1] = np.inf
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        manager.update(updater)
        history.append({n: a.copy() for n, a in manager.stores[0].parameters.items()})
    return manager, scale, history


@pytest.mark.parametrize("devices", [1, 2])
def test_a_manager_skips_on_all_devices(devices: int) -> None:
    manager, scale, history = managed(devices=devices)
    assert scale.skipped == 1
    assert scale.scale == 2**17  # 2**15 after the step that was left out, doubled after steps 15 and 25
    for name in history[0]:
        np.testing.assert_array_equal(history[4][name], history[5][name])
    assert all((history[5][name] != history[6][name]).any() for name in ("one_weight", "two_weight"))
    for store in manager.stores:
        assert store.aux["loss_scale"] == [2**17]
        for name, value in store.parameters.items():
            np.testing.assert_array_equal(value, history[-1][name])


def test_a_group_has_the_scale_on_every_device() -> None:
    described = Described([DataDesc("data", (8, 2), np.float16)], [DataDesc("label", (8, 1), np.float16)])
    symbol, rows = scale_loss(network()), [slice(0, 4), slice(4, 8)]
    names = [n for n in symbol.list_arguments() if n not in ("data", "label")]
    group = DataParallelExecutorGroup(symbol, symbol.list_arguments(), names, [ax.cpu(0), ax.cpu(1)], rows, described)
    scale = DynamicLossScale(init=4)
    scale.attach(group)
    assert [executor.aux_dict["loss_scale"][0] for executor in group.train_execs] == [4, 4]
    assert not scale.accepts([np.array([np.nan], np.float16)])
    assert [executor.aux_dict["loss_scale"][0] for executor in group.train_execs] == [2, 2]


@pytest.mark.mpi
def test_ranks_skip_together(tmp_path: Path) -> None:
    run = run_ranks("loss_scale.py", 2, tmp_path, timeout=60)
    assert (run.code, run.err) == (0, "")
    told = [np.load(tmp_path / f"{rank}.npz") for rank in (0, 1)]
    for name in told[0].files:
        np.testing.assert_array_equal(told[0][name], told[1][name])
    assert told[0]["scale"].tolist() == [2**17, 1]
    np.testing.assert_array_equal(told[0]["one_weight_4"], told[0]["one_weight_5"])
    assert (told[0]["one_weight_5"] != told[0]["one_weight_6"]).any()
