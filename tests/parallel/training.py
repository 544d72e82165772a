"""Trainings that run on several devices, and on several ranks, with the same global batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import BucketSentenceIter, NDArrayIter
from tests.parallel.networks import convolutional, lstm, mlp, values

Arrays = dict[str, np.ndarray[Any, Any]]

STEPS, ROWS = 20, 24


class Trainer:
    """One training on ``devices`` of every rank of ``comm`` (None: alone)."""

    def __init__(self, comm: Any = None, devices: int = 1) -> None:
        self.comm, self.devices = comm, devices
        self.shards = {} if comm is None else {"num_shards": comm.size, "shard_id": comm.rank}
        self.manager: Any = None

    def images(self, rows: int, shape: tuple[int, ...] = (6,), classes: int = 3, **options: Any) -> NDArrayIter:
        rng = np.random.default_rng(5)
        data = rng.normal(size=(rows, *shape)).astype(np.float32)
        label = rng.integers(0, classes, rows).astype(np.float32)
        return NDArrayIter(data, label, ROWS, **options, **self.shards)

    def bind(self, symbol: Any, iterator: Any, **options: Any) -> None:
        ax.random.seed(7)
        self.manager = DataParallelExecutorManager(
            symbol, [ax.cpu(i) for i in range(self.devices)], iterator, comm=self.comm, drop_pad=True, **options
        )

    def start(self, args: Arrays, aux: Arrays | None = None) -> None:
        """Initial values; only those of rank 0 count."""
        if self.comm is not None and self.comm.rank > 0:
            args = {name: np.full_like(value, np.nan) for name, value in args.items()}
        self.manager.set_params(args, aux)

    def run(self, iterator: Any, rule: optimizer.Optimizer, steps: int = STEPS) -> Arrays:
        updater = optimizer.get_updater(rule)
        manager = self.manager
        while manager.step < steps:
            iterator.reset()
            for batch in iterator:
                manager.load_data_batch(batch)
                manager.forward(is_train=True)
                manager.backward()
                rule.rescale_grad = 1 / batch.global_rows
                manager.update(updater)
                if manager.step == steps:
                    break
        return self.result()

    def result(self) -> Arrays:
        """Parameters and states."""
        held = self.manager.stores[0]
        args = {name: np.empty_like(value) for name, value in held.parameters.items()}
        aux = {name: np.empty_like(value) for name, value in held.aux.items()}
        self.manager.copy_to(args, aux)
        return {**args, **aux}


def plain(trainer: Trainer, symbol: Any, shape: tuple[int, ...] = (6,), classes: int = 3, rows: int = 240, **options: Any) -> Arrays:
    iterator = trainer.images(rows, shape, classes, **options)
    trainer.bind(symbol, iterator)
    trainer.start(*values(symbol, data=(ROWS, *shape)))
    return trainer.run(iterator, optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=1e-3))


def dropout(trainer: Trainer) -> Arrays:
    return plain(trainer, mlp(dropout=0.4))


def convolution(trainer: Trainer) -> Arrays:
    return plain(trainer, convolutional(dropout=0.25), (1, 8, 8), 4)


def norm(trainer: Trainer) -> Arrays:
    """And what inference then says of the training's last rows, by the mean of all states."""
    found = plain(trainer, convolutional(norm=True, dropout=0.25), (1, 8, 8), 4)
    manager = trainer.manager
    manager.forward()
    rows = manager.get_outputs()[0].sum(axis=0)
    if trainer.comm is not None:
        trainer.comm.allreduce(rows)
    again = trainer.result()
    assert all(np.allclose(again[name], value, rtol=1e-6) for name, value in found.items())
    return {**found, "outputs": rows}


def uneven(trainer: Trainer) -> Arrays:
    """The last batch of an epoch has 4 rows: with 4 ranks of 6 rows only the first has any."""
    return plain(trainer, mlp(dropout=0.4), rows=100)


def accumulate(trainer: Trainer) -> Arrays:
    """Two backwards an update."""
    symbol, iterator = mlp(), trainer.images(480)
    trainer.bind(symbol, iterator, grad_req="add")
    trainer.start(values(symbol, data=(ROWS, 6))[0])
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / ROWS))
    manager = trainer.manager
    for number, batch in enumerate(iterator):
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        if number % 2:
            manager.update(updater)
            manager.zero_grad()
    assert number == STEPS - 1
    return trainer.result()


def buckets(trainer: Trainer, **options: Any) -> Arrays:
    """Sentences of up to 3, 4 and 6 words; the last two buckets have a layer that no other has."""
    rng = np.random.default_rng(2)
    sentences = [rng.integers(1, 11, length).tolist() for length in rng.integers(2, 7, 200)]
    iterator = BucketSentenceIter(sentences, ROWS, [3, 4, 6], 0, **trainer.shards)
    build = lstm(1, 5, 11, own=(4, 6))
    trainer.bind(None, iterator, sym_gen=build, **options)
    args = values(build(4), data=(ROWS, 4))[0] | values(build(6), data=(ROWS, 6))[0]
    trainer.start(args)
    return trainer.run(iterator, optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=0.01))


TRAININGS: dict[str, Callable[[Trainer], Arrays]] = {
    one.__name__: one for one in (dropout, convolution, norm, uneven, accumulate, buckets)
}
