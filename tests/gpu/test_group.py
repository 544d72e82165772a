"""Groups, buckets and the update on strict devices: the same numbers as on as many processors' contexts."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import Context, cpu
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import metric, optimizer
from arrayexec.train.io import DataBatch, DataDesc
from tests.strict_device import strict

ROWS, VOCABULARY = 10, 7


def contexts(kind: str, number: int) -> list[Context]:
    return [strict(i) if kind == "strict" else cpu(i) for i in range(number)]


def symbol_of(length: int) -> Any:
    """A language model without memory: the mean of the embeddings of a row tells the class of each."""
    data, label = ax.sym.Variable("data"), ax.sym.Variable("softmax_label")
    words = ax.sym.Embedding(data, input_dim=VOCABULARY, output_dim=6, name="embed")
    hidden = ax.sym.FullyConnected(words, num_hidden=8, flatten=False, name="hidden")
    hidden = ax.sym.Activation(hidden, act_type="tanh", name="tanh")
    hidden = ax.sym.Reshape(ax.sym.Dropout(hidden, p=0.2, name="drop"), shape=(-1, 8))
    scores = ax.sym.FullyConnected(hidden, num_hidden=VOCABULARY, name="scores")
    return ax.sym.SoftmaxOutput(scores, ax.sym.Reshape(label, shape=(-1,)), name="softmax")


def batches() -> list[DataBatch]:
    random = np.random.default_rng(5)
    found = []
    for length in (6, 3, 9, 6, 3):
        words = random.integers(0, VOCABULARY, (ROWS, length)).astype(np.float32)
        found.append(
            DataBatch(
                [words],
                [(words + 1) % VOCABULARY],
                bucket_key=length,
                provide_data=[DataDesc("data", (ROWS, length))],
                provide_label=[DataDesc("softmax_label", (ROWS, length))],
            )
        )
    return found


def train(kind: str, number: int) -> tuple[dict[str, np.ndarray], tuple[str, float], DataParallelExecutorManager]:
    described = types.SimpleNamespace(
        provide_data=[DataDesc("data", (ROWS, 6))],
        provide_label=[DataDesc("softmax_label", (ROWS, 6))],
        batch_size=ROWS,
        default_bucket_key=6,
        buckets=[3, 6, 9],
    )
    manager = DataParallelExecutorManager(None, contexts(kind, number), described, sym_gen=symbol_of)
    random = np.random.default_rng(1)
    shapes = {"embed_weight": (VOCABULARY, 6), "hidden_weight": (8, 6), "hidden_bias": (8,)}
    shapes |= {"scores_weight": (VOCABULARY, 8), "scores_bias": (VOCABULARY,)}
    manager.set_params({n: random.standard_normal(s).astype(np.float32) * 0.5 for n, s in shapes.items()}, {})
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=0.5, momentum=0.9, rescale_grad=1 / ROWS))
    score = metric.create("acc")
    for batch in batches():
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        manager.update(updater)
        manager.update_metric(score, batch.label)
    final = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    manager.copy_to(final, {})
    return final, score.get(), manager


@pytest.mark.parametrize("number", [1, 2, 3])
def test_buckets_on_devices(number: int) -> None:
    here, score, _ = train("cpu", number)
    there, its_score, _ = train("strict", number)
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=2e-6, atol=1e-6, err_msg=name)
    assert its_score == score
    assert score[1] > 0.3  # it has learned something: chance is 1/7


def test_each_device_holds_its_own_arrays() -> None:
    _, _, manager = train("strict", 2)
    for copies in (*manager.param_arrays, *manager.grad_arrays):
        assert [str(ax.context.context_of(array)) for array in copies] == ["strict(0)", "strict(1)"]


def test_a_step_only_stops_the_host_where_devices_meet() -> None:
    _, _, manager = train("strict", 1)
    device: Any = manager.ctx[0].device
    batch = batches()[0]
    manager.load_data_batch(batch)
    device.log.clear()
    manager.forward(is_train=True)
    manager.backward()
    assert device.count("to_host") == device.count("synchronize") == 0
    assert device.pending > 0
