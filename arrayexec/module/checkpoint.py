"""Checkpoints: all that training goes on from, in files that are whole or not there.

A file holds parameters, auxiliary states, the optimizer's state and counts, learning rate and scheduler, epoch and
batch, the seed and the step that random streams are addressed by, the place in the data and the sums of metrics.
Training that is resumed with the same devices and ranks goes on bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..comm import Communicator
from ..context import asnumpy
from ..errors import ArgumentError, CheckpointError
from ..parallel.executor_manager import DataParallelExecutorManager
from ..parallel.model_state import ModelState
from ..streams import current_seed, seed
from ..train.optimizer import Updater
from ..train.state_files import from_bytes, load_states, to_bytes
from .rank_files import by_rank_0, gather_bytes, load_together, save_together
from .trained_state import ManagerState, TrainedState

__all__ = ["Checkpoints", "Position", "load", "resume", "save"]

Path = str | os.PathLike[str]
_VERSION = 1
_FIELDS = ("epoch", "batch", "extra", "seed", "parts", "optimizers", "ranks")


class Position(NamedTuple):
    """Where training goes on: ``batch`` is the number of batches of ``epoch`` that are done."""

    epoch: int
    batch: int
    extra: Any = None
    """What was given to ``save`` as ``extra``."""


class _Trained(NamedTuple):
    """Something with parameters, and what updates them."""

    held: TrainedState
    updater: Any


def _comm(parts: list[_Trained]) -> Communicator | None:
    return parts[0].held.comm if parts else None


def _models(model: Any) -> list[Any]:
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _trained(model: Any, updater: Any) -> list[_Trained]:
    """What a model, or several, consist of."""
    parts = []
    for one in _models(model):
        if isinstance(one, DataParallelExecutorManager):
            if updater is not None and not isinstance(updater, Updater):
                raise ArgumentError(f"checkpoint: the updater must be one of get_updater, but it is {updater!r}")
            parts.append(_Trained(ManagerState(one), updater))
        elif isinstance(one, ModelState):
            parts.append(_Trained(one, None))
        elif hasattr(one, "trained_parts"):
            parts += [_Trained(ManagerState(manager), rule) for manager, rule in one.trained_parts()]
        else:
            kinds = "a module, a DataParallelExecutorManager, a parallel model or a list of them"
            raise ArgumentError(f"checkpoint: the model must be {kinds}, but it is a {type(one).__name__}")
    return parts


def _kept_inputs(model: Any) -> list[list[Any]]:
    """For every model, the inputs that it keeps from batch to batch."""
    found = [one.get_states() if hasattr(one, "get_states") else [] for one in _models(model)]
    return [[np.array(asnumpy(array)) for array in arrays] for arrays in found]


def _state(model: Any, updater: Any, data: Any, metric: Any, position: Position) -> dict[str, Any]:
    """All that a file holds; collective with ranks."""
    parts = _trained(model, updater)
    comm = _comm(parts)
    own = {
        "parts": [part.held.own_state() for part in parts],
        "data": _data_state(data),
        "metric": np.asarray(metric.state()) if hasattr(metric, "state") else None,
        "inputs": _kept_inputs(model),
    }
    return {
        "checkpoint": _VERSION,
        **position._asdict(),
        "seed": current_seed(),
        "parts": [part.held.common_state() for part in parts],
        "optimizers": [None if part.updater is None else _optimizer_state(part.updater) for part in parts],
        "ranks": [from_bytes(raw, "a rank's own state") for raw in gather_bytes(comm, to_bytes(own))],
    }


def _data_state(data: Any) -> Any:
    """The place of an iterator; None where it does not tell."""
    if not hasattr(data, "get_state"):
        return None
    try:
        return data.get_state()
    except CheckpointError:  # its class has no such method of its own
        return None


def _optimizer_state(updater: Any) -> dict[str, Any]:
    optimizer = updater.optimizer
    rates = {"lr": optimizer.lr, "scheduler": _numbers(optimizer.lr_scheduler)}
    return {"updater": updater.get_states(), "rates": rates}


def _numbers(thing: Any) -> dict[str, Any]:
    """The attributes of a scheduler that are numbers, or lists of them: all that its rates depend on."""
    kinds = (int, float, list, tuple)
    return {name: value for name, value in vars(thing).items() if isinstance(value, kinds)} if thing is not None else {}


def _restore(found: Mapping[str, Any], where: str, model: Any, updater: Any, data: Any, metric: Any) -> Position:
    parts = _trained(model, updater)
    comm = _comm(parts)
    rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
    version = found.get("checkpoint") if isinstance(found, Mapping) else None
    if version != _VERSION:
        raise CheckpointError(f"{where}: it must be a checkpoint of version {_VERSION}, but its version is {version!r}")
    missing = next((name for name in _FIELDS if name not in found), None)
    if missing is not None:
        raise CheckpointError(f"{where}: a checkpoint must have {', '.join(_FIELDS)}, but there is no {missing}")
    held, ranks = found["parts"], found["ranks"]
    if len(held) != len(parts):
        counts = f"{len(held)}, as the file has, but it has {len(parts)}"
        raise CheckpointError(f"{where}: the number of trained symbols of the model must be {counts}")
    same = len(ranks) == size
    mine = ranks[rank] if same else ranks[0]
    if any(mine["inputs"]) and not same:
        counts = f"{len(ranks)}, as the file has, but it is {size}"
        raise CheckpointError(f"{where}: with inputs kept between batches the number of ranks must be {counts}")
    for part, common, optimizer in zip(parts, held, found["optimizers"], strict=True):
        part.held.check_state(common)
        if part.updater is not None and optimizer is None:
            raise CheckpointError(f"{where}: there is an optimizer, but the file has no state of one")
    if metric is not None and mine["metric"] is not None:
        states = [one["metric"] for one in ranks]
        total = np.sum(states, axis=0) if rank == 0 else np.zeros_like(states[0])
        try:
            metric.merge([mine["metric"] if same else total])
        except ValueError as error:
            own = type(metric).__name__
            fact = f"the metric must be the one that was saved, with {states[0].size} sums, but it is a {own}"
            raise CheckpointError(f"{where}: {fact}") from error
    for part, optimizer in zip(parts, found["optimizers"], strict=True):
        if part.updater is not None:
            _restore_optimizer(part.updater, optimizer)
    for part, common, own in zip(parts, held, mine["parts"], strict=True):
        part.held.restore_state(common, own if same else None)
    seed(found["seed"])
    for one, inputs in zip(_models(model), mine["inputs"], strict=True):
        if hasattr(one, "params_initialized"):
            one.params_initialized = True
        if inputs:
            one.set_states(inputs)
    position = Position(found["epoch"], found["batch"], found["extra"])
    if data is not None:
        _restore_data(data, mine["data"], position, where)
    return position


def _restore_optimizer(updater: Any, held: Mapping[str, Any]) -> None:
    updater.set_states(held["updater"])
    optimizer, rates = updater.optimizer, held["rates"]
    optimizer.lr = rates["lr"]
    scheduler = optimizer.lr_scheduler
    for name, value in rates["scheduler"].items() if scheduler is not None else ():
        setattr(scheduler, name, value)


def _restore_data(data: Any, state: Any, position: Position, where: str) -> None:
    if state is not None:
        data.set_state(state)
        return
    if position.batch:
        warnings.warn(
            f"{where}: the {type(data).__name__} has no get_state(), so the {position.batch} batches that were done "
            "are drawn once more; they must come in the same order",
            stacklevel=4,
        )
        for _ in range(position.batch):
            next(data)


def save(
    path: Path, model: Any, updater: Any = None, data: Any = None, metric: Any = None, epoch: int = 0, batch: int = 0,
    extra: Any = None,
) -> None:  # fmt: skip
    """Write a checkpoint, whole or not at all; with ranks rank 0 does, and all wait until it is on the disk.

    ``model``: a module, a DataParallelExecutorManager with its ``updater``, a parallel model, or a list of such.
    ``data``: the iterator of the training. ``epoch``, ``batch``: the number of the epoch, and of its batches that are
    done. ``extra``: nested dicts and lists of arrays and plain values. Raises OSError, CheckpointError for what a file
    cannot hold.
    """
    comm = _comm(_trained(model, updater))
    save_together(comm, path, _state(model, updater, data, metric, Position(epoch, batch, extra)))


def resume(path: Path, model: Any, updater: Any = None, data: Any = None, metric: Any = None) -> Position:
    """Go on from a file of `save`; with ranks rank 0 reads it for all.

    The model must be bound and have its optimizer. With another number of devices or ranks auxiliary states are the
    means of all. Raises OSError, CheckpointError for a file that is damaged or does not fit.
    """
    comm = _comm(_trained(model, updater))
    return _restore(load_together(comm, path), os.fspath(path), model, updater, data, metric)


def load(path: Path) -> Any:
    """What a file of `save` holds, as dicts and lists. Raises OSError, CheckpointError."""
    return load_states(path)


class Checkpoints:
    """The checkpoints of one training in a directory, numbered; the last ``keep`` stay there (None: all).

    ``every``: batches after which ``fit`` saves, beside the end of every epoch (None: there alone).
    A directory is written by one job at a time.
    """

    def __init__(
        self, directory: Path, keep: int | None = 3, every: int | None = None, name: str = "checkpoint"
    ) -> None:
        for title, value in (("keep", keep), ("every", every)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(f"Checkpoints: {title} must be None or a number >= 1, but it is {value!r}")
        if not re.fullmatch(r"[\w\-]+", name):
            raise ArgumentError(f"Checkpoints: the name must be of letters, digits, _ and -, but it is {name!r}")
        self.directory, self.keep, self.every, self.name = os.fspath(directory), keep, every, name
        self._form = re.compile(rf"{re.escape(name)}-(\d+)\.states")

    def is_due(self, batch: int) -> bool:
        """Whether `fit` is to save after so many batches of an epoch."""
        return self.every is not None and batch % self.every == 0

    def paths(self) -> list[str]:
        """The files, the oldest first."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        found = sorted((int(match[1]), match[0]) for match in map(self._form.fullmatch, names) if match)
        return [os.path.join(self.directory, file) for _, file in found]

    def save(
        self, model: Any, updater: Any = None, data: Any = None, metric: Any = None, epoch: int = 0, batch: int = 0,
        extra: Any = None,
    ) -> str:  # fmt: skip
        """Write the next checkpoint, see `save`, and then remove those that are too many; its path."""
        comm = _comm(_trained(model, updater))
        path: str = by_rank_0(comm, self._next, "checkpoint")
        save(path, model, updater, data, metric, epoch, batch, extra)
        by_rank_0(comm, self._tidy, "checkpoint")
        return path

    def _next(self) -> str:
        os.makedirs(self.directory, exist_ok=True)
        held = self.paths()
        last = self._form.fullmatch(os.path.basename(held[-1])) if held else None
        return os.path.join(self.directory, f"{self.name}-{int(last[1]) + 1 if last else 1:08d}.states")

    def _tidy(self) -> None:
        """Remove old files, and what a job that was killed left half-written."""
        for path in self.paths()[: -self.keep] if self.keep is not None else ():
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(path)
        for name in os.listdir(self.directory):
            if name.startswith(f".{self.name}-") and name.endswith(".tmp"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.directory, name))

    def resume(self, model: Any, updater: Any = None, data: Any = None, metric: Any = None) -> Position | None:
        """Go on from the newest checkpoint that is whole, see `resume`; None where there is none at all.

        Warns of newer ones that are damaged. Raises CheckpointError where all are, or where it does not fit the model.
        """
        comm = _comm(_trained(model, updater))
        path = by_rank_0(comm, self.latest, "checkpoint")
        return None if path is None else resume(path, model, updater, data, metric)

    def latest(self) -> str | None:
        """The newest checkpoint that is whole; None where there is none at all.

        Warns of newer ones that are damaged. Raises CheckpointError where all are.
        """
        damaged = []
        for path in reversed(self.paths()):
            try:
                load(path)
            except (CheckpointError, OSError) as error:
                warnings.warn(f"Checkpoints: {path!r} is damaged, and left out: {error}", stacklevel=3)
                damaged.append(f"{path!r}: {error}")
            else:
                return path
        if damaged:
            listed = "\n  ".join(damaged)
            raise CheckpointError(f"Checkpoints: all checkpoints in {self.directory!r} are damaged:\n  {listed}")
        return None


class FitKeeper:
    """What `fit` does with checkpoints: nothing at all without them.

    ``callbacks`` that have ``get_state`` and ``set_state`` are kept, too, as `EarlyStopping` is.
    """

    def __init__(self, checkpoint: Any, model: Any, data: Any, metric: Any, callbacks: Iterable[Any]) -> None:
        self._kept = Checkpoints(checkpoint) if isinstance(checkpoint, str | os.PathLike) else checkpoint
        self._model, self._data, self._metric = model, data, metric
        self._callbacks = [one for one in callbacks if hasattr(one, "get_state") and hasattr(one, "set_state")]

    def begin(self, epoch: int, resume: bool) -> tuple[int, int]:
        """The epoch to begin with, and how many of its batches are done: those of the newest checkpoint to `resume`."""
        position = self._kept.resume(self._model, data=self._data, metric=self._metric) if resume else None
        if position is None:
            return epoch, 0
        for callback, state in zip(self._callbacks, position.extra, strict=False):
            callback.set_state(state)
        return position.epoch, position.batch

    def after_batch(self, epoch: int, batch: int) -> None:
        """Save, if it is time, after so many batches of an epoch."""
        if self._kept is not None and self._kept.is_due(batch):
            self._save(epoch, batch)

    def after_epoch(self, epoch: int) -> None:
        """Save at the end of an epoch."""
        if self._kept is not None:
            self._save(epoch + 1, 0)

    def _save(self, epoch: int, batch: int) -> None:
        extra = [callback.get_state() for callback in self._callbacks]
        self._kept.save(self._model, data=self._data, metric=self._metric, epoch=epoch, batch=batch, extra=extra)
