"""N devices = 1 device on random networks, batches and loads; in float64, where what differs is no rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, values

hypothesis = pytest.importorskip("hypothesis", reason="random networks need hypothesis")
st = hypothesis.strategies
sym = ax.sym

LAYERS = ("connected", "tanh", "dropout", "twice", "slices", "residual", "softmax")


def network(layers: list[str], classes: int) -> Any:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="first")
    for number, kind in enumerate(layers):
        name = f"{kind}{number}"
        if kind == "connected":
            net = sym.FullyConnected(net, num_hidden=6, name=name)
        elif kind == "tanh":
            net = sym.Activation(net, act_type="tanh", name=name)
        elif kind == "dropout":
            net = sym.Dropout(net, p=0.3, name=name)
        elif kind == "twice":  # one weight used twice
            weight = sym.Variable(f"{name}_weight")
            for _ in range(2):
                net = sym.FullyConnected(net, weight, num_hidden=6, no_bias=True)
        elif kind == "slices":
            parts = list(sym.SliceChannel(net, num_outputs=3, axis=1, name=name))
            net = sym.Concat(parts[2], parts[0], parts[1] * parts[1], dim=1)
        elif kind == "residual":
            net = net + 0.5 * sym.FullyConnected(net, num_hidden=6, name=name)
        else:
            net = sym.softmax(net, axis=1, name=name)
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=classes, name="last"), name="softmax")


@hypothesis.given(
    layers=st.lists(st.sampled_from(LAYERS), max_size=5),
    loads=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    grad_req=st.sampled_from(["write", "add"]),
)
def test_devices_equal_one_device(layers: list[str], loads: list[int], sizes: list[int], grad_req: str) -> None:
    symbol = network(layers, 3)
    described = Described({"data": (12, 5)}, {"softmax_label": (12,)}, dtype=np.float64)
    results = []
    for weights in (loads, [1]):
        ax.random.seed(3)
        contexts = [ax.cpu(i) for i in range(len(weights))]
        manager = DataParallelExecutorManager(symbol, contexts, described, work_load_list=weights, grad_req=grad_req)
        manager.set_params(values(symbol, scale=0.5, data=(12, 5))[0])
        updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=0.1, momentum=0.5))
        rng = np.random.default_rng(sizes)
        for rows in sizes:
            manager.load_data_batch(DataBatch([rng.normal(size=(rows, 5))], [rng.integers(0, 3, rows)]))
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
            manager.zero_grad()
        found = {name: np.empty_like(value) for name, value in manager.stores[0].parameters.items()}
        manager.copy_to(found)
        results.append((found, manager.get_outputs()[0]))
    (several, outputs), (alone, wanted) = results
    assert wanted.dtype == np.float64
    np.testing.assert_allclose(outputs, wanted, rtol=1e-8, atol=1e-10)
    for name, value in alone.items():
        np.testing.assert_allclose(several[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
