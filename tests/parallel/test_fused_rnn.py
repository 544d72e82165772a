"""A fused recurrent network, its dropout included, on several devices: the numbers of one device."""

from __future__ import annotations

from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec import sym
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, values

STEPS, FEATURES, HIDDEN = 3, 4, 5


def test_devices_equal_one_device() -> None:
    cell = ax.rnn.FusedRNNCell(HIDDEN, 2, "lstm", bidirectional=True, dropout=0.4, prefix="f_")
    outputs, _ = cell.unroll(STEPS, sym.Variable("data"), merge_outputs=True)
    symbol = sym.SoftmaxOutput(sym.FullyConnected(outputs, num_hidden=3, name="last"), name="softmax")
    described = Described({"data": (12, STEPS, FEATURES)}, {"softmax_label": (12,)}, dtype=np.float64)
    start = values(symbol, scale=0.5, data=(12, STEPS, FEATURES))[0]
    results: list[tuple[dict[str, Any], Any]] = []
    for loads in ([1], [1, 2, 1]):
        ax.random.seed(3)
        contexts = [ax.cpu(i) for i in range(len(loads))]
        manager = DataParallelExecutorManager(symbol, contexts, described, work_load_list=loads)
        manager.set_params(start)
        updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=0.1, momentum=0.5))
        rng = np.random.default_rng(0)
        for rows in (12, 7, 12):
            data, label = rng.normal(size=(rows, STEPS, FEATURES)), rng.integers(0, 3, rows)
            manager.load_data_batch(DataBatch([data], [label]))
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
        found = {name: np.empty_like(value) for name, value in manager.stores[0].parameters.items()}
        manager.copy_to(found)
        results.append((found, np.array(manager.get_outputs()[0])))
    (alone, wanted), (several, outputs) = results
    assert abs(alone["f_parameters"] - start["f_parameters"]).max() > 1e-3
    np.testing.assert_allclose(outputs, wanted, 1e-10, 1e-12)
    for name, value in alone.items():
        np.testing.assert_allclose(several[name], value, 1e-10, 1e-12, err_msg=name)
