"""Parameters, gradients and auxiliary states of all devices of a manager, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..comm import Communicator
from ..context import Context, add_to, asnumpy, context_of, copyto
from ..errors import UnknownNameError, near_miss
from ..executor import note_write
from ..train.optimizer import Updater
from .binding import DeviceStore
from .manager_checks import check_value

Array = Any
KINDS = ("parameters", "aux")


class Replicas:
    """One store a device. The leading device has rows of every batch; sums of gradients and updates are made there."""

    def __init__(self, contexts: Sequence[Context], lead: int) -> None:
        self.stores = [DeviceStore(context) for context in contexts]
        self.lead = self.stores[lead]
        for store in self.stores:
            store.grown = self.lead.grown  # one warning for all devices
        self.written: set[tuple[str, str]] = set()
        """Kind and name of what has a value."""

    def of(self, kind: str, name: str) -> list[Array]:
        """One of the ``parameters`` (or ``aux``) on all devices that have it."""
        held: list[Mapping[str, Array]] = [getattr(store, kind) for store in self.stores]
        return [arrays[name] for arrays in held if name in arrays]

    def check(self, call: str, kind: str, names: Iterable[str]) -> None:
        """UnknownNameError for a name that no device has."""
        for name in names:
            if not self.of(kind, name):
                known = [*self.lead.parameters, *self.lead.aux]
                raise UnknownNameError(f"{call}: there is no '{name}' among the {kind}{near_miss(name, known)}")

    def names(self) -> list[set[str]]:
        """What every device has."""
        return [store.parameters.keys() | store.aux.keys() for store in self.stores]

    def catch_up(self, before: Sequence[set[str]]) -> None:
        """Give devices the leading one's values of what they did not have ``before``."""
        for kind in KINDS:
            for name, first in getattr(self.lead, kind).items():
                for store, had in zip(self.stores, before, strict=True):
                    mine = getattr(store, kind)
                    if store is not self.lead and name in mine and name not in had:
                        copyto(mine[name], first)

    def write(self, kind: str, name: str, value: Array, words: str) -> bool:
        """Copy ``value`` to all devices that have it, and tell that the engine has written it; whether any has."""
        held = self.of(kind, name)
        if held:
            self.written.add((kind, name))
        for array in held:
            if array is not value:
                copyto(array, value)
            note_write(array, words)
        return bool(held)

    def take(self, kept: dict[str, Array], brought: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Write the values kept for names that a bucket has brought, by kind; ShapeError for one that does not fit."""
        for kind, names in brought:
            for name in kept.keys() & set(names):
                check_value(name, kept[name], getattr(self.lead, kind)[name])
                self.write(kind, name, kept.pop(name), "set_params")

    def broadcast(self, comm: Communicator | None) -> None:
        """Give all ranks and devices the arrays of rank 0's leading device; collective."""
        for kind in KINDS:
            held = getattr(self.lead, kind)
            for name in sorted(held):
                if comm is not None:
                    comm.broadcast(held[name])
                self.write(kind, name, held[name], "broadcast_parameters")

    def means(self, kind: str, names: Iterable[str], comm: Communicator | None) -> dict[str, Any]:
        """Means over devices and ranks, in float64, where the mean of equal float32 numbers is that number."""
        found: dict[str, Any] = {}
        for name in names:
            held = [asnumpy(array) for array in self.of(kind, name)]
            found[name] = np.mean(held, axis=0, dtype=np.float64) if len(held) > 1 else held[0]
        if comm is not None and found:
            flat = np.concatenate([mean.reshape(-1) for mean in found.values()], dtype=np.float64)
            comm.allreduce(flat)
            parts = np.split(flat / comm.size, np.cumsum([mean.size for mean in found.values()])[:-1])
            found = {name: part.reshape(found[name].shape) for name, part in zip(found, parts, strict=True)}
        return found

    def sum_gradients(self, names: Iterable[str], devices: Iterable[int]) -> None:
        """Add the gradients of ``devices`` to those of the leading one, in their order."""
        others = [self.stores[i].gradients for i in devices if self.stores[i] is not self.lead]
        for name in names if others else ():
            for gradients in others:
                if name in gradients:
                    add_to(self.lead.gradients[name], gradients[name])

    def apply(self, updater: Any, names: Sequence[str]) -> None:
        """Update parameters of the leading device by its gradients, at once if the updater can; give them to all."""
        gradients, parameters = ([held[name] for name in names] for held in (self.lead.gradients, self.lead.parameters))
        if hasattr(updater, "update_all"):
            updater.update_all(names, gradients, parameters)
        else:
            for each in zip(names, gradients, parameters, strict=True):
                updater(*each)
        if isinstance(updater, Updater) and len(self.stores) == 1:
            return  # it has told of its writes
        for name, parameter in zip(names, parameters, strict=True):
            self.write("parameters", name, parameter, "the update")

    def zero_gradients(self) -> None:
        """Set all gradients of all devices to zero."""
        for store in self.stores:
            for array in store.gradients.values():
                with context_of(array).enter():
                    array.fill(0)
