"""Optimizers: rules that change parameters in place, and the updater that keeps their state.

Everything is named by index or by parameter name. `create` makes one by its registered name.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from ..context import Array, asnumpy, context_of, copyto
from ..errors import AttributeValueError, CheckpointError
from ..executor import address_of, note_write, note_writes
from .loss_scale import DynamicLossScale
from .optimizer_adam import FTML, Adam, Adamax, AdamW, Nadam
from .optimizer_adaptive import AdaDelta, AdaGrad, Ftrl, GroupAdaGrad, RMSProp
from .optimizer_base import Factors, Key, Optimizer, Scratch, State, create, norms, register
from .optimizer_flat import Run, fits, runs_of
from .optimizer_norms import LAMB, LARS, LBSGD
from .optimizer_sgd import DCASGD, NAG, SGD, SGLD, Signum, Test, ccSGD

__all__ = [
    "DCASGD", "FTML", "LAMB", "LARS", "LBSGD", "NAG", "SGD", "SGLD", "AdaDelta", "AdaGrad", "Adam", "AdamW", "Adamax",
    "Factors", "Ftrl", "GroupAdaGrad", "Key", "Nadam", "Optimizer", "RMSProp", "Scratch", "Signum", "State", "Test",
    "Updater", "ccSGD", "create", "get_updater", "register",
]  # fmt: skip

_PLANS = 64  # sets of parameters (of buckets) whose runs are kept
_CHANGES = 3  # times in a row that other arrays come, after which looking for runs is not worth it


class _Plan:
    """The runs of one set of arrays, and the parameters that move by themselves.

    ``changes``: how often in a row other arrays have come. Where they do not stay, they are not kept alive.
    """

    def __init__(self, grads: Sequence[Array], weights: Sequence[Array], changes: int) -> None:
        self.changes = changes
        self._arrays = [*weights, *grads] if self.stays else [weakref.ref(array) for array in (*weights, *grads)]
        self.addresses = [address_of(weight) for weight in weights]
        self.runs: list[Run] = []
        self.alone: list[int] = []

    @property
    def stays(self) -> bool:
        """Whether the same arrays are expected again."""
        return self.changes < _CHANGES

    def is_of(self, grads: Sequence[Array], weights: Sequence[Array]) -> bool:
        """Whether these are the arrays of this plan."""
        held = self._arrays if self.stays else [array() for array in self._arrays]
        return all(map(operator.is_, held, [*weights, *grads]))


class Updater:
    """Applies an optimizer and keeps the state of every parameter; ``updater(key, grad, weight)``.

    `update_all` moves all parameters of a step at once: those that lie behind each other in memory as one array, with
    the same numbers. With a ``loss_scale`` gradients are divided by it, and `accepts` says whether an update may be
    made at all.
    """

    def __init__(self, optimizer: Optimizer, loss_scale: DynamicLossScale | None = None) -> None:
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.states: dict[Key, Any] = {}
        self._loaded: dict[Key, Mapping[str, Any]] = {}
        self._scratch = Scratch()
        self._blocks: dict[Key, tuple[State, int]] = {}
        self._plans: dict[tuple[Key, ...], _Plan] = {}
        own = type(optimizer)
        self._own_update = own.update is not Optimizer.update
        self._flat = optimizer.flat and not self._own_update and own.create_state is Optimizer.create_state

    def __call__(self, key: Key, grad: Array, weight: Array) -> None:
        """Update one parameter in place; key is its index or its name.

        Raises AttributeValueError where the optimizer needs all gradients of a step.
        """
        if self.optimizer.clip_global_norm is not None:
            raise AttributeValueError(
                f"{type(self.optimizer).__name__}: clip_global_norm needs all gradients of a step: call "
                "update_all(keys, gradients, weights), not the updater"
            )
        with _Rescaled(self.optimizer, self._scale()):
            self._move(key, grad, weight)

    def accepts(self, grads: Iterable[Array]) -> bool:
        """Whether an update by all these gradients of one step may be made; once a step, before the first of them.

        Moves the loss scale; always true without one.
        """
        return self.loss_scale is None or self.loss_scale.accepts(grads)

    def update_all(self, keys: Iterable[Key], grads: Sequence[Array], weights: Sequence[Array]) -> bool:
        """Update all parameters of a step in place, or none where the gradients are not accepted; whether it did.

        Raises ShapeError, before anything has moved, where a parameter and its gradient differ.
        """
        if not self.accepts(grads):
            return False
        names = list(keys)
        optimizer = self.optimizer
        plan = self._plan(names, grads, weights)
        with _Rescaled(optimizer, self._scale()):
            optimizer.rescale_grad *= self._shortened(grads)
            if self._own_update:
                for key, grad, weight in zip(names, grads, weights, strict=True):
                    self._move(key, grad, weight)
                return True
            factors = optimizer.next_factors(names)
            for run in plan.runs:
                run.step(optimizer, factors, self._scratch)
            for i in plan.alone:
                one = factors[i]
                if one is not None:
                    optimizer.step_one(weights[i], grads[i], self.states[names[i]], self._scratch, one)
        note_writes(plan.addresses, "the update")
        return True

    def _move(self, key: Key, grad: Array, weight: Array) -> None:
        """One parameter by itself."""
        state = self._state(key, weight)
        if self._own_update:
            self.optimizer.update(key, weight, grad, state)
        else:
            self.optimizer.update(key, weight, grad, state, self._scratch)
        note_write(weight, "the update")

    def _plan(self, keys: Sequence[Key], grads: Sequence[Array], weights: Sequence[Array]) -> _Plan:
        """How these arrays are updated; made when they come for the first time."""
        names = tuple(keys)
        held = self._plans.get(names)
        same = held is not None and held.is_of(grads, weights)
        if held is not None and same and held.stays:
            return held
        for key, grad, weight in zip(keys, grads, weights, strict=True):
            self.optimizer.check(key, weight, grad)
        plan = _Plan(grads, weights, 0 if held is None or same else held.changes + 1)
        flat = self._flat and plan.stays
        together = [i for i in range(len(names)) if flat and fits(weights[i], grads[i])]
        plan.runs = runs_of(
            self.optimizer, [names[i] for i in together], [grads[i] for i in together],
            [weights[i] for i in together], self.states, self._blocks, self._take_loaded,
        )  # fmt: skip
        for run in plan.runs:
            run.renumber(together)
        plan.alone = sorted(set(range(len(names))) - set(together))
        for i in plan.alone:
            self._state(names[i], weights[i])
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[names] = plan
        return plan

    def _scale(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.used

    def _shortened(self, grads: Sequence[Array]) -> float:
        """By what gradients are multiplied so that their common length is not above the optimizer's limit."""
        limit = self.optimizer.clip_global_norm
        if limit is None or not len(grads):
            return 1.0
        squares = 0.0
        for context in {context_of(grad): None for grad in grads}:
            with context.enter():
                here = [grad for grad in grads if context_of(grad) == context]
                squares += sum(one * one for one in norms(context, here))
        length = math.sqrt(squares) * abs(self.optimizer.rescale_grad)
        return limit / length if length > limit else 1.0

    def get_states(self) -> dict[str, Any]:
        """Everything that resuming needs: the states as NumPy copies, the counts of updates."""
        states = {
            key: {name: numpy.array(asnumpy(array)) for name, array in _leaves(state).items()}
            for key, state in self.states.items()
        }
        extra = self.optimizer.extra_state()
        return {
            "optimizer": type(self.optimizer).__name__.lower(),
            "num_update": self.optimizer.num_update,
            "counts": dict(self.optimizer.update_counts),
            "states": self._loaded | states,
            **({"extra": extra} if extra else {}),
            **({} if self.loss_scale is None else {"loss_scale": self.loss_scale.get_state()}),
        }

    def set_states(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `get_states` gave.

        Raises CheckpointError where it is not that, or belongs to another optimizer. Shapes are checked when
        a parameter is next updated.
        """
        if not isinstance(saved, Mapping):
            raise CheckpointError(
                f"updater: the saved states must be a dict of get_states(), but they are {type(saved).__name__}"
            )
        mine = type(self.optimizer).__name__.lower()
        missing = [name for name in ("optimizer", "num_update", "counts", "states") if name not in saved]
        if missing:
            raise CheckpointError(f"updater: the saved states must have {missing[0]!r}, but they have {list(saved)}")
        if saved["optimizer"] != mine:
            raise CheckpointError(
                f"updater: the saved states must be of the optimizer {mine!r}, but they are of {saved['optimizer']!r}"
            )
        self.optimizer.num_update = saved["num_update"]
        self.optimizer.update_counts = dict(saved["counts"])
        for name in self.optimizer.extra_state():
            if name in saved.get("extra", {}):
                setattr(self.optimizer, name, saved["extra"][name])
        self.states, self._blocks, self._plans = {}, {}, {}
        self._loaded = dict(saved["states"])
        if self.loss_scale is not None and "loss_scale" in saved:
            self.loss_scale.set_state(saved["loss_scale"])

    def _state(self, key: Key, weight: Array) -> Any:
        if key not in self.states:
            state = self.optimizer.create_state(key, weight)
            self._take_loaded(key, _leaves(state))
            self.states[key] = state
        return self.states[key]

    def _take_loaded(self, key: Key, state: State) -> None:
        """Give a new state the values that were saved of it."""
        saved = self._loaded.get(key)
        if saved is None:
            return
        if sorted(saved) != sorted(state):
            raise CheckpointError(
                f"updater: the saved state of {key!r} must have {sorted(state)}, but it has {sorted(saved)}"
            )
        for name, array in state.items():
            if saved[name].shape != array.shape:
                raise CheckpointError(
                    f"updater: the saved {name} of {key!r} must have the shape {array.shape}, "
                    f"but it has {saved[name].shape}"
                )
            copyto(array, saved[name])
        del self._loaded[key]


class _Rescaled:
    """Within, the optimizer's gradients are divided by a loss scale."""

    def __init__(self, optimizer: Optimizer, scale: float) -> None:
        self._optimizer, self._scale, self._before = optimizer, scale, optimizer.rescale_grad

    def __enter__(self) -> None:
        if self._scale != 1.0:
            self._optimizer.rescale_grad = self._before / self._scale

    def __exit__(self, *_: object) -> None:
        self._optimizer.rescale_grad = self._before


def _leaves(state: Any, name: str = "state") -> State:
    """The arrays of a state by name; those of tuples, which an optimizer in MXNet's way may have, by their numbers."""
    if state is None:
        return {}
    if isinstance(state, Mapping):
        return dict(state)
    if isinstance(state, (list, tuple)):
        return {key: array for i, one in enumerate(state) for key, array in _leaves(one, f"{name}.{i}").items()}
    return {name: state}


def get_updater(optimizer: Optimizer, loss_scale: DynamicLossScale | None = None) -> Updater:
    """A function ``updater(key, grad, weight)`` that keeps the optimizer's states."""
    return Updater(optimizer, loss_scale)
