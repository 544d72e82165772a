"""Stores by key: sums over devices and ranks, updates, gradients in two bits as MXNet 1.9.1 sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy
from arrayexec.module.two_bit import TwoBit
from tests.parallel import fake_nccl

RECORDED = json.loads((Path(__file__).parent / "two_bit.json").read_text())
"""What a `device` store of MXNet 1.9.1 gave for pushes of several devices, step after step."""


def pulled(store: Any, key: Any, shape: tuple[int, ...] = (2,)) -> list[float]:
    out = np.full(shape, -1, np.float32)
    store.pull(key, out)
    return out.reshape(-1).tolist()


def ones(number: float = 1, size: int = 2) -> Any:
    return np.full((size,), number, np.float32)


@pytest.mark.parametrize("kind", ["local", "device", "dist_sync", "mpi", "dist_device_sync"])
def test_a_push_replaces_what_is_stored_by_its_sum_over_devices(kind: str) -> None:
    store = ax.kv.create(kind)
    store.init("a", ones(5))
    assert pulled(store, "a") == [5, 5]
    store.push("a", [ones(1), ones(2), ones(4)], priority=-1)
    assert pulled(store, "a") == [7, 7]
    store.push("a", ones(3))
    assert pulled(store, "a") == [3, 3]
    assert (store.rank, store.num_workers) == (0, 1)


@pytest.mark.parametrize("name", ["LOCAL", "local_allreduce_device", "dist", "dist_sync_device"])
def test_other_spellings(name: str) -> None:
    store = ax.kvstore.create(name)
    assert store.type == name.lower() and isinstance(store, ax.kv.KVStore)


def test_sums_are_made_in_the_order_of_devices() -> None:
    store = ax.kv.create("device")
    store.init(3, ones(0))
    store.push(3, [ones(1e8), ones(-1e8), ones(1)])
    assert pulled(store, 3) == [1, 1]
    store.push(3, [ones(1e8), ones(1), ones(-1e8)])
    assert pulled(store, 3) == [0, 0]


def test_what_is_pushed_and_stored_stays_apart_from_the_caller() -> None:
    store, first, gradient = ax.kv.create(), ones(1), ones(2)
    store.init("a", first)
    first[:] = 9
    assert pulled(store, "a") == [1, 1]
    store.push("a", [gradient, gradient])
    assert gradient.tolist() == [2, 2]
    gradient[:] = 9
    assert pulled(store, "a") == [4, 4]


def test_lists_of_keys() -> None:
    store = ax.kv.create()
    store.init(["a", "b"], [ones(1), ones(2, 3)])
    store.push(["a", "b", "a"], [ones(1), [ones(1, 3), ones(1, 3)], ones(5)])
    outs = [np.zeros(2, np.float32), [np.zeros(3, np.float32), np.zeros(3)]]
    store.pull(["a", "b"], outs)
    assert outs[0].tolist() == [6, 6] and [out.tolist() for out in outs[1]] == [[2, 2, 2]] * 2


def test_pushpull_and_broadcast() -> None:
    store, out, arrays = ax.kv.create("device"), ones(0), [ones(1), ones(2)]
    store.broadcast("a", ones(7), out)
    assert out.tolist() == [7, 7]
    store.pushpull("a", arrays)
    assert [array.tolist() for array in arrays] == [[3, 3]] * 2
    store.pushpull("a", arrays, out=out)
    assert out.tolist() == [6, 6] == pulled(store, "a")


def test_rows_of_a_dense_array() -> None:
    store, out = ax.kv.create(), np.full((4, 2), 9, np.float32)
    store.init("w", np.arange(8, dtype=np.float32).reshape(4, 2))
    store.row_sparse_pull("w", out=out, row_ids=np.array([2.0, 0.0, 2.0]))
    assert out.tolist() == [[0, 1], [0, 0], [4, 5], [0, 0]]


def test_an_updater_gets_key_sum_and_value_once_a_push() -> None:
    store, calls = ax.kv.create(), list[Any]()

    def add(key: Any, gradient: Any, value: Any) -> None:
        calls.append((key, gradient.tolist(), value.tolist()))
        value += gradient

    store.init(["a", "b"], [ones(1), ones(0)])
    store.set_updater(add)
    store.push(["a", "b"], [[ones(1), ones(1)], ones(4)])
    store.push("a", ones(1))
    assert calls == [("a", [2, 2], [1, 1]), ("b", [4, 4], [0, 0]), ("a", [1, 1], [3, 3])]
    assert pulled(store, "a") == [4, 4]


def test_with_an_optimizer_the_store_updates_and_its_state_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((6, 2, 5)).astype(np.float32)

    def made() -> Any:
        store = ax.kv.create("device")
        store.set_optimizer(ax.optimizer.create("adam", learning_rate=0.1))
        return store

    whole, first, second = made(), made(), made()
    whole.init("w", ones(1, 5))
    first.init("w", ones(1, 5))
    for pair in gradients:
        whole.push("w", list(pair))
    for pair in gradients[:3]:
        first.push("w", list(pair))
    first.save_optimizer_states(str(tmp_path / "s"), dump_optimizer=True)
    second.init("w", np.array(pulled(first, "w", (5,)), np.float32))
    second.set_optimizer(ax.optimizer.create("adam", learning_rate=7.0))
    second.load_optimizer_states(str(tmp_path / "s"))
    for pair in gradients[3:]:
        second.push("w", list(pair))
    assert pulled(second, "w", (5,)) == pulled(whole, "w", (5,))
    weight, updater = ones(1, 5), ax.optimizer.get_updater(ax.optimizer.create("adam", learning_rate=0.1))
    for pair in gradients:
        updater("w", pair[0] + pair[1], weight)
    assert pulled(whole, "w", (5,)) == weight.tolist()


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{len(case['steps'][0]['gradients'])}")
def test_two_bits_as_mxnet_sends_them(case: Any) -> None:
    store = ax.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": case["threshold"]})
    size = len(case["steps"][0]["sum"])
    store.init("a", ones(0, size))
    for step in case["steps"]:
        store.push("a", [np.array(gradient, np.float32) for gradient in step["gradients"]])
        assert pulled(store, "a", (size,)) == step["sum"]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
def test_two_bits_travel_as_sixteen_numbers_in_four_bytes(size: int) -> None:
    coder, rng = TwoBit(0.25), np.random.default_rng(size)
    gradient, residual, sent = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    before = residual + gradient
    coder.send(gradient, residual, sent)
    assert set(sent.tolist()) <= {-0.25, 0.0, 0.25} and np.array_equal(residual + sent, before)
    assert np.array_equal(sent, np.where(before >= 0.25, 0.25, np.where(before <= -0.25, -0.25, 0)).astype("f4"))
    packed = coder.pack(sent)
    assert packed.nbytes == (size + 15) // 16 * 4
    for i, number in enumerate(sent):  # MXNet's codes: 11 for +, 10 for -, the first in the highest bits of a byte
        assert packed[i // 4] >> (6 - i % 4 * 2) & 3 == {0.25: 3, -0.25: 2, 0.0: 0}[float(number)]
    assert np.array_equal(coder.unpack(packed, size), sent)


def test_nothing_is_lost_in_the_long_run() -> None:
    coder, rng = TwoBit(0.5), np.random.default_rng(1)
    residual, total, sums = (np.zeros(50, np.float32) for _ in range(3))
    for _ in range(200):
        gradient = rng.normal(0.05, 0.2, 50).astype(np.float32)
        sent = np.empty_like(gradient)
        coder.send(gradient, residual, sent)
        total += sent
        sums += gradient
    assert np.abs(total + residual - sums).max() < 1e-4 and np.abs(total - sums).max() < 1.0


def test_16_bit_gradients_are_kept_in_32_bits() -> None:
    store = ax.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
    store.init("a", np.zeros(1, np.float16))
    found = []
    for _ in range(5):
        store.push("a", [np.array([0.3], np.float16)] * 2)
        found.append(pulled(store, "a", (1,))[0])
    assert found == [0, 0, 0, 2, 0]


def on(where: ax.Context, number: float) -> Any:
    return fake_nccl.filled(where, number, 2)


@pytest.mark.parametrize("kind", ["nccl", "device"])
def test_gpus_are_summed_by_one_grouped_call(gpus: list[ax.Context], kind: str) -> None:
    store = ax.kv.create(kind)
    store.init("a", on(gpus[0], 1))
    arrays = [on(where, i + 1) for i, where in enumerate(gpus)]
    outs = [on(where, 0) for where in gpus]
    for _ in range(2):
        store.push("a", arrays)
        store.pull("a", outs)
    store.barrier()
    assert [asnumpy(out).tolist() for out in outs] == [[6, 6]] * 3
    assert [asnumpy(array).tolist() for array in arrays] == [[1, 1], [2, 2], [3, 3]]
    assert fake_nccl.log == [("meet all", 0, 1, 2), *(("allReduce", 2, "float32", i) for i in (0, 1, 2, 0, 1, 2))]


def test_two_bits_on_gpus(gpus: list[ax.Context]) -> None:
    store = ax.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 1})
    store.init("a", on(gpus[0], 1))
    found = []
    for _ in range(3):
        store.push("a", [on(where, 0.5) for where in gpus])
        found.append(pulled(store, "a")[0])
    assert found == [0, 3, 0]


@pytest.mark.parametrize("on_store", [True, False])
def test_an_old_loop_over_executors_trains_as_a_module_does(on_store: bool) -> None:
    """Gradients of all devices are pushed; weights come back, or the sums, and then each device updates its own."""
    data = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=3, name="fc")
    net, contexts = ax.sym.SoftmaxOutput(data, name="softmax"), [ax.cpu(0), ax.cpu(1)]
    rng = np.random.default_rng(0)
    batches = [
        ax.io.DataBatch([rng.normal(size=(6, 4)).astype("f4")], [rng.integers(0, 3, 6).astype("f4")]) for _ in range(5)
    ]  # fmt: skip
    shapes = {"data_shapes": [("data", (6, 4))], "label_shapes": [("softmax_label", (6,))]}
    options = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / 6}
    first = {"fc_weight": rng.normal(size=(3, 4)).astype("f4"), "fc_bias": np.zeros(3, "f4")}

    module = ax.mod.Module(net, context=contexts)
    module.bind(**shapes)
    module.init_params(arg_params=first)
    module.init_optimizer("device", "sgd", options)
    for batch in batches:
        module.forward_backward(batch)
        module.update()

    described = ax.io.NDArrayIter(np.zeros((6, 4)), np.zeros(6), 6)
    slices = ax.executor_manager.split_input_slice(6, [1, 1])
    arguments = net.list_arguments()
    group = ax.executor_manager.DataParallelExecutorGroup(net, arguments, list(first), contexts, slices, described)
    for executor in group.train_execs:
        executor.copy_params_from(first)
    store, rule = ax.kv.create("device"), ax.optimizer.create("sgd", **options)
    updaters = [ax.optimizer.get_updater(ax.optimizer.create("sgd", **options)) for _ in contexts]
    for name, arrays in zip(group.param_names, group.param_arrays, strict=True):
        store.init(name, arrays[0])
    if on_store:
        store.set_optimizer(rule)
    for batch in batches:
        group.load_data_batch(batch)
        group.forward(is_train=True)
        group.backward()
        for i, (name, grads, weights) in enumerate(
            zip(group.param_names, group.grad_arrays, group.param_arrays, strict=True)
        ):
            store.push(name, grads, priority=-i)
            store.pull(name, weights if on_store else grads, priority=-i)
            if not on_store:
                for updater, grad, weight in zip(updaters, grads, weights, strict=True):
                    updater(name, grad, weight)
    for name, arrays in zip(group.param_names, group.param_arrays, strict=True):
        for array in arrays:
            assert np.array_equal(array, module.get_params()[0][name])


def test_nan_in_two_bits_stays_in_what_was_left_out() -> None:
    store = ax.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("w", np.zeros(2, np.float32))
    found = np.empty(2, np.float32)
    for value in (np.nan, 1.0):
        store.push("w", [np.array([value, 1.0], np.float32)])
        store.pull("w", out=found)
        assert found.tolist() == [0, 0.5]
