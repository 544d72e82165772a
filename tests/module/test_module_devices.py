"""Modules on devices that are no host memory: the strict device, which notices what would go wrong on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy
from tests.module.test_module import X, Y, assert_same, batch, batches, ready, values
from tests.module.test_other_modules import chain
from tests.parallel.networks import mlp
from tests.strict_device import strict


@pytest.fixture
def devices() -> Any:
    return [strict(0), strict(1)]


def train(module: Any) -> Any:
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})
    for start, rows in ((0, 8), (8, 8), (16, 5)):
        module.forward_backward(batch(start, rows))
        module.update()
    return module.get_params()


@pytest.mark.parametrize("count", [1, 2])
def test_training_and_inference(devices: Any, count: int) -> None:
    one, other = ready(mlp(norm=count == 1)), ready(mlp(norm=count == 1), devices[:count])
    assert_same(train(one), train(other))
    np.testing.assert_allclose(asnumpy(other.predict(batches(7, pad=True))), one.predict(X), 1e-5, 1e-6)
    assert other.score(batches(7, pad=True), "acc") == one.score(batches(7, pad=True), "acc")
    other.forward(batch(), is_train=False)
    assert ax.context.context_of(other.get_outputs()[0]) == devices[0]


def test_accumulation_heads_and_gradients_of_inputs(devices: Any) -> None:
    net = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=3, name="fc")
    found = []
    for where in (ax.cpu(), devices):
        module = ax.mod.Module(net, label_names=None, context=where)
        module.bind([("data", (8, 6))], inputs_need_grad=True, grad_req="add")
        module.init_params(None, {"fc_weight": X[:3], "fc_bias": Y[:3]})
        module.init_optimizer()
        module.zero_grad()
        for _ in range(2):
            module.forward(ax.io.DataBatch([X[:8]]), is_train=True)
            module.backward([X[8:16, :3]])
        module.update()
        found.append({"grads": asnumpy(module.get_input_grads()[0]), **module.get_params()[0]})
    assert_same(found[:1], found[1:])


def test_a_chain_hands_arrays_on(devices: Any) -> None:
    found = []
    for where in (ax.cpu(), devices):
        module = chain(where)
        module.bind([("data", (8, 6))], [("softmax_label", (8,))])
        module.init_params(None, *values(mlp(), data=(8, 6)))
        found.append(train(module))
    assert_same(found[0], found[1])


def test_states_and_two_bits(devices: Any) -> None:
    net = ax.sym.Variable("state") + ax.sym.Variable("data")
    module = ax.mod.Module(net, label_names=None, state_names=["state"], context=devices)
    module.bind([("data", (8, 6))], for_training=False)
    module.init_params()
    module.set_states(value=2.0)
    for merge in (True, False):
        module.forward(ax.io.DataBatch([X[:8]]), is_train=False)
        module.set_states(module.get_outputs(merge))
    np.testing.assert_allclose(asnumpy(module.get_states()[0]), 2 + 2 * X[:8], 1e-5)
    found = []
    for where in ([ax.cpu(0), ax.cpu(1)], devices):
        module = ready(devices=where, compression_params={"type": "2bit", "threshold": 0.1})
        module.init_optimizer("device", optimizer_params={"learning_rate": 0.5})
        for start in (0, 8):
            module.forward_backward(batch(start))
            module.update()
        found.append(module.get_params())
    assert_same(found[0], found[1])


def test_losses_weighed_by_rows(devices: Any) -> None:
    found = []
    for where in ([ax.cpu(0), ax.cpu(1)], devices):
        found.append(train(ready(devices=where, work_load_list=[1, 3], loss_weighting="samples")))
    assert_same(*found)
