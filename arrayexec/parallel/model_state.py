"""A parallel model at rest: its devices, blobs, losses, parameters, plan. `ParallelModel` adds the steps."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import files
from ..context import asnumpy, copyto
from ..errors import (
    CheckpointError,
    NotBoundError,
    ParallelizeError,
    UnknownNameError,
    near_miss,
)
from ..plan import Plan
from ..streams import current_seed, seed
from ..train.model_helper import ModelHelper
from .consistency import check_replicas
from .device_net import DeviceNet, gradient_order, stretches
from .gradient_sync import describe_nodes
from .model_checks import Options
from .shards import Shards

Array = Any
_PREFIX = re.compile(r"(cpu|gpu|ideep)_\d+")


def _local(name: str) -> str:
    """The name of a blob without the prefix of its device."""
    return name.partition("/")[2] or name


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

    reduces = True
    """Whether gradients are summed over devices and ranks."""

    def __init__(self, model: ModelHelper, options: Options) -> None:
        self.model, self.options = model, options
        self.comm: Any = options.comm if options.comm is not None and options.comm.size > 1 else None
        """The ranks, if there are several."""
        self.iteration = 0
        memory = (options.dynamic_memory_management, options.optimize_gradient_memory)
        scope = "outputs" if memory[0] else "forward" if memory[1] else "all"
        loose = memory[0] and model.optimizer is not None and self.comm is None and not options.use_nccl
        self.devices = [
            DeviceNet(model.nets[prefix], context, model.groups, scope, options.blobs_to_keep, loose)
            for prefix, context in zip(options.prefixes, options.contexts, strict=True)
        ]
        self.master = self.devices[0]
        net = self.master.net
        self.trained = {name: net.params[name] for name in (gradient_order(net) if options.trains else ())}
        """Parameters that the losses depend on, in the order in which their gradients are finished."""
        self._started = self._monitored = False
        self._syncs: dict[str, str] = {}
        self._shards: Shards | None = None

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
        if name in self.learning_rate_blobs():
            rate = self.model.rates[name](self.iteration) if optimizer is None else self.learning_rate()
            return np.array([rate], np.float32)
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
        devices = {device.net.prefix: device.plan() for device in self.devices}
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

    def _description(self) -> dict[str, object]:
        """What ranks must agree on."""
        net, optimizer, written = self.master.net, self.model.optimizer, dict[str, object]()
        params = {f"parameter '{n}'": f"{p.shape} {np.dtype(p.dtype).name}" for n, p in net.params.items()}
        rule = {} if optimizer is None else {"rule": type(optimizer).__name__, **vars(optimizer)}
        plain = {f"optimizer {n}": v for n, v in rule.items() if isinstance(v, int | float | str | bool | None)}
        for when, values in (("update of", net.updates), ("after init,", net.after_init)):
            for name, value in values.items():
                nodes = {f": {node}": words for node, words in describe_nodes(None, value).items()}
                written |= {f"{when} '{name}'{node}": words for node, words in {"": value.name, **nodes}.items()}
        return {
            "devices": len(self.devices), "seed": current_seed(), **self.options.agreed(), **params, **plain,
            **describe_nodes(None, net.graph), **written, **self.model.schedules,
        }  # fmt: skip

    def install_monitor(self, monitor: Any) -> None:
        """Let a `Monitor` watch the nets of all devices, which then run in turn; values have the tags ``cpu_0`` ….

        ``monitor.tic()`` before a run, ``toc()`` after it.
        """
        for device in self.devices:
            device.watch(monitor)
        self._monitored = True

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
        if how is False:
            return
        net, op = self.master.net, "mean" if how == "average" else "broadcast"
        if not all("computed" in device.blocks for device in self.devices):
            for name in self.master.computed:
                self._sync_blob(name, op)
            return
        specs = {name: net.params[name] for name in net.computed}
        for cut in stretches(specs, self.master.context.alignment, False):  # all at once, not layer by layer
            self._sync_arrays([cut.of(device.blocks["computed"]) for device in self.devices], op)

    def _sync_blob(self, name: str, how: str) -> None:
        """Give all devices and ranks the master's value of a blob, or the sum or mean of all."""
        self._sync_arrays([device.blob(name) for device in self.devices], how)

    def _sync_arrays(self, arrays: Sequence[Array], how: str) -> None:
        """As `_sync_blob`, for the arrays of all devices."""
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

    def _sync_blobs(self) -> None:
        for name, how in self._syncs.items():
            self._sync_blob(name, how)

    def add_blob_sync(self, blobs: Sequence[str], op: str = "broadcast") -> None:
        """Let every step end with all devices and ranks having the master's values of blobs, or the sum or mean of all.

        Names are without prefix. Raises UnknownNameError, and ParallelizeError for a name of one device.
        """
        if op not in ("broadcast", "sum", "mean"):
            raise ParallelizeError(f"add_blob_sync: op must be 'broadcast', 'sum' or 'mean', but it is {op!r}")
        for name in blobs:
            prefix, slash, local = name.partition("/")
            if slash and _PREFIX.fullmatch(prefix):
                raise ParallelizeError(f"add_blob_sync: '{name}' is the blob of one device: give its name, '{local}'")
            self.master.check_known(name)
            self._syncs[name] = op

    # --- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint_params(self) -> dict[str, Array]:
        """All that training goes on from, by full name: parameters, computed ones, states, and the count of steps.

        Collective with ``sharded_update``.
        """
        self._check_started("checkpoint_params")
        net = self.master.net
        held = {**self.master.params, **self.master.computed, **self.master.states}
        held |= self._shards.gather() if self._shards is not None else {}
        found = {f"{net.prefix}/{name}": array for name, array in held.items()}
        return {**found, "optimizer_iteration": np.array([self.iteration], np.int64)}

    def save(self, path: str) -> None:
        """Write a checkpoint (npz if the path ends so, else ``.params``); with ranks rank 0 does. Raises OSError.

        Collective with ``sharded_update``.
        """
        held = {name: asnumpy(array) for name, array in self.checkpoint_params().items()}
        if self.comm is None or self.comm.rank == 0:
            files.save(path, {**held, "seed": np.array([current_seed()], np.int64)})

    def load(self, path: str) -> None:
        """Go on from a checkpoint, whatever devices and ranks it was written by; collective with ranks.

        Raises CheckpointError naming what is missing or does not fit, FileFormatError, OSError.
        """
        found: Any = files.load(path)
        given = {_local(name): array for name, array in found.items()} if found else {}
        self._check_fits(given, f"in {path} it")
        self._take(given)
        if "seed" in given:
            seed(int(given["seed"][0]))

    def _check_fits(self, given: Mapping[str, Any], where: str) -> None:
        for name, array in self.checkpoint_params().items():
            local = _local(name)
            if local not in given or given[local].shape != array.shape:
                there = f"is {given[local].shape}" if local in given else f"is not there{near_miss(local, given)}"
                raise CheckpointError(f"load: '{local}' must be {tuple(array.shape)}, but {where} {there}")

    def _take(self, given: Mapping[str, Any]) -> None:
        arrays = {_local(name): array for name, array in self.checkpoint_params().items()}
        for name, array in arrays.items():
            copyto(array, given[name])
        if self._shards is not None:
            self._shards.take(arrays)
        self.iteration = int(given["optimizer_iteration"][0])
        self.finalize_after_checkpoint()

    def common_state(self) -> dict[str, Any]:
        """What `checkpoint_params` gives, copies in host memory by name without prefix; for files of several models."""
        return {"parameters": {_local(n): np.array(asnumpy(a)) for n, a in self.checkpoint_params().items()}}

    def own_state(self) -> dict[str, Any]:
        """What this rank alone has: nothing, as computed parameters are the master's in files."""
        return {}

    def check_state(self, common: Mapping[str, Any]) -> None:
        """Raises CheckpointError where `common_state` is of another model."""
        self._check_fits(common["parameters"], "there it")

    def restore_state(self, common: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Go on from what `common_state` gave, which `check_state` has seen; collective with ranks."""
        self._take(common["parameters"])

    def finalize_after_checkpoint(self, blobs: Sequence[str] | None = None) -> None:
        """Give all devices and ranks the master's (rank 0's) values of blobs (None: all of a checkpoint); collective.

        Raises UnknownNameError.
        """
        self._check_started("finalize_after_checkpoint")
        if blobs is None:
            self.sync_parameters()
            if self.comm is not None:
                count = np.array([self.iteration], np.int64)
                self.comm.broadcast(count)
                self.iteration = int(count[0])
            return
        for name in blobs:
            self._sync_blob(name.removeprefix(f"{self.master.net.prefix}/"), "broadcast")

    def check_consistency(self) -> None:
        """Compare parameters of all devices and ranks by their bits, and states that all have alike; collective.

        Raises InconsistentReplicaError naming the first that differs and who holds what.
        """
        self._check_started("check_consistency")
        held = {
            device.net.prefix: {
                **device.params, **(device.computed if self._same_computed else {}),
                **(device.states if self.reduces and self._shards is None else {}),
            }
            for device in self._updated()
        }  # fmt: skip
        check_replicas(held, self.comm, f"at step {self.iteration}")

    @property
    def _same_computed(self) -> bool:
        """Whether computed parameters are kept alike."""
        return self.options.broadcast_computed_params is not False and self.options.trains

    def check_for_failures(self) -> None:
        """Raise CollectiveError or PeerFailure if another rank is known to have failed; never waits."""
        if self.comm is not None:
            self.comm.check("check_for_failures")

    def synchronize(self, timeout_sec: float = 300) -> None:
        """Wait for all ranks, up to a deadline; alone nothing. Raises BarrierTimeoutError."""
        if self.comm is not None:
            with self.comm.deadline(timeout_sec):
                self.comm.barrier()

    def _check_kept(self) -> None:
        """Warn of blobs to keep that there are not."""
        known = {*self.master.net.blobs, *self.master.net.values}
        for name in self.options.blobs_to_keep:
            if name not in known and name.removesuffix("_grad") not in known:
                near = near_miss(name, known)
                warnings.warn(f"parallelize: blobs_to_keep: there is no blob '{name}'{near}", stacklevel=2)
