"""Reports about training that is stopped and resumed, and about stores by key. Numbers are those of the reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy
from arrayexec.errors import CollectiveError, CollectiveTimeoutError
from arrayexec.module.checkpoint import Checkpoints
from tests.parallel import fake_nccl
from tests.strict_device import strict

RULES = (
    "adadelta adagrad adam adamax adamw ccsgd dcasgd ftml ftrl lamb lars lbsgd nadam nag rmsprop sgd sgld signum test"
).split()


def net() -> Any:
    x = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=8, name="fc1")
    x = ax.sym.FullyConnected(ax.sym.Activation(x, act_type="tanh"), num_hidden=3, name="fc2")
    return ax.sym.SoftmaxOutput(x, name="softmax")


def batches(count: int = 4) -> list[Any]:
    rng = np.random.default_rng(2)
    return [
        ax.io.DataBatch([rng.normal(size=(6, 5)).astype("f4")], [rng.integers(0, 3, 6).astype("f4")]) for _ in range(count)
    ]  # fmt: skip


def module(devices: int = 1, rule: str = "adam", kvstore: Any = "local", **options: Any) -> Any:
    ax.random.seed(1)
    made = ax.mod.Module(net(), context=[ax.cpu(i) for i in range(devices)])
    made.bind([("data", (6, 5))], [("softmax_label", (6,))])
    made.init_params(ax.init.Xavier())
    made.init_optimizer(kvstore, rule, {"learning_rate": 0.1, **options})
    return made


def train(made: Any, given: list[Any]) -> Any:
    for batch in given:
        made.forward_backward(batch)
        made.update()
    return made


def equal(first: Any, second: Any) -> bool:
    a, b = first.get_params()[0], second.get_params()[0]
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("rule", RULES)
def test_bug_4638_2735_4124_a_checkpoint_has_the_state_of_the_optimizer(tmp_path: Path, rule: str) -> None:
    whole = train(module(rule=rule), batches())
    half = train(module(rule=rule), batches()[:2])
    half.save_checkpoint(str(tmp_path / "m"), 2, save_optimizer_states=True)
    Checkpoints(tmp_path / "own").save(half)
    loaded = ax.mod.Module.load(str(tmp_path / "m"), 2, load_optimizer_states=True)
    loaded.bind([("data", (6, 5))], [("softmax_label", (6,))])
    loaded.init_optimizer("local", rule, {"learning_rate": 0.1})
    assert equal(train(loaded, batches()[2:]), whole)
    resumed = module(rule=rule)
    Checkpoints(tmp_path / "own").resume(resumed)
    assert equal(train(resumed, batches()[2:]), whole)


def test_bug_found_here_resumed_adam_goes_on_with_its_bias_correction(tmp_path: Path) -> None:
    """M9: MXNet 1.9.1 saves no counts; after one step its next one was 3e-3 off."""
    whole = train(module(), batches(2))
    train(module(), batches(1)).save_optimizer_states(str(tmp_path / "a.states"))
    states = ax.module.kvstore.load_together(None, tmp_path / "a.states")
    assert states["counts"] == dict.fromkeys(("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"), 1)
    again = train(module(), batches(1))
    again.init_optimizer("local", "adam", {"learning_rate": 0.1}, force_init=True)
    again.load_optimizer_states(str(tmp_path / "a.states"))
    assert equal(train(again, batches(2)[1:]), whole)


@pytest.mark.parametrize("devices", [1, 3])
def test_bug_17357_5059_a_schedule_goes_on_where_it_was(tmp_path: Path, devices: int) -> None:
    """It counts steps, not steps times devices, and the count is in the file."""

    def made() -> Any:
        schedule = ax.lr_scheduler.MultiFactorScheduler(step=[2, 5], factor=0.1)
        return module(devices, "sgd", lr_scheduler=schedule)

    whole, half = made(), train(made(), batches(3))
    rates = []
    for batch in batches(7):
        rates.append(whole.optimizer.learning_rate)
        train(whole, [batch])
    assert np.allclose(rates, [0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001])
    half.save_checkpoint(str(tmp_path / "m"), 0, save_optimizer_states=True)
    loaded = ax.mod.Module.load(
        str(tmp_path / "m"), 0, load_optimizer_states=True, context=[ax.cpu(i) for i in range(devices)]
    )  # fmt: skip
    loaded.bind([("data", (6, 5))], [("softmax_label", (6,))])
    schedule = ax.lr_scheduler.MultiFactorScheduler(step=[2, 5], factor=0.1)
    loaded.init_optimizer("local", "sgd", {"learning_rate": 0.1, "lr_scheduler": schedule})
    assert loaded.optimizer.num_update == 3 and np.isclose(loaded.optimizer.learning_rate, 0.01)
    assert equal(train(loaded, batches(7)[3:]), whole)


def test_bug_5428_6716_6731_states_that_are_loaded_lie_where_the_parameter_does(tmp_path: Path) -> None:
    device = strict(0)
    weight, gradient = device.empty((4,), np.float32, "parameter"), device.empty((4,), np.float32, "gradient")
    host = np.arange(4, dtype=np.float32)
    device.from_host(host, weight)
    device.from_host(host, gradient)
    first, second = (ax.optimizer.get_updater(ax.optimizer.create("adam")) for _ in range(2))
    mine, theirs = host.copy(), host.copy()
    for _ in range(2):
        first("w", mine, theirs)
    from arrayexec.train.state_files import load_states, save_states

    save_states(tmp_path / "a", first.get_states())
    second.set_states(load_states(tmp_path / "a"))
    second("w", gradient, weight)
    assert all(device.device.owns(array) for array in second.states["w"].values())
    fresh = ax.optimizer.get_updater(ax.optimizer.create("adam"))
    fresh.set_states(first.get_states())
    copy = host.copy()
    fresh("w", host.copy(), copy)
    assert np.array_equal(asnumpy(weight), copy)


@pytest.mark.parametrize("rule", ["adam", "adamax", "ftml", "nadam"])
@pytest.mark.parametrize("kvstore", [None, "local", "device"])
def test_bug_13752_12713_one_count_a_step_however_many_devices(rule: str, kvstore: str | None) -> None:
    alone, many = train(module(1, rule), batches()), train(module(3, rule, kvstore), batches())
    for made in (alone, many):
        assert set(made._updater.optimizer.update_counts.values()) == {4} and made.optimizer.num_update == 4
    first, second = alone.get_params()[0], many.get_params()[0]
    for name, array in first.items():
        assert np.abs(array - second[name]).max() < 1e-5, name


def on(where: ax.Context, number: float) -> Any:
    return fake_nccl.filled(where, number, 3)


def test_bug_2919_9193_9004_gpus_of_one_process_are_summed_in_groups(gpus: list[ax.Context]) -> None:
    """A call a device outside of a group waits for the others without end; here several keys and many steps."""
    store = ax.kv.create("nccl")
    keys = ["a", "b", "c"]
    store.init(keys, [on(gpus[0], 0) for _ in keys])
    outs = [[on(where, 0) for where in gpus] for _ in keys]
    for step in range(20):
        store.push(keys, [[on(where, i + step) for i, where in enumerate(gpus)] for _ in keys])
        store.pull(keys, outs)
    store.barrier()
    assert all(asnumpy(out).tolist() == [3 + 3 * 19] * 3 for arrays in outs for out in arrays)
    assert [entry[0] for entry in fake_nccl.log].count("meet all") == 1  # one communicator, not one a key
    assert [entry[0] for entry in fake_nccl.log].count("allReduce") == 20 * 3 * 3


def test_bug_2919_1074_a_device_that_hangs_is_an_error_not_a_hang(
    gpus: list[ax.Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARRAYEXEC_TIMEOUT", "0.1")
    store = ax.kv.create("nccl")
    store.init("a", on(gpus[0], 0))
    fake_nccl.faults.stuck = True
    store.push("a", [on(where, 1) for where in gpus])
    with pytest.raises(CollectiveTimeoutError, match=r"the collectives of gpu\(0\), gpu\(1\), gpu\(2\) did not end in 0.4 s"):
        store.pull("a", np.empty(3, np.float32))
    with pytest.raises(CollectiveError, match="no allreduce can follow what failed"):
        store.push("a", [on(where, 1) for where in gpus])


def test_bug_2919_9004_without_nccl_devices_are_summed_by_copies() -> None:
    remove = fake_nccl.install(2, available=False)
    try:
        gpus = [ax.gpu(0), ax.gpu(1)]
        store, out = ax.kv.create("device"), np.empty(3, np.float32)
        store.init("a", on(gpus[0], 0))
        store.push("a", [on(where, i + 1) for i, where in enumerate(gpus)])
        store.pull("a", out)
        assert out.tolist() == [3, 3, 3]
    finally:
        remove()
