"""Stores of parameters by key: what is pushed is summed over devices and ranks, what is pulled is copied from there.

The face of MXNet's KVStore on the sums of `arrayexec.comm`; there are no servers: with an optimizer every rank makes
the same update from the same sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from ..comm import Communicator, default_timeout, init
from ..comm.local import LocalCommunicator
from ..comm.nccl import DeviceGroup, join
from ..context import Context, add_to, asnumpy, context_of, copyto, cpu
from ..errors import ArgumentError, ContextError, NotBoundError, ShapeError, UnknownNameError, near_miss
from ..executor import note_write
from ..parallel.gradient_sync import describe_updater
from ..train.optimizer import Optimizer, Updater, get_updater
from .rank_files import load_together, save_together
from .two_bit import TwoBit

Array = Any
Key = int | str

_TYPES = {
    "local": "local", "local_update_cpu": "local", "local_allreduce_cpu": "local", "device": "device",
    "local_allreduce_device": "device", "nccl": "nccl", "dist": "dist_sync", "dist_sync": "dist_sync",
    "mpi": "dist_sync", "dist_device_sync": "dist_device_sync", "dist_sync_device": "dist_device_sync",
    "dist_device": "dist_device_sync",
}  # fmt: skip
_ELSEWHERE = ("dist_async", "dist_device_async", "dist_async_device", "p3store_dist", "horovod", "byteps")
_TRANSPORTS = {"fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16"}


def create(name: str = "local", comm: Communicator | None = None) -> KVStore:
    """A store of a type: ``local`` sums in host memory, ``device`` on the devices, ``nccl`` through NCCL alone.

    ``dist_sync`` (or ``mpi``) and ``dist_device_sync`` also sum over the ranks of ``comm`` (else of `comm.init`).
    Raises ArgumentError for other types, and what ``comm.init`` raises.
    """
    kind = _TYPES.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        written = name if isinstance(name, str) else ""
        near = near_miss(written, _TYPES, shown=0)
        if written.lower() in _ELSEWHERE:
            near = ": there are no servers and no asynchronous updates; 'dist_sync' sums over the ranks of MPI"
        known = "local, device, nccl, dist_sync, dist_device_sync or mpi"
        raise ArgumentError(f"kvstore: the type must be {known}, but it is {name!r}{near}")
    comm = (comm or init()) if kind.startswith("dist") else LocalCommunicator(default_timeout())
    return KVStore(kind, comm, name.lower())


@dataclasses.dataclass
class _Entry:
    """What a store has of one key."""

    stored: Array
    merged: Array
    """The sum of what was pushed last."""
    residuals: list[Array]
    request: Any = None
    """The sum over ranks under way."""
    packed: tuple[Any, Any] | None = None
    """Where gradients travel in two bits, those of this rank and of all."""


class KVStore:
    """Values by key; made by `create`. ``priority`` is accepted everywhere: sums go in the order of the calls.

    With ranks, `init`, `push` and the calls without a key are collective: all ranks make them in the same order. A push
    returns when its sum is under way; the next call about its key waits, up to the deadline of ``comm``.
    """

    def __init__(self, kind: str, comm: Communicator, name: str) -> None:
        self._kind, self._comm, self._name = kind, comm, name
        self._entries: dict[Key, _Entry] = {}
        self._updater: Callable[[Key, Array, Array], object] | None = None
        self._two_bit: TwoBit | None = None
        self._transport: str | None = None
        self._groups: dict[tuple[Context, ...], DeviceGroup | None] = {}

    @property
    def type(self) -> str:
        """The type as it was given to `create`."""
        return self._name

    @property
    def rank(self) -> int:
        """The number of this rank; 0 in stores of one process."""
        return self._comm.rank

    @property
    def num_workers(self) -> int:
        """How many ranks there are; 1 in stores of one process."""
        return self._comm.size

    @property
    def comm(self) -> Communicator:
        """The ranks of this store; one alone in stores of one process."""
        return self._comm

    @property
    def two_bit(self) -> TwoBit | None:
        """What rounds gradients to two bits, if `set_gradient_compression` has said so."""
        return self._two_bit

    @property
    def transport(self) -> str | None:
        """The 16-bit type in which gradients travel between hosts, if `set_gradient_compression` has said so."""
        return self._transport

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether stores can do something; MXNet asks for ``optimizer`` alone."""
        return capability.lower() == "optimizer"

    def barrier(self) -> None:
        """Return when all pushes are done and every rank has come here."""
        for key in self._entries:
            self._settle(key)
        self._wait()
        self._comm.barrier()

    _barrier = barrier

    # --- values --------------------------------------------------------------------------------------------------

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Give keys their first values, once; with ranks all get those of rank 0.

        Raises ArgumentError for a key that has one already, and for texts and numbers mixed.
        """
        for one, array in _pairs("init", key, value):
            first = array[0] if isinstance(array, (list, tuple)) else array
            _check_array("init", one, first)
            if one in self._entries:
                raise ArgumentError(f"kvstore: key {one!r} must be new, but it was given to init before")
            other = next(iter(self._entries), one)
            if isinstance(other, str) != isinstance(one, str):
                raise ArgumentError(f"kvstore: keys must be all texts or all numbers, but there are {other!r}, {one!r}")
            context = context_of(first) if "device" in self._kind or self._kind == "nccl" else cpu()
            shape = tuple(first.shape)
            stored, merged = (context.empty(shape, first.dtype, role) for role in ("parameter", "gradient"))
            copyto(stored, first)
            if self._comm.size > 1:
                self._comm.agree({"type": self._kind, repr(one): f"{stored.dtype} {stored.shape}"}, "the kvstore")
                self._comm.broadcast(stored)
            self._entries[one] = _Entry(stored, merged, [])

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sum a value, or one a device in a list, over devices (in their order) and ranks.

        The sum takes the place of what is stored, or is given to the updater as ``updater(key, sum, stored)``. Several
        values for one key in a list of keys are summed. Raises UnknownNameError for a key without init, ShapeError.
        """
        pushed: dict[Key, list[Array]] = {}
        for one, values in _pairs("push", key, value):
            entry, arrays = self._entry("push", one), _listed(values)
            for array in arrays:
                _check_shape("push", one, array, entry.stored)
            pushed.setdefault(one, []).extend(arrays)
        for one, arrays in pushed.items():
            self._settle(one)
            self._start(one, self._entries[one], arrays)

    def pull(
        self, key: Key | Sequence[Key], out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copy what is stored into ``out``, an array or one a device in a list.

        Raises UnknownNameError for a key without init, ShapeError.
        """
        if out is None:
            raise ArgumentError("kvstore: pull must be given out, the array that the value goes to")
        for one, targets in _pairs("pull", key, out):
            entry, arrays = self._entry("pull", one), _listed(targets)
            for array in arrays:
                _check_shape("pull", one, array, entry.stored)
            self._settle(one)
            self._copy(entry.stored, arrays)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into ``out``, or where that is not given into what was pushed."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Key | Sequence[Key], value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(
        self, key: Key | Sequence[Key], out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """`pull` of the rows ``row_ids`` alone (an array, or one for each out); all other rows become zeros.

        Arrays are dense. Raises ArgumentError without row_ids and for rows that are not there.
        """
        if out is None or row_ids is None:
            raise ArgumentError("kvstore: row_sparse_pull must be given out and row_ids")
        for one, targets in _pairs("row_sparse_pull", key, out):
            arrays, entry = _listed(targets), self._entry("row_sparse_pull", one)
            chosen = row_ids if isinstance(row_ids, (list, tuple)) else [row_ids] * len(arrays)
            for array, rows in zip(arrays, chosen, strict=True):
                _check_shape("row_sparse_pull", one, array, entry.stored)
                places = asnumpy(rows).astype(numpy.int64).reshape(-1)
                if places.size and not 0 <= places.min() <= places.max() < entry.stored.shape[0]:
                    there = f"{places.min()} to {places.max()}"
                    raise ArgumentError(f"kvstore: row_ids must be 0 to {entry.stored.shape[0] - 1}, but are {there}")
                self._settle(one)
                kept = numpy.zeros(entry.stored.shape, entry.stored.dtype)
                kept[places] = asnumpy(entry.stored)[places]
                copyto(array, kept)
                note_write(array, "row_sparse_pull")

    # --- updates -------------------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Key, Array, Array], object]) -> None:
        """Let every sum go to ``updater(key, sum, stored)``, which changes what is stored in place."""
        self._updater = updater

    _set_updater = set_updater

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update what is stored by an optimizer, on every rank alike; collective.

        Raises PlanMismatchError where ranks have other options.
        """
        if self._comm.size > 1:
            self._comm.agree(describe_updater(optimizer), "the optimizer")
        self.set_updater(get_updater(optimizer))

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Let gradients travel in fewer bits: ``{'type': '2bit', 'threshold': 0.5}``, or type ``fp16`` or ``bf16``.

        Two bits stand for 0 and ± threshold; what they leave out is added to the next gradient. ``device`` sends what
        each device pushes so, stores with ranks what each rank sends. 16 bits are for ranks alone. Must stand before
        the first push. Raises ArgumentError.
        """
        options = dict(compression_params)
        kind, threshold = options.pop("type", None), options.pop("threshold", 0.5)
        ranks = self._kind.startswith("dist")
        known = ["2bit", *_TRANSPORTS] if ranks else ["2bit"] if self._kind == "device" else []
        if options:
            odd = next(iter(options))
            near = near_miss(odd, ("type", "threshold"))
            raise ArgumentError(f"kvstore: gradient compression has no option {odd!r}{near}")
        if not known:
            raise ArgumentError(f"kvstore: {self._kind!r} does not compress gradients; 'device' and 'dist_sync' do")
        if kind not in known:
            types = ", ".join(known)
            raise ArgumentError(f"kvstore: gradients of {self._kind!r} can be compressed by {types}, but not {kind!r}")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold < numpy.inf:
            raise ArgumentError(f"kvstore: the threshold of gradient compression must be > 0, but it is {threshold!r}")
        self._two_bit = TwoBit(float(threshold)) if kind == "2bit" else None
        self._transport = _TRANSPORTS.get(str(kind))
        if self._comm.size > 1:
            self._comm.agree({"type": kind, "threshold": threshold}, "gradient compression")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the state of the optimizer, counts included; with ranks rank 0 does, and all wait for it.

        ``dump_optimizer`` adds its simple options (learning rate, …). Raises NotBoundError without an optimizer.
        """
        states = self._states("save_optimizer_states").get_states()
        if dump_optimizer:
            states["options"] = _options(self._states("save_optimizer_states").optimizer)
        save_together(self._comm, fname, states)

    def load_optimizer_states(self, fname: str) -> None:
        """Go on from such a file; with ranks rank 0 reads it for all.

        Raises NotBoundError without an optimizer, CheckpointError, OSError.
        """
        updater = self._states("load_optimizer_states")
        states = load_together(self._comm, fname)
        updater.set_states(states)
        known = _options(updater.optimizer)
        for name, value in states.get("options", {}).items():
            if name in known:
                setattr(updater.optimizer, name, value)

    def _states(self, call: str) -> Updater:
        if not isinstance(self._updater, Updater):
            raise NotBoundError(f"kvstore: {call} needs an optimizer: call set_optimizer first")
        for key in self._entries:
            self._settle(key)
        return self._updater

    # --- sums ----------------------------------------------------------------------------------------------------

    def _entry(self, call: str, key: Key) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            near = near_miss(key, map(str, self._entries)) if isinstance(key, str) else ""
            raise UnknownNameError(f"kvstore: {call}: key {key!r} was not given to init{near}")
        return entry

    def _start(self, key: Key, entry: _Entry, arrays: Sequence[Array]) -> None:
        """Sum over the devices, and start the sum over ranks."""
        if not self._kind.startswith("dist"):
            self._add_up(arrays if self._two_bit is None else self._sent(self._two_bit, arrays, entry), entry.merged)
            self._finish(key, entry)
            return
        self._add_up(arrays, entry.merged)
        what = f"key {key!r}"
        if self._two_bit is None:
            entry.request = self._comm.start_sum(entry.merged.reshape(-1), what, self._transport)
            return
        (sent,) = self._sent(self._two_bit, [asnumpy(entry.merged)], entry)
        packed = self._two_bit.pack(sent)
        entry.packed = packed, numpy.empty((self._comm.size, packed.size), numpy.uint8)
        entry.request = self._comm.start_gather(packed, entry.packed[1], what)

    @staticmethod
    def _sent(two_bit: TwoBit, arrays: Sequence[Array], entry: _Entry) -> list[Array]:
        """What is sent of arrays, one a device; the rest is kept."""
        for array in arrays[len(entry.residuals) :]:
            entry.residuals.append(context_of(array).zeros(tuple(array.shape), _wide(array.dtype), "gradient"))
        sent = []
        for array, residual in zip(arrays, entry.residuals, strict=False):
            sent.append(context_of(array).empty(tuple(array.shape), residual.dtype, "gradient"))
            two_bit.send(array, residual, sent[-1])
        return sent

    def _add_up(self, arrays: Sequence[Array], total: Array) -> None:
        """Write the sum of ``arrays``, in their order, into ``total``."""
        group = self._group(arrays)
        if group is not None:
            parts = []
            for array in arrays:
                context = context_of(array)
                parts.append(context.empty(tuple(array.shape), array.dtype, "gradient"))
                context.copy(parts[-1], array)
            group.allreduce(parts)
            copyto(total, parts[0])
            return
        copyto(total, arrays[0])
        for array in arrays[1:]:
            add_to(total, array)

    def _group(self, arrays: Sequence[Array]) -> DeviceGroup | None:
        """The devices of arrays in NCCL, where it is to sum them."""
        if "local" in self._kind or self._kind == "dist_sync" or len(arrays) < 2:
            return None
        contexts = tuple(map(context_of, arrays))
        if contexts not in self._groups:
            self._groups[contexts] = join(contexts, True if self._kind == "nccl" else "auto")
        return self._groups[contexts]

    def _settle(self, key: Key) -> None:
        """Wait for the sum over ranks under way, and use it."""
        entry = self._entries[key]
        if entry.request is None:
            return
        entry.request.wait()
        entry.request = None
        if entry.packed is not None and self._two_bit is not None:
            (_, rows), entry.packed = entry.packed, None
            total = self._two_bit.unpack(rows[0], entry.merged.size).astype(_wide(entry.merged.dtype), copy=True)
            for row in rows[1:]:
                total += self._two_bit.unpack(row, total.size)
            copyto(entry.merged, total.reshape(entry.merged.shape))
        self._finish(key, entry)

    def _finish(self, key: Key, entry: _Entry) -> None:
        if self._updater is None:
            copyto(entry.stored, entry.merged)
        else:
            self._updater(key, entry.merged, entry.stored)

    def _wait(self) -> None:
        """Wait for the devices, up to the deadline."""
        for group in self._groups.values():
            if group is not None:
                group.wait(self._comm.limit)

    def _copy(self, stored: Array, arrays: Sequence[Array]) -> None:
        if any(isinstance(array, numpy.ndarray) for array in arrays):
            self._wait()  # else a device that hangs would be waited for without end
        for array in arrays:
            if array is not stored:
                copyto(array, stored)
            note_write(array, "a pull")


def _wide(dtype: Any) -> numpy.dtype[Any]:
    """The type in which what was not sent is kept."""
    return numpy.dtype(numpy.float32) if numpy.dtype(dtype).itemsize < 4 else numpy.dtype(dtype)


def _options(optimizer: Optimizer) -> dict[str, object]:
    """The simple options of an optimizer, without what counts its steps."""
    found = describe_updater(optimizer)
    return {name: value for name, value in found.items() if not name.startswith("_") and name != "num_update"}


def _listed(values: Any) -> list[Array]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _pairs(call: str, key: Any, value: Any) -> list[tuple[Key, Any]]:
    """Keys and what belongs to each: to one key all; to a list of keys one each, which may be a list of arrays."""
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    for one in keys:
        if isinstance(one, bool) or not isinstance(one, (int, str, numpy.integer)):
            raise ArgumentError(f"kvstore: {call}: a key must be a text or a number, but it is {one!r}")
    values = _listed(value) if isinstance(key, (list, tuple)) else [value]
    if len(values) != len(keys):
        raise ArgumentError(f"kvstore: {call}: {len(keys)} keys need as many values, but there are {len(values)}")
    for one, given in zip(keys, values, strict=True):
        if isinstance(given, (list, tuple)) and not given:
            raise ArgumentError(f"kvstore: {call}: key {one!r} needs an array or several, but the list is empty")
    return list(zip(keys, values, strict=True))


def _check_array(call: str, key: Key, array: Any) -> None:
    try:
        context_of(array)
    except ContextError as error:
        what = f"an array, or a list of one a device, but it is a {type(array).__name__}"
        raise ArgumentError(f"kvstore: {call}: the value for key {key!r} must be {what}") from error


def _check_shape(call: str, key: Key, array: Any, stored: Array) -> None:
    _check_array(call, key, array)
    if tuple(array.shape) != tuple(stored.shape):
        shapes = f"{tuple(stored.shape)}, but it has {tuple(array.shape)}"
        raise ShapeError(f"kvstore: {call}: the array for key {key!r} must have the shape {shapes}")
