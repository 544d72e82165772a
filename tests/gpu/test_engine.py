"""The engine on the strict device: the path that CuPy takes, with its order of streams and waits (R10).

Each number is compared with the same run on the processor, which other tests hold against independent truth.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import Context, asnumpy, copyto, cpu
from arrayexec.train import optimizer
from tests.strict_device import RaceError, Stream, strict


@functools.cache
def net() -> Any:
    data = ax.sym.Variable("data")
    hidden = ax.sym.Convolution(data, num_filter=4, kernel=(3, 3), pad=(1, 1), name="conv")
    hidden = ax.sym.BatchNorm(hidden, fix_gamma=False, name="norm")
    hidden = ax.sym.Activation(hidden, act_type="relu", name="relu")
    hidden = ax.sym.Pooling(hidden, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    hidden = ax.sym.Dropout(ax.sym.Flatten(hidden), p=0.3, name="drop")
    hidden = ax.sym.FullyConnected(hidden * 0.5 + 1, num_hidden=5, name="fc")
    return ax.sym.SoftmaxOutput(hidden, ax.sym.Variable("label"), normalization="batch", name="softmax")


def batches(number: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    return [
        {
            "data": random.standard_normal((8, 2, 6, 6)).astype(np.float32),
            "label": random.integers(0, 5, 8).astype(np.float32),
        }
        for _ in range(number)
    ]


def bind(context: Context) -> Any:
    """An executor on a context with the same parameters everywhere."""
    executor = net().simple_bind(context, data=(8, 2, 6, 6), label=(8,))
    random = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        copyto(array, random.standard_normal(array.shape) * (0.3 if name.endswith("weight") else 0.1))
    for name, array in executor.aux_dict.items():
        copyto(array, np.full(array.shape, 1.0 if name.endswith("var") else 0.0))
    return executor


def train(context: Context, rule: str, steps: int = 3) -> dict[str, np.ndarray]:
    """Parameters, auxiliary states and outputs after some steps."""
    executor = bind(context)
    updater = optimizer.get_updater(optimizer.create(rule, learning_rate=0.1))
    names = [name for name in executor.arg_dict if name not in ("data", "label")]
    for batch in batches(steps):
        executor.forward(is_train=True, **batch)
        executor.backward()
        updater.update_all(names, [executor.grad_dict[n] for n in names], [executor.arg_dict[n] for n in names])
    (output,) = executor.forward(is_train=False, **batches(1)[0])
    found = {**{name: executor.arg_dict[name] for name in names}, **executor.aux_dict, "output": output}
    return {name: asnumpy(array).copy() for name, array in found.items()}


@pytest.mark.parametrize("rule", ["sgd", "nag", "adam"])
def test_training_is_the_same(rule: str) -> None:
    here, there = train(cpu(), rule), train(strict(0), rule)
    assert here.keys() == there.keys()
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-6, atol=1e-7, err_msg=name)


def test_forward_and_backward_never_stop_the_host() -> None:
    context = strict(0)
    device: Any = context.device
    executor = bind(context)
    for batch in batches(2):  # the second time nothing is new
        device.log.clear()
        executor.forward(is_train=True, **batch)
        executor.backward()
    kinds = {entry[0] for entry in device.log}
    assert not kinds & {"to_host", "synchronize", "allocate"}
    assert device.pending > 0
    # the batch goes up, and nothing else crosses but the random mask, which the host draws
    assert device.count("from_host") == 3


def test_waits_are_in_pairs_around_each_call() -> None:
    context = strict(0)
    device: Any = context.device
    executor = bind(context)
    executor.forward(is_train=True, **batches(1)[0])
    device.log.clear()
    executor.forward(is_train=True)
    executor.backward()
    waits = [entry[1] for entry in device.log if entry[0] == "wait"]
    assert waits == ["context for caller", "caller for context"] * 2


def test_the_callers_stream_is_waited_for() -> None:
    context = strict(0)
    device: Any = context.device
    executor, truth = bind(context), bind(cpu())
    batch = batches(1)[0]
    executor.forward(is_train=False, **batch)
    mine = Stream("the user's")
    mine.wait(device.default_stream.record())
    with device.use(mine):
        executor.arg_dict["data"][...] = 0.25  # queued, not run
        (output,) = executor.forward(is_train=False)
        doubled = output * 2  # ordered after forward without a word from the user
    truth.forward(is_train=False, **{**batch, "data": np.full_like(batch["data"], 0.25)})
    with pytest.raises(RaceError):
        output * 2  # the default stream was told nothing
    device.default_stream.wait(mine.record())
    np.testing.assert_allclose(asnumpy(doubled), truth.outputs[0] * 2, rtol=1e-6)


def test_monitor_gets_values_of_the_device() -> None:
    seen: dict[str, dict[str, np.ndarray]] = {}
    for context in (cpu(), strict(0)):
        executor, found = bind(context), {}
        executor.set_monitor_callback(lambda name, array, found=found: found.setdefault(name, asnumpy(array).copy()))
        executor.forward(is_train=True, **batches(1)[0])
        executor.backward()
        seen[str(context)] = found
    here, there = seen.values()
    assert list(here) == list(there)
    assert len(here) > 6
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-6, atol=1e-7, err_msg=name)


def test_outputs_and_gradients_lie_on_the_device() -> None:
    executor = bind(strict(1))
    executor.forward(is_train=True, **batches(1)[0])
    executor.backward()
    arrays = [*executor.outputs, *executor.arg_arrays, *executor.aux_arrays]
    arrays += [array for array in executor.grad_arrays if array is not None]
    assert {str(ax.context.context_of(array)) for array in arrays} == {"strict(1)"}
