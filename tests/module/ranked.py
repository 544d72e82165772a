"""Trainings of modules that ranks must make as one process does."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

import arrayexec as ax
from tests.module.test_bucketing_module import pooled
from tests.parallel.networks import mlp

RNG = np.random.default_rng(5)
X = RNG.normal(size=(20, 6)).astype(np.float32)
Y = X[:, :3].argmax(axis=1).astype(np.float32)


def iterator(comm: Any, size: int = 8) -> Any:
    ranks, rank = (comm.size, comm.rank) if comm is not None else (1, 0)
    return ax.io.NDArrayIter(X, Y, size, num_shards=ranks, shard_id=rank, last_batch_handle="discard")


def contexts(devices: int) -> Any:
    return [ax.cpu(i) for i in range(devices)]


def fit(store: str, comm: Any, devices: int) -> dict[str, Any]:
    """`fit` with Adam and dropout; the metric of the last epoch is that of all ranks' rows."""
    ax.random.seed(3)
    module = ax.mod.Module(mlp(dropout=0.3), context=contexts(devices))
    values: list[float] = []
    module.fit(
        iterator(comm), iterator(comm), num_epoch=3, kvstore=store, optimizer="adam",
        optimizer_params={"learning_rate": 0.05}, initializer=ax.init.Xavier(),
        eval_end_callback=lambda p: values.append(p.eval_metric.get()[1]),
    )  # fmt: skip
    whole = ax.io.NDArrayIter(X, Y, 20)
    return module.get_params()[0] | {"accuracy": np.array(values), "output": module.predict(whole)}


def accumulate(store: str, comm: Any, devices: int) -> dict[str, Any]:
    """``grad_req='add'``, a fixed parameter and multipliers."""
    module = ax.mod.Module(mlp(), context=contexts(devices), fixed_param_names=["fc1_bias"])
    data = iterator(comm)
    module.bind(data.provide_data, data.provide_label, grad_req="add")
    ax.random.seed(4 + (comm.rank if comm is not None else 0))  # ranks take the parameters of rank 0
    module.init_params(ax.init.Normal(0.5))
    ax.random.seed(4)
    module.init_optimizer(store, optimizer_params={"learning_rate": 0.2, "momentum": 0.9, "rescale_grad": 1 / 16})
    module.optimizer.set_lr_mult({"fc2_bias": 3.0})
    for _ in range(3):
        data.reset()
        for batch in data:
            module.forward_backward(batch)
        module.update()
        module.zero_grad()
    return module.get_params()[0]


def buckets(store: str, comm: Any, devices: int) -> dict[str, Any]:
    """Ranks in different buckets, one of which brings a layer; saved and loaded on the way."""
    ax.random.seed(5)
    ranks, rank = (comm.size, comm.rank) if comm is not None else (1, 0)
    module = ax.mod.BucketingModule(pooled, 8, context=contexts(devices), bucket_keys=[3, 5, 8])
    rows = 8 // ranks
    module.bind([("data", (rows, 8))], [("softmax_label", (rows,))])
    module.init_params(ax.init.Uniform(0.5))
    options = {"learning_rate": 0.3, "momentum": 0.9}
    module.init_optimizer(store, optimizer_params=options)

    def train(one: Any, start: int) -> None:
        for step in range(start, start + 3):
            length = (3, 5, 8)[step % 3]
            rng = np.random.default_rng(step)
            data, label = rng.integers(0, 9, (8, length)), rng.integers(0, 3, 8)
            mine = slice(rank * rows, (rank + 1) * rows)
            batch = ax.io.DataBatch(
                [data[mine]], [label[mine]], bucket_key=length, provide_data=[("data", (rows, length))],
                provide_label=[("softmax_label", (rows,))],
            )  # fmt: skip
            one.forward_backward(batch)
            one.update()

    train(module, 0)
    with tempfile.TemporaryDirectory() as own:
        folder = comm.allgather_object(own)[0] if comm is not None else own
        prefix = os.path.join(folder, "net")
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        other = ax.mod.BucketingModule.load(
            prefix, 1, pooled, 8, load_optimizer_states=True, context=contexts(devices), bucket_keys=[3, 5, 8]
        )
        other.bind([("data", (rows, 8))], [("softmax_label", (rows,))])
        other.init_optimizer(store, optimizer_params=options)
        if comm is not None:
            comm.barrier()
    train(module, 3)
    train(other, 3)
    first, second = module.get_params()[0], other.get_params()[0]
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    return first


def _counted(batch: Any) -> Any:
    """What ranks train on of a padded batch."""
    rows = batch.rows - (batch.pad or 0)
    return ax.io.DataBatch([a[:rows] for a in batch.data], [a[:rows] for a in batch.label])


def padded(module: Any, store: str, comm: Any, metric: str = "ce") -> dict[str, Any]:
    """Of the last batch a rank has no row; the metric of training is that of the rows that count."""
    ranks, rank = (comm.size, comm.rank) if comm is not None else (1, 0)
    data = ax.io.NDArrayIter(X[:18], Y[:18], 8, num_shards=ranks, shard_id=rank)
    module.bind(data.provide_data, data.provide_label)
    ax.random.seed(6)
    module.init_params(ax.init.Normal(0.5))
    module.init_optimizer(store, optimizer_params={"learning_rate": 0.3, "momentum": 0.9, "rescale_grad": 1 / 8})
    counted = ax.metric.create(metric)
    for _ in range(2):
        data.reset()
        for batch in data:
            one = batch if comm is not None else _counted(batch)
            module.forward_backward(one)
            module.update()
            module.update_metric(counted, one.label)
    module._total(counted)
    return module.get_params()[0] | {"metric": np.array(counted.get()[1])}


def plain(store: str, comm: Any, devices: int) -> dict[str, Any]:
    return padded(ax.mod.Module(mlp(), context=contexts(devices)), store, comm)


def chained(store: str, comm: Any, devices: int) -> dict[str, Any]:
    """The same network as two modules and a loss in Python."""

    def gradient(scores: Any, labels: Any) -> Any:
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        return shifted / shifted.sum(axis=1, keepdims=True) - np.eye(3)[labels.astype(int)]

    sym = ax.sym
    first = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1"), act_type="relu")
    second = sym.FullyConnected(sym.Variable("hidden"), num_hidden=3, name="fc2")
    module = ax.mod.SequentialModule()
    module.add(ax.mod.Module(first, label_names=None, context=contexts(devices)))
    module.add(ax.mod.Module(second, ("hidden",), None, context=contexts(devices)), auto_wiring=True)
    module.add(ax.mod.PythonLossModule(grad_func=gradient), auto_wiring=True, take_labels=True)
    return padded(module, store, comm, "acc")


def rounded(store: str, comm: Any, devices: int) -> dict[str, Any]:
    """Gradients in two bits, their rests kept."""
    ax.random.seed(7)
    compression = {"type": "2bit", "threshold": 0.2}
    module = ax.mod.Module(mlp(), context=contexts(devices), compression_params=compression)
    data = iterator(comm)
    module.bind(data.provide_data, data.provide_label)
    module.init_params(ax.init.Normal(0.5))
    module.init_optimizer(store, optimizer_params={"learning_rate": 0.1, "momentum": 0.5})
    for _ in range(5):
        data.reset()
        for batch in data:
            module.forward_backward(batch)
            module.update()
    return module.get_params()[0]


TRAININGS = {"fit": fit, "accumulate": accumulate, "buckets": buckets, "plain": plain, "chained": chained}
