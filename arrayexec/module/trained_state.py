"""A manager at rest: what training goes on from, that of all ranks and that of each rank and device alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ..comm import Communicator
from ..context import asnumpy, copyto
from ..errors import CheckpointError, near_miss
from ..executor import note_write
from ..parallel.executor_manager import DataParallelExecutorManager
from ..parallel.training_manager import TrainingManager

Array = Any


class TrainedState(Protocol):
    """What checkpoints ask for, as `ManagerState` and parallel models have it."""

    @property
    def comm(self) -> Communicator | None:
        """The ranks, if there are several."""

    def common_state(self) -> dict[str, Any]:
        """What is the same on all ranks, or their mean; collective."""

    def own_state(self) -> dict[str, Any]:
        """What this rank and its devices have alone."""

    def check_state(self, common: Mapping[str, Any]) -> None:
        """CheckpointError where `common_state` is that of something else; nothing has changed then."""

    def restore_state(self, common: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Go on from both; ``own`` None: there were other ranks. Collective, after `check_state`."""


class ManagerState:
    """The state of a manager."""

    def __init__(self, manager: DataParallelExecutorManager) -> None:
        self.manager, self.comm = manager, manager.comm

    def common_state(self) -> dict[str, Any]:
        """Parameters and auxiliary states (means over devices and ranks) by name, and the count of steps.

        Collective with ranks if there are auxiliary states.
        """
        manager = self.manager
        lead = manager._replicas.lead
        parameters, aux = _like(lead.parameters), _like(lead.aux)
        manager.copy_to(parameters, aux)
        if isinstance(manager, TrainingManager):
            parameters, aux = manager.kept("parameters") | parameters, manager.kept("aux") | aux
        else:
            parameters = manager._kept | parameters
        return {"parameters": parameters, "aux": aux, "step": manager.step}

    def own_state(self) -> dict[str, Any]:
        """What differs from device to device: auxiliary states, what rounded gradients have left out."""
        manager = self.manager
        alone = manager.comm is None and len(manager.stores) == 1
        aux = [] if alone else [{n: np.array(asnumpy(a)) for n, a in store.aux.items()} for store in manager.stores]
        residuals = manager.progress[1] if isinstance(manager, TrainingManager) else {}
        return {
            "devices": len(manager.stores),
            "aux": aux,
            "residuals": [[*place, np.array(asnumpy(array))] for place, array in residuals.items()],
        }

    def check_state(self, common: Mapping[str, Any]) -> None:
        """Raises CheckpointError, naming what is missing or does not fit, where `common_state` is of another symbol."""
        manager = self.manager
        for kind in ("parameters", "aux"):
            given, held = common[kind], getattr(manager._replicas.lead, kind)
            for name, array in held.items():
                if name not in given or tuple(given[name].shape) != tuple(array.shape):
                    there = f"has {given[name].shape}" if name in given else f"is not there{near_miss(name, given)}"
                    shape = tuple(array.shape)
                    raise CheckpointError(f"checkpoint: '{name}' must have the shape {shape}, but it {there}")
            stranger = next((name for name in given if name not in held), None)
            if stranger is not None and manager.sym_gen is None:  # else a bucket may bring it
                fact = f"the symbol must have all {kind} there, but has no '{stranger}'"
                raise CheckpointError(f"checkpoint: {fact}{near_miss(stranger, held)}")

    def restore_state(self, common: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Go on from what `common_state` and, with as many ranks and devices, `own_state` gave; collective with ranks.

        `check_state` comes before.
        """
        manager = self.manager
        manager.set_params(common["parameters"], common["aux"])
        manager.step = int(common["step"])
        manager._moved = True  # the states of devices may differ
        if own is None or own["devices"] != len(manager.stores):
            return
        for store, aux in zip(manager.stores, own["aux"], strict=False):
            for name, value in aux.items():
                if name in store.aux:
                    copyto(store.aux[name], value)
                    note_write(store.aux[name], "a checkpoint")
        if isinstance(manager, TrainingManager):
            residuals = {}
            for device, name, value in own["residuals"]:
                residuals[device, name] = manager.stores[device].context.empty(value.shape, value.dtype, "gradient")
                copyto(residuals[device, name], value)
            manager.progress = manager.step, residuals


def _like(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: np.empty(tuple(array.shape), array.dtype) for name, array in arrays.items()}
