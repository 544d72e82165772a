"""Recorded trainings through the executor manager: losses, metrics and parameters of every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.symbol import load_json
from arrayexec.train import metric, optimizer
from arrayexec.train.io import DataBatch, DataDesc
from tests.conformance.golden import DATA, Case, array, arrays, assert_close, cases, load_symbol

Names = dict[str, Any]


class Described:
    """What a manager asks of an iterator."""

    def __init__(self, data: Names, label: Names, batch_size: int, default_bucket_key: Any = None) -> None:
        self.provide_data = [DataDesc(name, (batch_size, *value.shape[1:])) for name, value in data.items()]
        self.provide_label = [DataDesc(name, (batch_size, *value.shape[1:])) for name, value in label.items()]
        self.batch_size = batch_size
        self.default_bucket_key = default_bucket_key


def updater_of(case: Case, manager: DataParallelExecutorManager) -> optimizer.Updater:
    spec = case["optimizer"]
    assert spec["lr_scheduler"] is None
    return optimizer.get_updater(
        optimizer.create(spec["name"], rescale_grad=1 / case["batch_size"], sym=manager.symbol, **spec["params"])
    )


def cross_entropy(outputs: Any, labels: Any) -> float:
    rows = np.asarray(outputs, np.float64)
    return float(-np.log(rows[np.arange(len(rows)), labels.reshape(-1).astype(int)]).mean())


def assert_final(manager: DataParallelExecutorManager, case: Case) -> None:
    wanted = [{n: array(case, key) for n, key in case["expect"].get(f, {}).items()} for f in ("final_args", "final_aux")]
    got = [{name: np.empty_like(value) for name, value in arrays.items()} for arrays in wanted]
    manager.copy_to(*got)
    for mine, recorded in zip(got, wanted, strict=True):
        for name, value in recorded.items():
            assert_close(case, name, mine[name], value)


@pytest.mark.parametrize("case", cases("train_manager"), ids=lambda case: case["name"])
def test_train_manager(case: Case) -> None:
    symbol = load_symbol(case)
    data, label = arrays(case, "data"), arrays(case, "label")
    size = case["batch_size"]
    manager = DataParallelExecutorManager(
        symbol, [ax.cpu(i) for i in range(case["num_devices"])], Described(data, label, size),
        work_load_list=case["work_load_list"],
    )  # fmt: skip
    assert [[one.start, one.stop] for one in manager.slices] == case["expect"]["slices"]
    assert manager.arg_names == case["arg_order"]
    assert manager.aux_names == case["aux_order"]
    manager.set_params(arrays(case, "init_args"), arrays(case, "init_aux"))
    updater, counted = updater_of(case, manager), metric.create(case["metric"])
    losses, values = [], []
    rows = len(next(iter(data.values())))
    for number in range(case["iterations"]):
        at = number % (rows // size) * size
        batch = DataBatch([v[at : at + size] for v in data.values()], [v[at : at + size] for v in label.values()])
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        outputs = manager.get_outputs()[0]
        losses.append(cross_entropy(outputs, batch.label[0]))
        manager.update_metric(counted, batch.label)
        values.append(counted.get()[1])
        manager.update(updater)
    np.testing.assert_allclose(losses, array(case, case["expect"]["loss"]), case["rtol"], case["atol"])
    np.testing.assert_allclose(values, array(case, case["expect"]["metric"]), case["rtol"], case["atol"])
    assert_final(manager, case)


@pytest.mark.parametrize("case", cases("train_manager_bucketing"), ids=lambda case: case["name"])
def test_train_manager_bucketing(case: Case) -> None:
    steps = [(s["bucket_key"], array(case, s["data"]), array(case, s["label"])) for s in case["steps"]]
    default = case["default_bucket_key"]
    first = next(step for step in steps if step[0] == default)
    shape = Described(
        {case["data_names"][0]: first[1]}, {case["label_names"][0]: first[2]}, case["batch_size"], default
    )  # fmt: skip
    manager = DataParallelExecutorManager(
        None, [ax.cpu(i) for i in range(case["num_devices"])], shape, work_load_list=case["work_load_list"],
        sym_gen=lambda key: load_json((DATA / case["bucket_symbols"][str(key)]).read_text()),
    )  # fmt: skip
    manager.set_params(arrays(case, "init_args"))
    updater = updater_of(case, manager)
    counted = metric.Perplexity(ignore_label=case["ignore_label"])
    losses, values = [], []
    for key, data, label in steps:
        manager.load_data_batch(DataBatch([data], [label], bucket_key=key))
        manager.forward(is_train=True)
        manager.backward()
        losses.append(cross_entropy(manager.get_outputs()[0], label))
        manager.update_metric(counted, [label])
        values.append(counted.get()[1])
        manager.update(updater)
    np.testing.assert_allclose(losses, array(case, case["expect"]["loss"]), case["rtol"], case["atol"])
    np.testing.assert_allclose(values, array(case, case["expect"]["metric"]), case["rtol"], case["atol"])
    assert_final(manager, case)
