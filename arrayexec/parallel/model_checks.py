"""What `parallelize` refuses, before any graph work and before any message."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..comm import Communicator, init
from ..comm.local import LocalCommunicator
from ..context import Context, cpu, current_context, gpu, num_gpus
from ..errors import (
    AlreadyParallelizedError,
    ArgumentError,
    BackendUnavailableError,
    DeviceError,
    ParallelizeError,
    RendezvousError,
    near_miss,
)
from ..threads import cores
from ..train.model_helper import ModelHelper, Net
from .device_net import gradient_order
from .uneven import UNEVEN

_SIDE_BY_SIDE = "dag async_dag async_scheduling async_polling parallel prof_dag rnn singlethread_async"
NET_TYPES = dict.fromkeys("simple async_simple simple_refcount".split(), "simple")
NET_TYPES |= dict.fromkeys(_SIDE_BY_SIDE.split(), "dag")
"""Caffe2's names of executors: one device after the other, or all side by side."""

ENGINES = {"mpi": "mpi", "nccl": "nccl", "GLOO": "mpi", "MPI": "mpi", "NCCL": "nccl"}
_KEYS = ("engine", "num_shards", "shard_id", "comm", "timeout_sec")
_IGNORED = ("kv_handler", "transport", "interface", "mpi_rendezvous")


@dataclasses.dataclass(frozen=True)
class Options:
    """Checked arguments of `parallelize`; what they mean is said there."""

    contexts: tuple[Context, ...]
    prefixes: tuple[str, ...]
    net_type: str
    comm: Communicator | None
    trains: bool
    broadcast_computed_params: bool | str
    optimize_gradient_memory: bool
    dynamic_memory_management: bool
    blobs_to_keep: tuple[str, ...]
    use_nccl: bool | str
    max_concurrent_distributed_ops: int
    num_threads_per_device: int
    shared_model: bool
    combine_spatial_bn: bool | str
    barrier_net_timeout_sec: float
    loss_weighting: str
    uneven: str
    transport: str | None
    sharded_update: bool

    def agreed(self) -> dict[str, object]:
        """What must be the same on every rank."""
        mine = dataclasses.asdict(dataclasses.replace(self, comm=None, contexts=()))
        local = ("comm", "contexts", "prefixes", "net_type", "num_threads_per_device", "blobs_to_keep")
        return {f"option {name}": value for name, value in mine.items() if name not in local}


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        shown = ", ".join(map(repr, allowed))
        raise ParallelizeError(f"parallelize: {name} must be one of {shown}, but it is {value!r}")


def _at_least_one(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ParallelizeError(f"parallelize: {name} must be a whole number of at least 1, but it is {value!r}")


def check_model(model: Any) -> None:
    """Refuse what is no model, one that is parallelized, and calls inside scopes."""
    if not isinstance(model, ModelHelper):
        raise ArgumentError(f"parallelize: the model must be a ModelHelper, but it is a {type(model).__name__}")
    if model.parallel is not None:
        raise AlreadyParallelizedError(
            f"parallelize: the model '{model.name}' is parallelized already; use what the first call gave, or build "
            "another ModelHelper"
        )
    if model.in_scope:
        raise ParallelizeError(
            f"parallelize: call it outside of name scopes, but '{model.in_scope}' is open: names of blobs begin with "
            "their device"
        )
    if current_context().device_type == "gpu":
        raise ParallelizeError(
            f"parallelize: call it outside of GPU scopes, but {current_context()} is open: every net has its own device"
        )


def check_builders(**builders: tuple[Any, bool]) -> None:
    """Refuse what cannot be called. ``builders``: functions by name, and whether they may be None."""
    for name, (function, optional) in builders.items():
        if not (callable(function) or (optional and function is None)):
            words = "a function or None" if optional else "a function"
            raise ArgumentError(f"parallelize: {name} must be {words}, but it is {function!r}")


def find_devices(devices: Any, cpu_device: bool, ideep: bool) -> tuple[tuple[Context, ...], tuple[str, ...]]:
    """Contexts and prefixes of blobs; the first device is the master. Raises DeviceError, BackendUnavailableError."""
    on_gpu = not (cpu_device or ideep)
    count = num_gpus() if on_gpu else 0
    if on_gpu and not count:
        raise BackendUnavailableError(
            "parallelize: no GPU can be used here (cpu_device=False)\n  to train on processors: cpu_device=True"
        )
    if devices is None:
        devices = range(count if on_gpu else cores())
    if isinstance(devices, str | Mapping) or not hasattr(devices, "__iter__"):
        raise DeviceError(f"parallelize: devices must be a list of numbers, but it is {devices!r}")
    ids = [operator.index(one) if hasattr(one, "__index__") and not isinstance(one, bool) else one for one in devices]
    if not ids:
        raise DeviceError("parallelize: devices must name at least one device, but the list is empty")
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise DeviceError(f"parallelize: devices must be whole numbers >= 0, but one is {one!r}")
        if ids.count(one) > 1:
            raise DeviceError(f"parallelize: each device must be named once, but {one} is there {ids.count(one)} times")
        if on_gpu and one >= count:
            raise DeviceError(f"parallelize: device {one} is not there: the GPUs are 0 to {count - 1}")
    kind = "gpu" if on_gpu else "ideep" if ideep else "cpu"
    return tuple((gpu if on_gpu else cpu)(one) for one in ids), tuple(f"{kind}_{one}" for one in ids)


def meet(rendezvous: Any) -> Communicator | None:
    """The communicator that ``rendezvous`` asks for: one of ours or of MPI, or a dict. Raises RendezvousError.

    MPI's may hold some of the ranks only; `arrayexec.comm.init` is then called on all of them, here at the latest.
    """
    if rendezvous is None or isinstance(rendezvous, Communicator):
        return rendezvous
    given: dict[str, Any] = {"comm": rendezvous, "engine": "mpi"}
    if isinstance(rendezvous, Mapping):
        given = dict(rendezvous)
        for name in given:
            if name in _IGNORED:
                words = f"parallelize: rendezvous: '{name}' means nothing here: ranks meet over MPI"
                warnings.warn(words, stacklevel=4)
            elif name not in _KEYS:
                raise RendezvousError(f"parallelize: rendezvous has no key '{name}'{near_miss(name, _KEYS)}")
        for name in ("engine", "num_shards", "shard_id"):
            if name not in given:
                raise RendezvousError(f"parallelize: rendezvous must have the key '{name}', but it has {list(given)}")
        if str(given["engine"]) not in ENGINES:
            near = near_miss(str(given["engine"]), ENGINES)
            raise RendezvousError(f"parallelize: rendezvous: there is no engine {given['engine']!r}{near}")
        if given["engine"] not in ("mpi", "nccl"):
            words = "parallelize: the engine %s is %s here"
            logging.getLogger("arrayexec").info(words, given["engine"], ENGINES[given["engine"]])
    other: Any = given.get("comm")
    if not isinstance(other, Communicator | None) and not hasattr(other, "Get_rank"):
        raise RendezvousError(
            f"parallelize: rendezvous must be an MPI communicator or a dict, but it is a {type(other).__name__}"
        )
    if hasattr(other, "Get_rank") and not other:
        raise RendezvousError("parallelize: rendezvous: this process is none of the ranks of the MPI communicator")
    comm: Communicator
    if isinstance(other, Communicator):
        comm = other
    elif (given["num_shards"] if other is None else other.Get_size()) == 1:
        comm = LocalCommunicator()
    else:
        whole: Any = init(ENGINES[given["engine"]], timeout=given.get("timeout_sec"))
        comm = whole if other is None else whole.within(other)
    sizes = {"num_shards": comm.size, "shard_id": comm.rank}
    told = {"num_shards": other.Get_size(), "shard_id": other.Get_rank()} if hasattr(other, "Get_rank") else {}
    for name, is_value in sizes.items():
        for value in (given.get(name, is_value), told.get(name, is_value)):
            if value != is_value:
                raise RendezvousError(f"parallelize: rendezvous: {name} is {value!r}, but MPI says {is_value}")
    return comm


def check_losses(model: ModelHelper, net: Net, losses: Any, trains: bool) -> list[Any]:
    """The losses that a forward builder gave. Raises ArgumentError for anything but a sequence of Symbols."""
    from ..symbol import Symbol

    who = f"parallelize: model '{model.name}': forward_pass_builder_fun on {net.prefix}"
    if not net.blobs:
        raise ParallelizeError(f"parallelize: model '{model.name}': the builders made nothing on {net.prefix}")
    if not trains and losses is None:
        return []
    if isinstance(losses, str | Symbol | Mapping) or not isinstance(losses, Sequence):
        raise ArgumentError(f"{who} must give a list of losses, but it gave {losses!r}")
    for loss in losses:
        if not isinstance(loss, Symbol):
            raise ArgumentError(f"{who} must give Symbols as losses, but one is {loss!r}")
    if trains and not losses:
        raise ParallelizeError(f"{who} must give at least one loss to train, but the list is empty")
    return list(losses)


def check_nets(model: ModelHelper, nets: Sequence[Net]) -> None:
    """Refuse devices whose nets differ in parameters."""
    first = nets[0]
    for net in nets[1:]:
        for name in dict.fromkeys((*first.params, *net.params)):
            mine, other = first.params.get(name), net.params.get(name)
            same = mine and other and (mine.shape, mine.computed) == (other.shape, other.computed)
            if not same:
                shown = [f"{n.prefix} has {p.shape if p else 'none'}" for n, p in ((first, mine), (net, other))]
                raise ParallelizeError(
                    f"parallelize: model '{model.name}': all devices must build the same parameters, "
                    f"but of '{name}' {' and '.join(shown)}"
                )


def check_graphs(model: ModelHelper, nets: Sequence[Net]) -> None:
    """Refuse devices that do not train the same parameters, or do not meet in the same batch normalisations."""
    for what, of in (("train the same parameters", _trained), ("combine the same statistics", _combined)):
        for net in nets[1:]:
            pairs = itertools.zip_longest(of(nets[0]), of(net), fillvalue="no more")
            for mine, other in pairs:
                if mine != other:
                    raise ParallelizeError(
                        f"parallelize: model '{model.name}': all devices must {what}, but "
                        f"{nets[0].prefix} has '{mine}' where {net.prefix} has '{other}'"
                    )


def _trained(net: Net) -> list[str]:
    return sorted(gradient_order(net))


def _combined(net: Net) -> list[str]:
    """Batch normalisations whose statistics are combined, in the order in which devices meet."""
    nodes = net.graph.graph.nodes  # type: ignore[union-attr]
    return [one.name.removesuffix("_moments") for one in nodes if one.op and one.op.form.name == "_joined_moments"]


_DEFAULTS: Mapping[str, Any] = {
    "broadcast_computed_params": True, "optimize_gradient_memory": False, "dynamic_memory_management": False,
    "blobs_to_keep": None, "use_nccl": False, "max_concurrent_distributed_ops": 16, "num_threads_per_device": 4,
    "shared_model": False, "combine_spatial_bn": False, "barrier_net_timeout_sec": 300, "loss_weighting": "devices",
    "uneven": "error", "transport": None, "sharded_update": False,
}  # fmt: skip


def check_options(
    trains: bool, *, devices: Any, rendezvous: Any, net_type: Any, cpu_device: Any, ideep: Any = False, **options: Any
) -> Options:
    """The options by name, checked; communicators are made last. Raises ParallelizeError and its kin."""
    given = {**_DEFAULTS, **options}
    if not isinstance(net_type, str) or net_type not in NET_TYPES:
        raise ParallelizeError(f"parallelize: there is no net_type {net_type!r}{near_miss(str(net_type), NET_TYPES)}")
    _one_of("broadcast_computed_params", given["broadcast_computed_params"], (True, False, "average"))
    _one_of("combine_spatial_bn", given["combine_spatial_bn"], (True, False, "host"))
    _one_of("use_nccl", given["use_nccl"], (True, False, "auto"))
    _one_of("loss_weighting", given["loss_weighting"], ("devices", "samples"))
    _one_of("uneven", given["uneven"], UNEVEN)
    _one_of("transport", given["transport"], (None, "float16", "bfloat16"))
    for name in ("sharded_update", "shared_model", "optimize_gradient_memory", "dynamic_memory_management"):
        _one_of(name, given[name], (True, False))
    for name, value in (("cpu_device", cpu_device), ("ideep", ideep)):
        _one_of(name, value, (True, False))
    for name in ("max_concurrent_distributed_ops", "num_threads_per_device"):
        _at_least_one(name, given[name])
    timeout = given["barrier_net_timeout_sec"]
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ParallelizeError(
            f"parallelize: barrier_net_timeout_sec must be a number of seconds > 0, but it is {timeout!r}"
        )
    if given["optimize_gradient_memory"] and given["dynamic_memory_management"]:
        raise ParallelizeError(
            "parallelize: take one of optimize_gradient_memory (activations stay) and dynamic_memory_management (all "
            "that is not needed any more goes), not both"
        )
    keep = given["blobs_to_keep"]
    listed = isinstance(keep, Sequence | None) and not isinstance(keep, str)
    if not listed or any(not isinstance(name, str) for name in keep or ()):
        raise ParallelizeError(f"parallelize: blobs_to_keep must be a list of names, but it is {keep!r}")
    if keep and not (given["optimize_gradient_memory"] or given["dynamic_memory_management"]):
        words = "parallelize: blobs_to_keep means nothing here: without a memory option all blobs are kept"
        warnings.warn(words, stacklevel=4)
    if given["combine_spatial_bn"] and not trains:
        raise ParallelizeError(
            "parallelize: combine_spatial_bn joins the statistics of training, but there is no optimizer_builder_fun "
            "or param_update_builder_fun"
        )
    if given["use_nccl"] is True and (cpu_device or ideep):
        raise ParallelizeError("parallelize: use_nccl=True needs GPUs; use_nccl='auto' takes it where it can")
    if given["shared_model"] and not (cpu_device or ideep):
        raise ParallelizeError("parallelize: shared_model needs processors (cpu_device=True): GPUs share no memory")
    contexts, prefixes = find_devices(devices, cpu_device, ideep)
    values = {**given, "blobs_to_keep": tuple(keep or ())}
    comm = meet(rendezvous)
    if given["use_nccl"] is True and comm is not None and comm.size > 1:
        words = "parallelize: use_nccl means nothing among ranks: ax.comm.init('nccl') is what takes NCCL there"
        warnings.warn(words, stacklevel=4)
    return Options(contexts, prefixes, NET_TYPES[net_type], comm, trains, **values)

