"""N devices = 1 device on the same global batches, to rounding; every run = the run before it, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import NDArrayIter
from tests.parallel.networks import convolutional, mlp, values

Arrays = dict[str, np.ndarray[Any, Any]]

STEPS, ROWS = 20, 24


def train(symbol: Any, devices: int, rule: str = "sgd", shape: tuple[int, ...] = (6,), classes: int = 3, **options: Any) -> Arrays:
    """Parameters and states after 20 steps on the same batches."""
    ax.random.seed(7)
    rng = np.random.default_rng(5)
    data = rng.normal(size=(STEPS * ROWS // 2, *shape)).astype(np.float32)
    label = rng.integers(0, classes, len(data)).astype(np.float32)
    iterator = NDArrayIter(data, label, ROWS)
    manager = DataParallelExecutorManager(symbol, [ax.cpu(i) for i in range(devices)], iterator)
    args, aux = values(symbol, data=(ROWS, *shape))
    manager.set_params(args, aux)
    updater = optimizer.get_updater(optimizer.create(rule, rescale_grad=1 / ROWS, **options))
    for _ in range(2):
        iterator.reset()
        for batch in iterator:
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
    assert manager.step == STEPS
    manager.copy_to(args, aux)
    for name, arrays in zip(manager.param_names, manager.param_arrays, strict=True):
        for other in arrays[1:]:
            np.testing.assert_array_equal(other, arrays[0], err_msg=name)
    return {**args, **aux}


def assert_near(got: Arrays, want: Arrays) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= 1e-5 * np.abs(value).max(), name


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_devices_equal_one_device_with_dropout(devices: int) -> None:
    symbol = mlp(dropout=0.4)
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}
    one, several = train(symbol, 1, **options), train(symbol, devices, **options)
    assert_near(several, one)
    start = values(symbol, data=(ROWS, 6))[0]
    assert all(np.abs(one[name] - start[name]).max() > 0.01 for name in start)  # it did train


def test_devices_equal_one_device_in_a_convolutional_net_with_adam() -> None:
    symbol = convolutional(dropout=0.25)
    one, three = (train(symbol, n, "adam", (1, 8, 8), 4, learning_rate=1e-3) for n in (1, 3))
    assert_near(three, one)


def test_dropout_masks_are_of_the_row_not_of_the_device() -> None:
    with_dropout = train(mlp(dropout=0.4), 2, learning_rate=0.1)
    without = train(mlp(), 2, learning_rate=0.1)
    assert np.abs(with_dropout["fc1_weight"] - without["fc1_weight"]).max() > 1e-3


@pytest.mark.parametrize("devices", [1, 3])
def test_runs_repeat_to_the_bit(devices: int) -> None:
    symbol = mlp(dropout=0.4, norm=True)
    first, second = (train(symbol, devices, learning_rate=0.1, momentum=0.9) for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
