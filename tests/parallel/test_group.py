"""Groups: arrays and rows of every device, head gradients, layouts, threads; binding one executor."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArrayExecError
from arrayexec.parallel import executor_manager
from arrayexec.parallel.executor_manager import (
    DataParallelExecutorGroup,
    _bind_exec,
    _check_arguments,
    _load_data,
    _load_general,
    _load_label,
)
from arrayexec.registry import Op, register_op
from arrayexec.train.io import DataDesc
from tests.parallel.networks import Described, mlp, values

sym = ax.sym
ROWS = [slice(0, 3), slice(3, 4), slice(4, 8)]
FLAT = Described({"data": (8, 6)}, {"softmax_label": (8,)})
DEVICES = [ax.cpu(i) for i in range(3)]


def group(symbol: Any, described: Any = FLAT, slices: Any = ROWS, devices: Any = DEVICES, **options: Any) -> DataParallelExecutorGroup:
    arguments = symbol.list_arguments()
    names = {item.name for item in (*described.provide_data, *described.provide_label)}
    return DataParallelExecutorGroup(
        symbol, arguments, [n for n in arguments if n not in names], devices, slices, described, **options
    )


def fill(one: DataParallelExecutorGroup, args: dict[str, Any]) -> None:
    for name, arrays in zip(one.param_names, one.param_arrays, strict=True):
        for array in arrays:
            array[:] = args[name]


def test_attributes() -> None:
    one = group(mlp(norm=True))
    assert one.slices == ROWS
    assert one.data_names == ["data"]
    assert one.label_names == ["softmax_label"]
    assert one.param_names == ["fc1_weight", "fc1_bias", "bn_gamma", "bn_beta", "fc2_weight", "fc2_bias"]
    assert one.param_idx == [1, 2, 3, 4, 5, 6]
    assert one.aux_names == ["bn_moving_mean", "bn_moving_var"]
    assert [executor.context for executor in one.train_execs] == DEVICES
    assert len(one.shared_data_arrays) == 3
    assert [rows for rows, _ in one.data_arrays[0]] == ROWS
    assert [array.shape for _, array in one.data_arrays[0]] == [(3, 6), (1, 6), (4, 6)]
    assert [array.shape for _, array in one.label_arrays[0]] == [(3,), (1,), (4,)]
    for i, executor in enumerate(one.train_execs):
        assert np.shares_memory(one.shared_data_arrays[i]["data"], executor.arg_dict["data"])
        for arrays, name in zip(one.param_arrays, one.param_names, strict=True):
            assert arrays[i] is executor.arg_dict[name]
        for arrays, name in zip(one.grad_arrays, one.param_names, strict=True):
            assert arrays[i] is executor.grad_dict[name]
        for arrays, name in zip(one.aux_arrays, one.aux_names, strict=True):
            assert arrays[i] is executor.aux_dict[name]


def test_a_batch_is_cut_and_its_types_are_cast() -> None:
    one = group(mlp())
    data, label = np.arange(48.0).reshape(8, 6), np.arange(8)
    one.load_data_batch(SimpleNamespace(data=[data], label=[label]))
    for rows, executor in zip(ROWS, one.train_execs, strict=True):
        np.testing.assert_array_equal(executor.arg_dict["data"], data[rows])
        np.testing.assert_array_equal(executor.arg_dict["softmax_label"], label[rows])


def test_outputs_and_metrics_are_those_of_the_rows() -> None:
    symbol = mlp()
    args, _ = values(symbol, data=(8, 6))
    data, label = np.random.default_rng(1).normal(size=(8, 6)), np.arange(8) % 3
    batch = SimpleNamespace(data=[data], label=[label])
    results = []
    for slices, devices in ((ROWS, DEVICES), ([slice(0, 8)], [ax.cpu()])):
        one = group(symbol, slices=slices, devices=devices)
        fill(one, args)
        one.load_data_batch(batch)
        one.forward()
        metric = ax.metric.create("acc")
        one.update_metric(metric, [label])
        sliced = ax.metric.create("acc")
        one.update_metric(sliced, [[label[rows]] for rows in slices], pre_sliced=True)
        assert metric.get() == sliced.get()
        assert metric.num_inst == 8
        results.append((one.get_outputs()[0], metric.get()))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    assert results[0][1] == results[1][1]
    parts = group(symbol)
    parts.load_data_batch(batch)
    parts.forward()
    assert [[part.shape for part in output] for output in parts.get_outputs(merge_multi_context=False)] == [
        [(3, 3), (1, 3), (4, 3)]
    ]


def test_labels_that_the_symbol_does_not_read() -> None:
    described = Described({"data": (8, 6)}, {"other_label": (8,), "softmax_label": (8,)})
    one = group(mlp(), described)
    assert one.label_names == ["softmax_label"]
    label = np.arange(8)
    one.load_data_batch(SimpleNamespace(data=[np.zeros((8, 6))], label=[label + 50, label]))
    np.testing.assert_array_equal(one.label_arrays[0][2][1], label[4:])


def test_head_gradients_are_cut_like_the_outputs() -> None:
    """Each row of the batch makes two rows of the output."""
    net = sym.Reshape(sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc"), shape=(-1, 3))
    described = Described({"data": (8, 5)}, {})
    args, _ = values(net, data=(8, 5))
    data, head = np.random.default_rng(1).normal(size=(8, 5)), np.random.default_rng(2).normal(size=(16, 3))
    sums = []
    for slices, devices in ((ROWS, DEVICES), ([slice(0, 8)], [ax.cpu()])):
        one = group(net, described, slices, devices)
        fill(one, args)
        one.load_data_batch(SimpleNamespace(data=[data], label=None))
        one.forward(is_train=True)
        one.backward(head)
        sums.append(sum(one.grad_arrays[0]))
        one.forward(is_train=True)
        one.backward([head])
        np.testing.assert_array_equal(sum(one.grad_arrays[0]), sums[-1])
    want = head.reshape(8, 6).T @ data
    for found in sums:
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_batches_along_another_axis() -> None:
    """Layout TN: the batch is axis 1 of data and label."""
    net = sym.Embedding(sym.Variable("data"), input_dim=9, output_dim=4, name="embed")
    scores = sym.FullyConnected(sym.Reshape(net, shape=(-1, 4)), num_hidden=9, name="fc")
    net = sym.SoftmaxOutput(scores, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")
    described = Described({"data": (5, 8)}, {"softmax_label": (5, 8)}, layout="TN")
    assert described.batch_size == 8
    words = np.random.default_rng(3).integers(0, 9, (5, 8))
    args, _ = values(net, data=(5, 8), softmax_label=(5, 8))
    sums = []
    for slices, devices in ((ROWS, DEVICES), ([slice(0, 8)], [ax.cpu()])):
        one = group(net, described, slices, devices)
        fill(one, args)
        one.load_data_batch(SimpleNamespace(data=[words], label=[words]))
        np.testing.assert_array_equal(one.train_execs[-1].arg_dict["data"], words[:, slices[-1]])
        one.forward(is_train=True)
        one.backward()
        metric = ax.metric.create("acc")
        one.update_metric(metric, [words])
        assert metric.num_inst == 40
        sums.append([sum(arrays) for arrays in one.grad_arrays])
    for several, alone in zip(*sums, strict=True):
        np.testing.assert_allclose(several, alone, rtol=1e-4, atol=1e-6)


def test_a_group_shares_everything_with_another() -> None:
    first = group(mlp())
    second = group(mlp(), Described({"data": (5, 6)}, {"softmax_label": (5,)}), [slice(0, 2), slice(2, 4), slice(4, 5)], shared_group=first)
    for mine, its in zip(second.train_execs, first.train_execs, strict=True):
        assert mine.arena is its.arena
        assert np.shares_memory(mine.arg_dict["data"], its.arg_dict["data"])
        for name in first.param_names:
            assert mine.arg_dict[name] is its.arg_dict[name]
            assert mine.grad_dict[name] is its.grad_dict[name]


# --- threads -------------------------------------------------------------------------------------------------------


SEEN: set[str] = set()


@register_op
class FailsAt13(Op):
    """``out = data``; fails where a value is 13, and notes the thread."""

    examples = ({"data": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        SEEN.add(threading.current_thread().name)
        if (data == 13).any():
            raise ZeroDivisionError("thirteen")
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)


def test_devices_run_in_threads_and_their_exceptions_come_out() -> None:
    net = sym.FailsAt13(sym.FullyConnected(sym.Variable("data"), num_hidden=1, no_bias=True, name="fc"), name="check")
    one = group(net, Described({"data": (8, 1)}, {}))
    fill(one, {"fc_weight": 1})
    data = np.arange(6.0, 14).reshape(8, 1)  # the last row, on the last device, is 13
    one.load_data_batch(SimpleNamespace(data=[data], label=None))
    SEEN.clear()
    with pytest.raises(ZeroDivisionError, match="thirteen") as caught:
        one.forward(is_train=True)
    assert caught.value.__notes__[-1] == "on cpu(2), one of 3 devices"
    assert SEEN
    assert all(name.startswith("arrayexec-device") for name in SEEN)
    one.load_data_batch(SimpleNamespace(data=[data - 5], label=None))
    one.forward(is_train=True)
    one.backward(np.ones((8, 1), np.float32))
    assert sum(one.grad_arrays[0]) == (data - 5).sum()


def test_callbacks_run_on_the_callers_thread() -> None:
    one = group(mlp())
    threads = set()
    for executor in one.train_execs:
        executor.set_monitor_callback(lambda name, array: threads.add(threading.current_thread()))
    one.forward()
    assert threads == {threading.current_thread()}


# --- one executor --------------------------------------------------------------------------------------------------

PARAMETERS = ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]


def test_names_of_the_seed() -> None:
    for name in ("split_input_slice", "check_arguments", "load_general", "load_data", "load_label", "bind_exec"):
        assert getattr(executor_manager, f"_{name}") is getattr(executor_manager, name)
    assert ax.executor_manager is executor_manager


@pytest.mark.parametrize(
    ("need", "names"),
    [
        (False, set()),
        (True, set(PARAMETERS)),
        ({"fc1_weight"}, {"fc1_weight"}),
        (["data", "fc2_bias"], {"data", "fc2_bias"}),
    ],
)
def test_bind_exec_gives_the_gradients_asked_for(need: Any, names: set[str]) -> None:
    executor = _bind_exec(mlp(), ax.cpu(), {"data": (4, 6)}, PARAMETERS, need)
    assert {name for name, array in executor.grad_dict.items() if array is not None} == names
    assert executor.arg_dict["softmax_label"].shape == (4,)


def test_bind_exec_takes_types() -> None:
    executor = _bind_exec(mlp(), ax.cpu(), {"data": (4, 6)}, PARAMETERS, True, input_types={"data": np.float64})
    assert {executor.arg_dict[name].dtype for name in ("data", *PARAMETERS)} == {np.dtype(np.float64)}


def test_bind_exec_borrows_from_another_executor() -> None:
    pools: list[dict[str, Any]] = [{}]
    base = _bind_exec(mlp(norm=True), ax.cpu(), {"data": (4, 6)}, [*PARAMETERS, "bn_gamma", "bn_beta"], True, None, pools[0])
    names = [*PARAMETERS, "bn_gamma", "bn_beta", "new_weight"]
    net = sym.FullyConnected(mlp(norm=True).get_internals()["fc2_output"], num_hidden=2, no_bias=True, name="new")
    other = _bind_exec(net, ax.cpu(), {"data": (3, 6)}, names, {"data", "fc1_weight", "new_weight"}, base, pools[0])
    assert other.arena is base.arena
    for name in base.arg_dict:
        if name in names:
            assert other.arg_dict[name] is base.arg_dict[name]
    assert other.grad_dict["fc1_weight"] is base.grad_dict["fc1_weight"]
    assert other.grad_dict["fc2_weight"] is None
    assert other.grad_dict["data"].shape == (3, 6)
    assert other.aux_dict["bn_moving_var"] is base.aux_dict["bn_moving_var"]
    assert other.arg_dict["new_weight"].shape == (2, 3)
    assert np.shares_memory(other.arg_dict["data"], base.arg_dict["data"])


def test_inputs_are_created_borrowed_and_grown(caplog: pytest.LogCaptureFixture) -> None:
    shared = {"data": np.zeros((8, 6), np.float32)}
    held = shared["data"]
    small = _bind_exec(mlp(), ax.cpu(), {"data": (4, 6)}, PARAMETERS, shared_data_arrays=shared)
    assert np.shares_memory(small.arg_dict["data"], held)
    assert shared["softmax_label"].shape == (4,)
    logger = logging.getLogger("growing")
    with caplog.at_level(logging.WARNING, "growing"):
        large = _bind_exec(mlp(), ax.cpu(), {"data": (9, 6)}, PARAMETERS, shared_data_arrays=shared, logger=logger)
    assert [record.getMessage() for record in caplog.records if record.name == "growing"] == [
        "input 'data' needs (9, 6), more than the (8, 6) allocated: it grows; let the default bucket be the largest one",
        "input 'softmax_label' needs (9,), more than the (4,) allocated: it grows; let the default bucket be the largest one",
    ]
    assert large.arg_dict["data"].shape == (9, 6)
    assert shared["data"] is not held
    assert np.shares_memory(small.arg_dict["data"], shared["data"])


def test_loading_functions() -> None:
    whole, first, second = np.zeros((4, 2)), np.zeros((1, 2)), np.zeros((3, 2))
    source = np.arange(8).reshape(4, 2)
    _load_general([source, source], [whole, [(slice(0, 1), first), (slice(1, 4), second)]])
    np.testing.assert_array_equal(whole, source)
    np.testing.assert_array_equal(np.concatenate([first, second]), source)
    batch = SimpleNamespace(data=[source + 1], label=[source + 2])
    _load_data(batch, [whole])
    np.testing.assert_array_equal(whole, source + 1)
    _load_label(batch, [whole])
    np.testing.assert_array_equal(whole, source + 2)
    _load_label(SimpleNamespace(label=None), [whole])


def test_two_variables_of_one_name() -> None:
    _check_arguments(sym.Variable("a", shape=(2,)) * sym.Variable("a", shape=(2,)))
    with pytest.raises(ValueError, match="two variables are named 'a'") as caught:
        _check_arguments(sym.Variable("a", shape=(2,)) * sym.Variable("a", shape=(3,)))
    assert isinstance(caught.value, ArrayExecError)


def test_descriptions_may_be_tuples() -> None:
    described = SimpleNamespace(
        provide_data=[("data", (8, 6), np.float64)], provide_label=[DataDesc("softmax_label", (8,), np.int32)]
    )  # fmt: skip
    one = group(mlp(), SimpleNamespace(provide_data=[DataDesc(*described.provide_data[0])], provide_label=described.provide_label))
    assert one.train_execs[0].arg_dict["data"].dtype == np.float64
    two = DataParallelExecutorGroup(mlp(), mlp().list_arguments(), PARAMETERS, DEVICES, ROWS, described)
    assert two.train_execs[0].arg_dict["data"].dtype == np.float64
    assert two.train_execs[0].arg_dict["softmax_label"].dtype == np.int32
