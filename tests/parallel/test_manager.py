"""The manager: buckets in any order, parameters by name, updates of what was used, accumulation, monitors."""

from __future__ import annotations

import gc
import logging
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import BucketError, NotBoundError, StaleForwardError
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import DataBatch
from arrayexec.train.monitor import Monitor
from tests.parallel.networks import Described, lstm, mlp, values

sym = ax.sym
FLAT = Described({"data": (8, 6)}, {"softmax_label": (8,)})
OWN = lstm(1, 4, 9, own=(3, 5))
rng = np.random.default_rng(4)


def devices(count: int) -> list[Any]:
    return [ax.cpu(i) for i in range(count)]


def flat_batch(rows: int = 8, **options: Any) -> DataBatch:
    data = np.random.default_rng(rows).normal(size=(rows, 6))
    return DataBatch([data], [np.arange(rows) % 3], **options)


def words(length: int, rows: int = 4, key: Any = None) -> DataBatch:
    drawn = np.random.default_rng(length).integers(0, 9, (rows, length))
    return DataBatch([drawn], [drawn], bucket_key=length if key is None else key)


def bucketed(default: int = 5, count: int = 1, start: Any = None, **options: Any) -> DataParallelExecutorManager:
    """A manager of LSTM buckets of 4 sentences, with values for all parameters."""
    described = Described({"data": (4, default)}, {"softmax_label": (4, default)}, default_bucket_key=default)
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    manager = DataParallelExecutorManager(
        None, devices(count), described, sym_gen=OWN, **{"logger": quiet, **options}
    )  # fmt: skip
    manager.set_params(start or lstm_values())
    return manager


def lstm_values() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for length in (3, 5):
        found |= values(OWN(length), data=(4, length))[0]
    return found


def step(manager: DataParallelExecutorManager, batch: DataBatch, updater: Any = None) -> list[Any]:
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    manager.backward()
    if updater is not None:
        manager.update(updater)
    return manager.get_outputs()


def snapshot(manager: DataParallelExecutorManager) -> dict[str, Any]:
    names = {name for store in manager.stores for name in store.parameters}
    found = {name: np.empty_like(manager.stores[0].parameters[name]) for name in names}
    manager.copy_to(found)
    return found


def applied(manager: DataParallelExecutorManager) -> dict[str, Any]:
    """The gradients that an update applies."""
    found: dict[str, Any] = {}
    manager.update(lambda name, gradient, parameter: found.update({name: gradient.copy()}))
    return found


def sgd(**options: Any) -> optimizer.Updater:
    return optimizer.get_updater(optimizer.create("sgd", **{"learning_rate": 0.1, **options}))


def test_attributes() -> None:
    symbol = mlp(norm=True)
    manager = DataParallelExecutorManager(symbol, devices(2), FLAT, work_load_list=(1, 3))
    assert manager.symbol is symbol
    assert manager.sym_gen is None
    assert manager.ctx == devices(2)
    assert manager.slices == [slice(0, 2), slice(2, 8)]
    assert manager.arg_names == symbol.list_arguments()
    assert manager.param_names == [n for n in manager.arg_names if n not in ("data", "softmax_label")]
    assert manager.aux_names == ["bn_moving_mean", "bn_moving_var"]
    assert manager.curr_execgrp is None
    assert manager.execgrp_bucket == {None: manager.execgrp}
    assert [len(arrays) for arrays in manager.param_arrays] == [2] * 6
    assert [array.shape for arrays in manager.grad_arrays for array in arrays[:1]] == [
        arrays[0].shape for arrays in manager.param_arrays
    ]
    assert [len(arrays) for arrays in manager.aux_arrays] == [2, 2]
    manager.load_data_batch(flat_batch())
    assert manager.curr_execgrp is manager.execgrp
    given = DataParallelExecutorManager(
        symbol, ax.cpu(), FLAT, symbol.list_arguments(), ["fc1_weight", "fc1_bias"], symbol.list_auxiliary_states()
    )
    assert given.param_names == ["fc1_weight", "fc1_bias"]
    assert set(given.stores[0].gradients) == {"fc1_weight", "fc1_bias"}


# --- buckets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(5, 3, 4), (3, 4, 5), (4, 5, 3)])
def test_buckets_in_any_order_equal_executors_of_their_own(order: tuple[int, ...]) -> None:
    manager, args = bucketed(order[0], 2), lstm_values()
    for length in (*order, *order):
        batch = words(length)
        (output,) = step(manager, batch)
        alone = OWN(length).simple_bind(ax.cpu(), data=(4, length), softmax_label=(4, length))
        alone.copy_params_from(args, allow_extra_params=True)
        (want,) = alone.forward(is_train=True, data=batch.data[0], softmax_label=batch.label[0])
        alone.backward()
        np.testing.assert_allclose(output, want, rtol=1e-5)
        group: Any = manager.curr_execgrp
        assert set(group.param_names) == set(alone.arg_dict) - {"data", "softmax_label"}
        for name, parts in zip(group.param_names, group.grad_arrays, strict=True):
            np.testing.assert_allclose(sum(parts), alone.grad_dict[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert set(manager.execgrp_bucket) == set(order)


def test_what_a_bucket_does_not_use_is_left_alone() -> None:
    manager = bucketed()
    updater = sgd(momentum=0.9, wd=0.1)
    step(manager, words(3), updater)
    before = snapshot(manager)
    momentum = {key: {n: a.copy() for n, a in state.items()} for key, state in updater.states.items()}
    assert np.abs(momentum["own3_weight"]["momentum"]).max() > 0
    step(manager, words(4), updater)
    step(manager, words(5), updater)
    after = snapshot(manager)
    for name in ("own3_weight", "own3_bias"):
        np.testing.assert_array_equal(after[name], before[name])
        np.testing.assert_array_equal(updater.states[name]["momentum"], momentum[name]["momentum"])
        assert updater.optimizer.update_counts[name] == 1
    for name in ("scores_weight", "own5_weight"):
        assert np.abs(after[name] - before[name]).max() > 0


def test_batch_sizes_differ_from_bucket_to_bucket() -> None:
    """Also batches with fewer rows than devices, and after them full ones: devices join late with right values."""
    several, alone = bucketed(count=3), bucketed()
    updaters = sgd(momentum=0.9), sgd(momentum=0.9)
    for length, rows in ((3, 1), (5, 4), (3, 7), (4, 2), (3, 4), (5, 1)):
        for manager, updater in zip((several, alone), updaters, strict=True):
            step(manager, words(length, rows), updater)
    for name, value in snapshot(alone).items():
        np.testing.assert_allclose(snapshot(several)[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert [len(group.train_execs) for group in several.execgrp_bucket.values()] == [3, 1, 2]


def test_loads_of_zero_leave_devices_out() -> None:
    manager = DataParallelExecutorManager(mlp(), devices(3), FLAT, work_load_list=[0, 1, 1])
    alone = DataParallelExecutorManager(mlp(), ax.cpu(), FLAT)
    args, _ = values(mlp(), data=(8, 6))
    for one in (manager, alone):
        one.set_params(args)
        step(one, flat_batch(), sgd())
        step(one, flat_batch(1), sgd())
    found = {name: np.empty_like(value) for name, value in args.items()}
    manager.copy_to(found)
    for name, value in snapshot(alone).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7)


def test_keys_may_be_tuples_lists_and_texts() -> None:
    seen = []

    def build(key: Any) -> Any:
        seen.append(key)
        return OWN(key[0])

    described = Described({"data": (4, 5)}, {"softmax_label": (4, 5)}, default_bucket_key=[5, "a"])
    manager = DataParallelExecutorManager(None, ax.cpu(), described, sym_gen=build)
    for key in ([5, "a"], (5, "a"), [3, [1, 2]]):
        step(manager, words(key[0], key=key))
    assert list(manager.execgrp_bucket) == [(5, "a"), (3, (1, 2))]
    assert seen == [(5, "a"), (3, (1, 2))]


def test_sym_gen_may_name_the_inputs() -> None:
    def build(key: int) -> Any:
        total = sum((sym.Variable(f"t{i}") for i in range(1, key)), sym.Variable("t0"))
        net = sym.FullyConnected(total, num_hidden=3, name="fc")
        return sym.SoftmaxOutput(net, sym.Variable("label"), name="softmax"), [f"t{i}" for i in range(key)], ["label"]

    described = Described({f"t{i}": (4, 2) for i in range(3)}, {"label": (4,)}, default_bucket_key=3)
    manager = DataParallelExecutorManager(None, devices(2), described, sym_gen=build)
    manager.set_params({"fc_weight": np.ones((3, 2)), "fc_bias": np.arange(3)})
    inputs = [np.full((4, 2), i + 1.0) for i in range(5)]
    for key in (3, 5, 2):
        manager.load_data_batch(DataBatch(inputs[:key], [np.zeros(4)], bucket_key=key))
        manager.forward()
        group: Any = manager.curr_execgrp
        assert group.data_names == [f"t{i}" for i in range(key)]
        assert group.param_names == ["fc_weight", "fc_bias"]
        np.testing.assert_array_equal(group.train_execs[1].arg_dict["t1"], inputs[1][2:])


def test_values_are_kept_for_the_bucket_that_brings_the_parameter() -> None:
    manager = bucketed(count=2)
    kept = lstm_values()["own3_weight"]
    manager.load_data_batch(words(3))
    for arrays in (store.parameters for store in manager.stores):
        np.testing.assert_array_equal(arrays["own3_weight"], kept)


def test_a_parameter_without_a_value_is_refused_until_it_has_one() -> None:
    manager = bucketed(start={name: value for name, value in lstm_values().items() if not name.startswith("own3")})
    for _ in range(2):
        with pytest.raises(BucketError, match="brings 'own3_weight', which has no value"):
            manager.load_data_batch(words(3))
    manager.set_params({name: value for name, value in lstm_values().items() if name.startswith("own3")})
    step(manager, words(3))


def test_growth_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("growing")
    manager = bucketed(3, 2, logger=logger)
    with caplog.at_level(logging.WARNING, "growing"):
        for length in (3, 4, 5, 6, 3):
            manager.load_data_batch(words(length))
            manager.forward()
    texts = [record.getMessage() for record in caplog.records if record.name == "growing"]
    assert [text.split()[1] for text in texts] == ["'data'", "'softmax_label'"]


def test_monitors_see_every_bucket_and_device_present_and_future() -> None:
    manager = bucketed(count=2)
    step(manager, words(5))
    monitor = Monitor(1, lambda array: float(array.reshape(-1)[0]), pattern="scores_output|scores_weight")
    manager.install_monitor(monitor)
    for length in (5, 3):
        monitor.tic()
        step(manager, words(length))
        seen = {(name, float(text)) for _, name, text in monitor.toc()}
        tags = [f"bucket {length} cpu({i})" for i in range(2)]
        assert {name for name, _ in seen} == {f"scores_{what}[{tag}]" for what in ("output", "weight") for tag in tags}
        weight = manager.stores[0].parameters["scores_weight"].reshape(-1)[0]
        assert {value for name, value in seen if "weight" in name} == {float(weight)}


def test_a_monitor_of_ones_own_sees_true_values_in_shared_memory() -> None:
    """``install(executor)`` is all it needs; every bucket and device reports the values of its own rows."""

    def pairs(key: int) -> Any:
        summed = sym.sum(sym.Reshape(sym.Variable("data"), shape=(0, -1, 2)), axis=1)
        hidden = sym.relu(sym.FullyConnected(summed, num_hidden=4, name="fc1"), name="act")
        return sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")

    seen: dict[tuple[str, str], list[np.ndarray]] = {}

    class Mine:
        def install(self, executor: Any) -> None:
            place = str(executor.context)
            executor.set_monitor_callback(lambda name, array: seen.setdefault((name, place), []).append(array))

    described = Described({"data": (6, 6)}, {"softmax_label": (6,)}, default_bucket_key=3)
    manager = DataParallelExecutorManager(None, devices(2), described, sym_gen=pairs)
    given = values(pairs(3), data=(6, 6))[0]
    manager.set_params(given)
    manager.install_monitor(Mine())
    for key in (3, 1, 2, 1, 3):
        seen.clear()
        data = rng.normal(size=(6, 2 * key)).astype(np.float32)
        step(manager, DataBatch([data], [np.arange(6) % 3], bucket_key=key))
        fc1 = data.reshape(6, -1, 2).sum(1) @ given["fc1_weight"].T + given["fc1_bias"]
        for name, want in (("fc1_output", fc1), ("act_output", np.maximum(fc1, 0))):
            for i in range(2):
                (array,) = seen[name, f"cpu({i})"]
                np.testing.assert_allclose(array, want[3 * i : 3 * i + 3], rtol=1e-5, atol=1e-5)
        assert (fc1 < 0).any(), "act works in place"


# --- parameters ----------------------------------------------------------------------------------------------------


def test_copy_to_gives_the_mean_over_devices() -> None:
    manager = DataParallelExecutorManager(mlp(norm=True), devices(3), FLAT)
    for arrays in (*manager.param_arrays, *manager.aux_arrays):
        for i, array in enumerate(arrays):
            array[:] = i + 1.5
    held = np.zeros(8, np.float16), np.zeros(8, np.float64)
    manager.copy_to({"fc1_bias": held[0]}, {"bn_moving_var": held[1]})
    for array in held:
        np.testing.assert_array_equal(array, np.full(8, 2.5))
    third = np.float32(1) / 3
    for arrays in manager.param_arrays:
        for array in arrays:
            array[:] = third
    bias = np.zeros(8, np.float32)
    manager.copy_to({"fc1_bias": bias})
    assert (bias == third).all()  # to the bit


def test_set_params_reaches_all_devices_and_copies() -> None:
    manager = DataParallelExecutorManager(mlp(), devices(2), FLAT)
    bias = np.arange(8.0)
    manager.set_params({"fc1_bias": bias})
    bias[:] = 0
    for array in manager.param_arrays[1]:
        np.testing.assert_array_equal(array, np.arange(8))
    with pytest.raises(ValueError, match="'fc2_bias' must be"):
        manager.set_params({"fc1_bias": np.ones(8), "fc2_bias": np.ones(8)})
    np.testing.assert_array_equal(manager.param_arrays[1][0], np.arange(8))


def test_a_fixed_gamma_is_never_updated() -> None:
    net = sym.BatchNorm(sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc"), name="bn")
    manager = DataParallelExecutorManager(sym.SoftmaxOutput(net, name="softmax"), devices(2), FLAT)
    manager.set_params({"bn_gamma": np.full(3, 0.5), "fc_weight": rng.normal(size=(3, 6))})
    for _ in range(3):
        step(manager, flat_batch(), sgd(wd=0.5))
    for array in manager.param_arrays[manager.param_names.index("bn_gamma")]:
        np.testing.assert_array_equal(array, np.full(3, 0.5))
    beta = manager.param_arrays[manager.param_names.index("bn_beta")][0]
    assert np.abs(beta).max() > 0


# --- a step --------------------------------------------------------------------------------------------------------


def test_head_gradients_of_a_net_without_loss() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    head = rng.normal(size=(8, 3))
    batch = flat_batch()
    for count in (1, 3):
        manager = DataParallelExecutorManager(net, devices(count), FLAT)
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward([head])
        manager.update(lambda name, gradient, parameter: None)
        np.testing.assert_allclose(manager.grad_arrays[0][0], head.T @ batch.data[0], rtol=1e-4, atol=1e-5)


def test_inference_without_labels_uses_the_groups_of_training() -> None:
    manager = DataParallelExecutorManager(mlp(), devices(2), FLAT)
    manager.set_params(values(mlp(), data=(8, 6))[0])
    (trained,) = step(manager, flat_batch())
    manager.load_data_batch(DataBatch(flat_batch().data))
    manager.forward()
    np.testing.assert_array_equal(manager.get_outputs()[0], trained)
    assert manager.curr_execgrp is manager.execgrp
    manager.load_data_batch(DataBatch(flat_batch(3).data))
    manager.forward()
    assert manager.get_outputs()[0].shape == (3, 3)
    buckets = bucketed()
    for length in (3, 5):
        (trained,) = step(buckets, words(length))
        buckets.load_data_batch(DataBatch(words(length).data, bucket_key=length))
        buckets.forward()
        np.testing.assert_array_equal(buckets.get_outputs()[0], trained)


def test_padded_rows_count_or_do_not() -> None:
    label = np.arange(8) % 3
    for drop, rows in ((None, 8), (False, 8), (True, 5)):
        manager = DataParallelExecutorManager(mlp(), devices(2), FLAT, drop_pad=drop)
        manager.load_data_batch(flat_batch(pad=3))
        manager.forward()
        metric = ax.metric.create("acc")
        manager.update_metric(metric, [label])
        assert metric.num_inst == rows
        assert manager.get_outputs()[0].shape == (rows, 3)


def test_a_batch_may_be_any_object() -> None:
    manager = DataParallelExecutorManager(mlp(), ax.cpu(), FLAT)
    batch = flat_batch()
    step(manager, SimpleNamespace(data=batch.data, label=batch.label))  # type: ignore[arg-type]


def test_a_batch_loaded_between_forward_and_backward_is_noticed() -> None:
    manager = DataParallelExecutorManager(mlp(), devices(2), FLAT)
    step(manager, flat_batch())
    manager.forward(is_train=True)
    manager.load_data_batch(flat_batch())
    with pytest.raises(StaleForwardError, match="load_data_batch has written arguments since the last forward"):
        manager.backward()


def test_a_refused_batch_leaves_nothing_to_run() -> None:
    manager = DataParallelExecutorManager(mlp(), ax.cpu(), FLAT)
    step(manager, flat_batch())
    with pytest.raises(ValueError, match="'softmax_label' of the batch must have"):
        manager.load_data_batch(DataBatch([np.zeros((8, 6))], [np.zeros(7)], provide_data=FLAT.provide_data,
                                          provide_label=FLAT.provide_label))  # fmt: skip
    with pytest.raises(NotBoundError, match="forward: load a batch first"):
        manager.forward()
    step(manager, flat_batch())


def test_two_updates_use_the_same_gradients() -> None:
    for count in (1, 3):
        manager = DataParallelExecutorManager(mlp(), devices(count), FLAT)
        manager.set_params(values(mlp(), data=(8, 6))[0])
        step(manager, flat_batch())
        first, second = applied(manager), applied(manager)
        assert first.keys() == set(manager.param_names)
        for name, gradient in first.items():
            np.testing.assert_array_equal(second[name], gradient)
            assert np.abs(gradient).max() > 0


def test_the_next_batch_may_be_loaded_before_the_update() -> None:
    found = []
    for early in (False, True):
        manager = DataParallelExecutorManager(mlp(), devices(3), FLAT)
        manager.set_params(values(mlp(), data=(8, 6))[0])
        step(manager, flat_batch())
        if early:
            manager.load_data_batch(flat_batch(1))  # goes to one device alone
        found.append(applied(manager))
    for name, gradient in found[0].items():
        np.testing.assert_array_equal(found[1][name], gradient)


def test_a_backward_that_failed_leaves_nothing_to_apply() -> None:
    manager = DataParallelExecutorManager(mlp(), ax.cpu(), FLAT)
    step(manager, flat_batch())
    with pytest.raises(ValueError, match="2 head gradients for 1 outputs"):
        manager.backward([None, np.zeros((8, 3))])
    with pytest.raises(NotBoundError, match="run backward first"):
        manager.update(sgd())


# --- accumulation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_accumulate_over_backwards_and_buckets(count: int) -> None:
    adding = bucketed(count=count, grad_req="add")
    singly = bucketed()
    sums: dict[str, Any] = {}
    for length in (3, 4, 3):
        step(adding, words(length))
        step(singly, words(length))
        for name in singly.curr_execgrp.param_names:  # type: ignore[union-attr]
            sums[name] = sums.get(name, 0) + singly.stores[0].gradients[name]
    found = applied(adding)
    assert found.keys() == sums.keys()
    assert "own3_weight" in found
    for name, value in sums.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    adding.zero_grad()
    step(adding, words(4))
    again = applied(adding)
    step(singly, words(4))
    assert again.keys() == set(singly.curr_execgrp.param_names)  # type: ignore[union-attr]
    np.testing.assert_allclose(again["scores_bias"], singly.stores[0].gradients["scores_bias"], rtol=1e-4, atol=1e-6)


def test_sums_over_devices_are_not_added_to() -> None:
    one, two = (DataParallelExecutorManager(mlp(), devices(count), FLAT, grad_req="add") for count in (1, 2))
    for manager in (one, two):
        step(manager, flat_batch(), sgd())
    step(one, flat_batch())  # as an executor: gradients stay until they are zeroed
    with pytest.raises(NotBoundError, match="call zero_grad"):
        step(two, flat_batch())
    two.zero_grad()
    step(two, flat_batch())


# --- auxiliary states ----------------------------------------------------------------------------------------------


def test_inference_uses_the_mean_of_the_states_over_devices() -> None:
    symbol = mlp(norm=True)
    args, aux = values(symbol, data=(8, 6))
    manager = DataParallelExecutorManager(symbol, devices(3), FLAT)
    manager.set_params(args, aux)
    step(manager, flat_batch())
    held = [[array.copy() for array in arrays] for arrays in manager.aux_arrays]
    assert all(np.abs(arrays[0] - arrays[1]).max() > 1e-4 for arrays in held)
    manager.load_data_batch(flat_batch())
    manager.forward()
    means = {name: np.mean(arrays, axis=0) for name, arrays in zip(manager.aux_names, held, strict=True)}
    for name, arrays in zip(manager.aux_names, manager.aux_arrays, strict=True):
        for array in arrays:
            np.testing.assert_allclose(array, means[name], rtol=1e-6)
    alone = symbol.simple_bind(ax.cpu(), grad_req="null", data=(8, 6))
    alone.copy_params_from(args, means)
    np.testing.assert_allclose(manager.get_outputs()[0], alone.forward(data=flat_batch().data[0])[0], rtol=1e-5)


def test_memory_is_given_back_with_the_manager() -> None:
    manager = bucketed(count=2)
    for length in (3, 5):
        step(manager, words(length), sgd())
    watched = [weakref.ref(one) for group in manager.execgrp_bucket.values() for one in (group, *group.train_execs)]
    watched += [weakref.ref(store.arena) for store in manager.stores]
    gc.collect()
    gc.disable()
    try:
        del manager
        assert [one() for one in watched] == [None] * len(watched)  # at once, without a collection
    finally:
        gc.enable()


def test_groups_that_were_let_go_come_back_with_the_same_numbers() -> None:
    def train(max_groups: int | None) -> tuple[list[Any], list[str], DataParallelExecutorManager]:
        described = Described({"data": (4, 5)}, {"softmax_label": (4, 5)}, default_bucket_key=5)
        manager = DataParallelExecutorManager(
            None, [ax.cpu(0), ax.cpu(1)], described, sym_gen=lstm(1, 4, 9), max_groups=max_groups
        )
        random = np.random.default_rng(3)
        shapes = {name: array[0].shape for name, array in zip(manager.param_names, manager.param_arrays, strict=True)}
        manager.set_params({name: random.normal(0, 0.3, shape) for name, shape in shapes.items()}, {})
        monitor = ax.mon.Monitor(1, pattern=".*softmax_output")
        manager.install_monitor(monitor)
        updater, outputs, watched = ax.optimizer.get_updater(ax.optimizer.create("adam")), [], []
        for key in (5, 3, 4, 5, 2, 3, 5):
            words = random.integers(0, 9, (4, key)).astype("float32")
            monitor.tic()
            manager.load_data_batch(DataBatch([words], [words], bucket_key=key))
            manager.forward(is_train=True)
            manager.backward()
            outputs.append(manager.get_outputs()[0].copy())
            watched.append(len(monitor.toc()))
            manager.update(updater)
        return outputs, watched, manager

    everything, seen, manager = train(None)
    assert len(manager.execgrp_bucket) == 4
    for most in (1, 2):
        found, watched, manager = train(most)
        assert len(manager.execgrp_bucket) == most and watched == seen and min(seen) > 0
        assert all(np.array_equal(a, b) for a, b in zip(found, everything, strict=True))
        assert manager.execgrp.slices == manager.slices
