"""A parallel model at rest: its devices, blobs, losses, parameters, plan. `ParallelModel` adds the steps."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..context import asnumpy, copyto
from ..errors import NotBoundError, UnknownNameError, near_miss
from ..plan import Plan
from ..train.model_helper import ModelHelper
from .device_net import DeviceNet, gradient_order
from .model_checks import Options

Array = Any


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """All that a step does: ``devices`` are the plans of the nets by prefix, ``events`` what happens in which order.

    ``bytes``: by prefix, then role.
    """

    devices: Mapping[str, Plan]
    events: tuple[str, ...]
    bytes: Mapping[str, Mapping[str, int]]


class ModelState:
    """Devices of a model and what they hold. ``master`` is the first; ``iteration`` counts training steps."""

    def __init__(self, model: ModelHelper, options: Options) -> None:
        self.model, self.options = model, options
        self.comm: Any = options.comm if options.comm is not None and options.comm.size > 1 else None
        """The ranks, if there are several."""
        self.iteration = 0
        memory = (options.dynamic_memory_management, options.optimize_gradient_memory)
        scope = "outputs" if memory[0] else "forward" if memory[1] else "all"
        loose = memory[0] and model.optimizer is not None and self.comm is None
        self.devices = [
            DeviceNet(model.nets[prefix], context, model.groups, scope, options.blobs_to_keep, loose)
            for prefix, context in zip(options.prefixes, options.contexts, strict=True)
        ]
        self.master = self.devices[0]
        net = self.master.net
        self.trained = {name: net.params[name] for name in (gradient_order(net) if options.trains else ())}
        """Parameters that the losses depend on, in the order in which their gradients are finished."""
        self._started = False

    @property
    def is_started(self) -> bool:
        """Whether `init` has run."""
        return self._started

    def _check_started(self, call: str) -> None:
        if not self._started:
            raise NotBoundError(f"{call}: the model '{self.model.name}' has no parameters yet: call init() first")

    def _updated(self) -> list[DeviceNet]:
        """Devices that hold parameters of their own."""
        return self.devices[:1] if self.options.shared_model else self.devices

    def losses(self) -> dict[str, float]:
        """The losses of the last step as the forward builder gave them, by blob, of this rank's devices."""
        self._check_started("losses")
        found = {}
        for device in self.devices:
            outputs = device.executor.outputs if device.executor is not None else ()
            for loss, array in zip(device.net.losses, outputs, strict=False):
                found[f"{device.net.prefix}/{loss.name}"] = float(asnumpy(array).sum())
        return found

    def loss(self) -> float:
        """Sum of all losses of the last step on this rank's devices."""
        return sum(self.losses().values())

    def blob(self, name: str, device: int | None = None) -> Array:
        """The array of a blob by its full name (``cpu_1/fc1_w``), or by its name on a device (None: the master).

        Gradients are ``<name>_grad``. Raises UnknownNameError, BlobFreedError where a memory option freed it.
        """
        self._check_started("blob")
        if name == "optimizer_iteration":
            return np.array([self.iteration], np.int64)
        optimizer = self.model.optimizer
        if optimizer is not None and name in optimizer.learning_rate_blobs(self.options.prefixes[0]):
            return np.array([self.learning_rate()], np.float32)
        prefix, _, local = name.partition("/")
        found = next((one for one in self.devices if one.net.prefix == prefix), None)
        if found is not None and device is None:
            return found.blob(local)
        kind = self.options.prefixes[0].partition("_")[0]
        wanted = self.options.prefixes[0] if device is None else f"{kind}_{device}"
        held = next((one for one in self.devices if one.net.prefix == wanted), None)
        if held is None:
            raise UnknownNameError(f"blob: there is no device '{wanted}'{near_miss(wanted, self.options.prefixes)}")
        return held.blob(name)

    def learning_rate_blobs(self) -> list[str]:
        """Names of the blobs that hold learning rates."""
        optimizer = self.model.optimizer
        return list(self.model.rates) if optimizer is None else optimizer.learning_rate_blobs(self.options.prefixes[0])

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Copy values into parameters and states, by name without prefix, on all devices of this rank."""
        self._check_started("set_params")
        for name, value in values.items():
            for device in self.devices:
                held = {**device.params, **device.computed, **device.states}
                if name not in held:
                    raise UnknownNameError(f"set_params: there is no parameter '{name}'{near_miss(name, held)}")
                copyto(held[name], np.asarray(value, held[name].dtype).reshape(held[name].shape))

    @property
    def plan(self) -> ModelPlan:
        """The complete plan of a step. Raises NotBoundError before shapes of inputs are known."""
        if self.master.executor is None:
            raise NotBoundError(f"plan: the shapes of the inputs of '{self.model.name}' are not known yet: run a step")
        devices = {d.net.prefix: d.executor.plan() for d in self.devices}  # type: ignore[union-attr]
        return ModelPlan(devices, tuple(self._events()), {d.net.prefix: d.nbytes() for d in self.devices})

    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.model.optimizer.rate(max(self.iteration, 1)))

    def _events(self) -> Iterator[str]:
        for device in self.devices:
            yield f"forward {device.net.prefix}"
        if not self.options.trains:
            return
        for device in reversed(self.devices):
            yield f"backward {device.net.prefix}"
        for name in self.master.computed if self.options.broadcast_computed_params is not False else ():
            yield f"sync {name}"
        for name in self.trained:
            yield f"reduce {name}_grad"
        for device in self._updated():
            yield from (f"update {device.net.prefix}/{name}" for name in device.net.trained if name in self.trained)

    # --- the same on all devices -------------------------------------------------------------------------------

    def sync_parameters(self) -> None:
        """Give all devices the master's parameters and computed parameters, all ranks those of rank 0; collective."""
        held = {**self.master.params, **self.master.computed, **self.master.states}
        for name in held if self.comm is not None else ():
            self.comm.broadcast(held[name])
        for device in self.devices[1:]:
            mine = {**device.params, **device.computed, **device.states}
            for name, array in held.items():
                if name in mine and mine[name] is not array:
                    copyto(mine[name], array)

    def _sync_computed(self) -> None:
        how = self.options.broadcast_computed_params
        for name in self.master.computed if how is not False else ():
            self._sync_blob(name, "mean" if how == "average" else "broadcast")

    def _sync_blob(self, name: str, how: str) -> None:
        """Give all devices and ranks the master's value of a blob, or the sum or mean of all."""
        arrays = [device.blob(name) for device in self.devices]
        if how == "broadcast":
            if self.comm is not None:
                self.comm.broadcast(arrays[0])
        else:
            total = np.sum([asnumpy(array).astype(np.float64) for array in arrays], axis=0)
            if self.comm is not None:
                self.comm.allreduce(total)
            count = len(arrays) * (self.comm.size if self.comm is not None else 1) if how == "mean" else 1
            copyto(arrays[0], total / count)
        for array in arrays[1:]:
            if array is not arrays[0]:
                copyto(array, arrays[0])

    def _check_kept(self) -> None:
        """Warn of blobs to keep that there are not."""
        known = {*self.master.net.blobs, *self.master.net.values}
        for name in self.options.blobs_to_keep:
            if name not in known and name.removesuffix("_grad") not in known:
                near = near_miss(name, known)
                warnings.warn(f"parallelize: blobs_to_keep: there is no blob '{name}'{near}", stacklevel=2)
