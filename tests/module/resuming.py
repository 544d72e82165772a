"""Trainings that can be saved and resumed at any batch, by a manager or a module, on any number of devices and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec.module.checkpoint import Checkpoints
from arrayexec.parallel.executor_manager import DataParallelExecutorManager

ROWS, BATCH, STEPS = 50, 12, 13
"""Rows of the data and of a global batch: five batches an epoch, the last one padded. Steps of a whole training."""


def dropout_net() -> Any:
    x = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=16, name="fc1")
    x = ax.sym.Dropout(ax.sym.Activation(x, act_type="tanh"), p=0.4, name="drop")
    return ax.sym.SoftmaxOutput(ax.sym.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


def norm_net() -> Any:
    x = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=16, name="fc1")
    x = ax.sym.Activation(ax.sym.BatchNorm(x, fix_gamma=False, name="bn"), act_type="relu")
    return ax.sym.SoftmaxOutput(ax.sym.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


NETS = {"dropout": dropout_net, "norm": norm_net}


def momentum() -> Any:
    scheduler = ax.lr_scheduler.FactorScheduler(step=3, factor=0.8)
    return ax.optimizer.create("sgd", learning_rate=0.2, momentum=0.9, wd=1e-3, lr_scheduler=scheduler, rescale_grad=1 / BATCH)


def adam() -> Any:
    return ax.optimizer.create("adam", learning_rate=0.02, rescale_grad=1 / BATCH)


def nadam() -> Any:
    scheduler = ax.lr_scheduler.CosineScheduler(max_update=20, final_lr=0.001)
    return ax.optimizer.create("nadam", learning_rate=0.02, rescale_grad=1 / BATCH, lr_scheduler=scheduler)


RULES = {"momentum": momentum, "adam": adam, "nadam": nadam}


class Training:
    """One training, at its beginning; ``seed`` is that of everything random."""

    def __init__(
        self, face: str, net: str, rule: str, devices: int = 1, comm: Any = None, seed: int = 7,
        last_batch_handle: str = "pad", contexts: list[Any] | None = None,
    ) -> None:  # fmt: skip
        ax.random.seed(seed)
        rng = np.random.default_rng(5)
        shards = {} if comm is None else {"num_shards": comm.size, "shard_id": comm.rank}
        images, labels = rng.normal(size=(ROWS, 6)), rng.integers(0, 3, ROWS)
        self.data = ax.io.NDArrayIter(
            images.astype("f4"), labels.astype("f4"), BATCH, True, last_batch_handle, **shards
        )  # fmt: skip
        self.metric = ax.metric.create("acc")
        self.rule = RULES[rule]()
        self.contexts = contexts or [ax.cpu(i) for i in range(devices)]
        self.comm, self.steps, self.epoch, self.batch = comm, 0, 0, 0
        self.updater: Any = None
        symbol = NETS[net]()
        if face == "manager":
            self.model: Any = DataParallelExecutorManager(symbol, self.contexts, self.data, comm=comm, drop_pad=True)
            self.updater = ax.optimizer.get_updater(self.rule)
            shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(BATCH, 6))[0], strict=True))
            values = {n: np.zeros(shapes[n], "f4") for n in self.model.param_names}
            first = ax.init.Xavier()
            for name, array in values.items():
                first(ax.init.InitDesc(name), array)
            self.model.set_params(values, {n: np.full(16, n.endswith("var"), "f4") for n in self.model.aux_names})
        else:
            self.model = ax.mod.Module(symbol, context=self.contexts)
            self.model.bind(self.data.provide_data, self.data.provide_label)
            self.model.init_params(ax.init.Xavier())
            self.model.init_optimizer("local" if comm is None else "dist_sync", self.rule)
        self.face = face

    def go_on(self, until: int, live: bool = True) -> None:
        """Train until so many steps are done; with ``live`` the learning rate is changed on the way."""
        while self.steps < until:
            for batch in self.data:
                if self.face == "manager":
                    self.model.load_data_batch(batch)
                    self.model.forward(is_train=True)
                    self.model.backward()
                    self.model.update(self.updater)
                else:
                    self.model.forward_backward(batch)
                    self.model.update()
                self.model.update_metric(self.metric, batch.label)
                self.steps += 1
                self.batch += 1
                if self.steps == 4 and live and self.rule.lr_scheduler is None:
                    self.rule.lr *= 0.5
                if self.steps == until:
                    return
            self.data.reset()
            self.metric.reset()
            self.epoch, self.batch = self.epoch + 1, 0

    def given(self) -> dict[str, Any]:
        return {"updater": self.updater, "data": self.data, "metric": self.metric}

    def save(self, keeper: Checkpoints) -> str:
        extra = {"steps": self.steps}
        return keeper.save(self.model, **self.given(), epoch=self.epoch, batch=self.batch, extra=extra)

    def resume(self, keeper: Checkpoints) -> None:
        position = keeper.resume(self.model, **self.given())
        assert position is not None
        self.epoch, self.batch, self.steps = position.epoch, position.batch, position.extra["steps"]

    def result(self) -> dict[str, Any]:
        """Parameters, states (means), the optimizer's state, the metric, the rows that come next."""
        if self.face == "manager":
            held = self.model.stores[0]
            arrays = [{n: np.empty(a.shape, a.dtype) for n, a in d.items()} for d in (held.parameters, held.aux)]
            self.model.copy_to(*arrays)
        else:
            arrays = list(self.model.get_params())
        states = (self.updater if self.face == "manager" else self.model._updater).get_states()["states"]
        found = {**arrays[0], **arrays[1]}
        found |= {f"{key}.{name}": array for key, state in states.items() for name, array in state.items()}
        return {**found, "metric": self.metric.state(), "lr": np.array(self.rule.learning_rate), "next": self.data.getindex()}


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Equal bits."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype and np.array_equal(value, b[name]), name


def near(a: dict[str, Any], b: dict[str, Any], limit: float = 1e-5) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.shape == b[name].shape and np.abs(value - b[name]).max() <= limit * max(1, np.abs(b[name]).max()), name
