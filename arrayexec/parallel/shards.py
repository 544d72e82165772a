"""Updates of a parallel model in parts (ZeRO-1): a rank moves some stretches of the parameters, for all of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..comm import Communicator, GradientBuckets
from ..context import copyto
from ..train.model_optimizer import ModelOptimizer
from .device_net import DeviceNet

Array = Any


class Shards:
    """The stretches of a device's parameters that this rank updates, and the optimizer's states of these alone.

    ``buckets`` are ``sharded``; parameters and gradients lie in memory that the ranks of a host share. Making one is a
    collective call.
    """

    def __init__(
        self, comm: Communicator, buckets: GradientBuckets, device: DeviceNet, optimizer: ModelOptimizer
    ) -> None:
        self._comm, self._device, self._optimizer = comm, device, optimizer
        self._pieces = list(buckets.owned())
        kinds = [device.params[piece.name].dtype for piece in self._pieces]
        device.parts = [
            {name: device.context.zeros((piece.stop - piece.start,), kind, "state") for name in optimizer.used_states()}
            for piece, kind in zip(self._pieces, kinds, strict=True)
        ]
        self._whole = {
            name + optimizer.blobs[state]: device.params[name]
            for state in optimizer.used_states()
            for name in device.gradients
        }
        """What the states of all parameters look like, by the names of their blobs."""
        mine = [[piece.name, piece.start, piece.stop] for piece in self._pieces]
        self._speaks = comm.allgather_object(mine, "parts of the update").index(mine) == comm.rank
        """Whether this rank is the first that has these stretches: other hosts have them, too."""

    def update(self, step: int, rate: float) -> None:
        """Move the parameters by their gradients, on all ranks; collective."""
        device, optimizer = self._device, self._optimizer
        for piece, states in zip(self._pieces, device.parts, strict=True):
            flat = (held[piece.name].reshape(-1) for held in (device.params, device.gradients))
            weight, gradient = (array[piece.start : piece.stop] for array in flat)
            if optimizer.weight_decay and device.net.params[piece.name].decays:
                optimizer.decay(device.context, weight, gradient)
            optimizer.apply(device.context, step, weight, gradient, states, rate)
            self._comm.spread(weight)
        self._comm.barrier()

    def gather(self) -> dict[str, Array]:
        """The states of all parameters, by the names of their blobs; collective."""
        found = {name: np.zeros(like.shape, like.dtype) for name, like in self._whole.items()}
        for name, start, stop, part in self._parts() if self._speaks else ():
            found[name].reshape(-1)[start:stop] = part
        for whole in found.values():
            self._comm.allreduce(whole)  # zeros of all others: exact
        return found

    def take(self, states: Mapping[str, Array]) -> None:
        """Take this rank's stretches of rank 0's states, named as `gather` names them; collective."""
        for name in self._whole:
            self._comm.broadcast(states[name])
        for name, start, stop, part in self._parts():
            copyto(part, states[name].reshape(-1)[start:stop])

    def _parts(self) -> list[tuple[str, int, int, Array]]:
        """Blob, stretch and array of every state that this rank holds."""
        return [
            (piece.name + self._optimizer.blobs[state], piece.start, piece.stop, part)
            for piece, states in zip(self._pieces, self._device.parts, strict=True)
            for state, part in states.items()
        ]
