"""CuPy and NCCL as far as `arrayexec.comm.nccl` sees them, on the strict device of the tests.

`install` puts a ``cupy`` into ``sys.modules`` whose GPUs are strict devices (late, poisoned, watching for races) and
whose ``cupy.cuda.nccl`` has the signatures of CuPy 14 (``tests/gpu/test_nccl_names.py`` compares them with the wheel).
It takes addresses, as NCCL does, and carries the numbers among ranks by MPI and within a process by itself:

* a collective starts when the device comes to it, has poison in its array meanwhile, and is complete when all came;
* memory that is given back before that is a `LifetimeError`;
* calls of one communicator that do not fit on all ranks, calls for several devices of a process outside a group,
  unknown types, foreign streams and memory are failures of the test;
* `Faults` makes it fail, be stuck, or report an error later.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayexec import context
from tests.strict_device import Storage, Stream, StrictArray, StrictDevice


class LifetimeError(RuntimeError):
    """Memory was given back while NCCL worked in it."""


@dataclass
class Faults:
    """What is to go wrong."""

    stuck: bool = False
    """Collectives do not end on this rank."""
    late_error: bool = False
    """They do not, and ``check_async_error`` says so."""
    refused_launch: bool = False
    refused_meeting: bool = False
    stuck_meeting: bool = False
    refused_id: bool = False


faults = Faults()
log: list[tuple[Any, ...]] = []
pinned: list[tuple[int, int]] = []
buses = {0: "0000:01:00.0", 1: "0000:02:00.0", 2: "0000:03:00.0", 3: "0000:04:00.0"}

_TYPES = {
    name: np.dtype(name)
    for name in "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64".split()
}
_NUMBERS = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8}
_SUM = 0

_here = threading.local()
_lock = threading.RLock()


def _device() -> FakeGpu:
    return getattr(_here, "stack", [None])[-1] or context.gpu(0).device  # type: ignore[return-value]


# Memory and streams


class Wait:
    """An entry of a device's queue that is over when collectives are complete."""

    def __init__(self, pending: list[Collective]) -> None:
        self._pending = pending

    def over(self) -> bool:
        return all(collective.complete() for collective in self._pending)

    def __call__(self) -> None:
        return


class FakeGpu(StrictDevice):
    """``gpu(i)``: a strict device that knows its memory by address and is the current one inside ``enter``."""

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        self.name = self.stream.name = f"gpu({device_id})"
        self.number = device_id
        self.memory: list[tuple[int, int, weakref.ref[Storage], np.ndarray]] = []
        self.flights: list[tuple[int, int, Stream, int]] = []

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        stack = _here.__dict__.setdefault("stack", [None])
        stack.append(self)
        try:
            with super().enter():
                yield
        finally:
            stack.pop()

    def _allocate(self, nbytes: int, zero: bool) -> StrictArray:
        return self._known(super()._allocate(nbytes, zero))

    def adopt(self, values: np.ndarray, name: str) -> StrictArray:
        return self._known(super().adopt(values, name))

    def _known(self, array: StrictArray) -> StrictArray:
        start = self.address(array)
        self.memory.append((start, start + array.nbytes, weakref.ref(array._storage), array._values.reshape(-1)))
        return array

    def at(self, pointer: int, count: int, dtype: np.dtype) -> tuple[StrictArray, weakref.ref[Storage]]:
        """The array that begins at an address."""
        for start, stop, storage, values in self.memory:
            owner = storage()
            if start <= pointer and pointer + count * dtype.itemsize <= stop and owner is not None:
                data = values.view(np.uint8)[pointer - start :][: count * dtype.itemsize].view(dtype)
                return StrictArray(self, data, owner), storage
        raise AssertionError(f"{count} numbers {dtype} at {pointer:#x} are no memory of {self.name}")

    def submit(self, work: Callable[[], object], reads: list[StrictArray], writes: list[StrictArray], what: str) -> None:
        for array in (*reads, *writes):
            self._check_flights(array, what)
        super().submit(work, reads, writes, what)

    def _check_flights(self, array: StrictArray, what: str) -> None:
        if array.size:
            low, high = np.lib.array_utils.byte_bounds(array._values)
            for start, stop, stream, position in self.flights:
                if low < stop and start < high:
                    self._check_order(self.current_stream, stream, position, what)

    def launch(self, work: Callable[[], object], array: StrictArray, stream: Stream, what: str) -> None:
        """Queue a collective: it works in its own stretch of a segment alone, what lies beside it may be used."""
        with self._lock, self.use(stream):
            storage = array._storage
            self._check_flights(array, what)
            for other, position in (*storage.read.items(), *([storage.written] if storage.written else [])):
                self._check_order(stream, other, position, what)
            stream.position += 1
            self.flights.append((*np.lib.array_utils.byte_bounds(array._values), stream, stream.position))
            self._queue.append((work, what))

    def progress(self) -> bool:
        """Run what can run; whether nothing is left."""
        with self._lock:
            while self._queue:
                work, where = self._queue[0]
                if isinstance(work, Wait) and not work.over():
                    return False
                del self._queue[0]
                try:
                    with np.errstate(all="ignore"):
                        work()
                except Exception as error:
                    error.add_note(where)
                    raise
            return True

    def run(self) -> None:
        until = time.monotonic() + 30
        while not self.progress():
            for device in _devices():
                device.progress()
            assert time.monotonic() < until, f"{self.name} would wait forever"
            time.sleep(1e-4)
        super().run()


def _devices() -> list[FakeGpu]:
    return [device for device in context._devices.values() if isinstance(device, FakeGpu)]


_streams: dict[int, FakeStream] = {}
_known_streams: weakref.WeakKeyDictionary[Stream, FakeStream] = weakref.WeakKeyDictionary()


class FakeStream:
    """``cupy.cuda.Stream``."""

    _numbers = itertools.count(1)

    def __init__(self, null: bool = False, non_blocking: bool = False, *, of: Stream | None = None) -> None:
        assert of is not None or non_blocking, "a stream that blocks waits for the default stream"
        self.device = _device()
        self.strict = of or Stream(f"{self.device.name} NCCL")
        self.collectives: list[Collective] = []
        self.ptr = next(self._numbers)
        _streams[self.ptr] = self

    def record(self, event: None = None) -> FakeEvent:
        assert _device() is self.device, "an event is made on the current device, and must be of the stream's"
        return FakeEvent(self)

    def wait_event(self, event: FakeEvent) -> None:
        with self.device._lock:
            self.strict.wait(event.strict)
            self.device._queue.append((Wait(event.pending), "wait_event"))


class FakeEvent:
    """``cupy.cuda.Event``."""

    def __init__(self, stream: FakeStream) -> None:
        self.strict, self.pending = stream.strict.record(), list(stream.collectives)

    @property
    def done(self) -> bool:
        for device in _devices():
            device.progress()
        return all(collective.complete() for collective in self.pending)


def get_current_stream() -> FakeStream:
    with _lock:
        strict = _device().current_stream
        if strict not in _known_streams:
            _known_streams[strict] = FakeStream(of=strict)
        return _known_streams[strict]


def alloc_pinned_memory(size: int) -> np.ndarray:
    memory = np.empty(size, np.uint8)
    pinned.append((memory.ctypes.data, size))
    return memory


def asnumpy(a: StrictArray, stream: None = None, order: str = "C", out: np.ndarray | None = None, *, blocking: bool = True) -> np.ndarray:
    assert out is not None
    assert any(start <= out.ctypes.data < start + size for start, size in pinned), "not into pinned memory"
    log.append(("to pinned memory", a.nbytes))
    out[...] = a.device.to_host(a)
    return out


# NCCL


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        names = {1: "UNHANDLED_CUDA_ERROR: unhandled cuda error", 2: "SYSTEM_ERROR: unhandled system error", 6: "REMOTE_ERROR: remote process exited or there was a network error"}
        super().__init__(f"NCCL_ERROR_{names[status]}")
        self.status = status


class Collective:
    """One call on all devices of a communicator, as the devices of this process see it."""

    def __init__(self, comm: NcclCommunicator, what: tuple[str, int, str, int]) -> None:
        self.what, self._mpi, self._expected = what, comm._mpi, len(comm._mates)
        self.parts: list[tuple[StrictArray, weakref.ref[Storage], np.ndarray]] = []
        self._steps = self._carry()
        self._over = False

    def arrive(self, array: StrictArray, storage: weakref.ref[Storage]) -> None:
        self.parts.append((array, storage, array._values.copy()))
        array._values.view(np.uint8).fill(0xFF)

    def complete(self) -> bool:
        with _lock:
            if not self._over and len(self.parts) == self._expected and not (faults.stuck or faults.late_error):
                self._over = next(self._steps, True)
            return self._over

    def _carry(self) -> Iterator[bool]:
        """Yields False until it is done."""
        _name, count, _, root = self.what
        given = [values for _, _, values in self.parts]
        if self._mpi is not None:
            from mpi4py import MPI

            mine = np.frombuffer(repr(self.what).ljust(80).encode(), np.uint8).copy()
            heads = np.empty((self._mpi.Get_size(), mine.size), np.uint8)
            yield from _until(self._mpi.Iallgather(mine, heads))
            said = [bytes(head).decode().strip() for head in heads]
            if len(set(said)) > 1:
                raise AssertionError(f"ranks are in different calls of NCCL: {said}")
            result = given[0]
            yield from _until(self._mpi.Iallreduce(MPI.IN_PLACE, result) if root < 0 else self._mpi.Ibcast(result, root))
        elif root < 0:
            result = np.sum(given, axis=0, dtype=given[0].dtype)
        else:
            result = given[root]
        assert result.size == count
        for array, storage, _ in self.parts:
            if storage() is None:
                raise LifetimeError(f"the memory of {self.what} was given back too early")
            array._values[...] = result


def _until(request: Any) -> Iterator[bool]:
    while not request.Test():
        yield False


@dataclass
class Call:
    """A call inside a group."""

    comm: NcclCommunicator
    what: tuple[str, int, str, int]
    array: StrictArray
    storage: weakref.ref[Storage]
    stream: FakeStream


class NcclCommunicator:
    """``cupy.cuda.nccl.NcclCommunicator``: one device among all."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: None = None) -> None:
        assert isinstance(commId, bytes)
        assert len(commId) == 128
        if faults.refused_meeting:
            raise NcclError(2)
        while faults.stuck_meeting:
            time.sleep(0.01)
        self._mpi = None
        if ndev > 1:
            from mpi4py import MPI

            self._mpi = MPI.COMM_WORLD.Dup()
            assert (self._mpi.Get_size(), self._mpi.Get_rank()) == (ndev, rank)
            assert len(set(self._mpi.allgather(commId))) == 1, "ranks have different ids"
            used = self._mpi.allgather(buses[_device().number])
            assert len(set(used)) == ndev, "Duplicate GPU"
        self._set(_device(), [self], rank)
        log.append(("meet", ndev, rank, self._device.number))

    def _set(self, device: FakeGpu, mates: list[NcclCommunicator], rank: int) -> None:
        self._device, self._mates, self._rank, self._alive = device, mates, rank, True

    @staticmethod
    def initAll(devices: list[int] | int) -> list[NcclCommunicator]:
        assert isinstance(devices, list)
        if faults.refused_meeting:
            raise NcclError(2)
        log.append(("meet all", *devices))
        made = [NcclCommunicator.__new__(NcclCommunicator) for _ in devices]
        for rank, (comm, number) in enumerate(zip(made, devices, strict=True)):
            comm._mpi = None
            comm._set(context.gpu(number).device, made, rank)  # type: ignore[arg-type]
        return made

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        assert op == _SUM
        self._call("allReduce", sendbuf, recvbuf, count, datatype, -1, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._call("broadcast", sendbuff, recvbuff, count, datatype, root, stream)

    def check_async_error(self) -> None:
        self._check_alive()
        if faults.late_error:
            raise NcclError(6)

    def abort(self) -> None:
        log.append(("abort", self._device.number))
        self._alive = False

    def _check_alive(self) -> None:
        assert self._alive, "a communicator was used after its abort"

    def _call(self, name: str, source: int, target: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._check_alive()
        if faults.refused_launch:
            raise NcclError(1)
        numbers = (source, target, count, datatype, root, stream)
        assert all(type(number) is int for number in numbers), numbers
        assert source == target, "here everything is in place"
        assert count > 0
        kind = next(_TYPES[key] for key, number in _NUMBERS.items() if number == datatype)
        of = _streams[stream]
        assert of.device is self._device, "the stream is of another device"
        assert of.strict not in (of.device.stream, of.device.default_stream), "not on a stream of its own"
        array, storage = self._device.at(target, count, kind)
        group = _here.__dict__.get("group")
        call = Call(self, (name, count, str(kind), root), array, storage, of)
        if group is not None:
            group.append(call)
        else:
            assert len(self._mates) == 1, "calls for several devices of one process must be grouped"
            _launch_all([call])


def _launch_all(calls: list[Call]) -> None:
    made: dict[int, Collective] = {}
    for call in calls:
        mates = id(call.comm._mates)
        if mates not in made:
            made[mates] = Collective(call.comm, call.what)
        collective = made[mates]
        assert collective.what == call.what, "the devices of a group are in different calls"
        call.stream.collectives.append(collective)
        _submit(call, collective)
        log.append((*call.what[:3], call.comm._device.number))


def _submit(call: Call, collective: Collective) -> None:
    array, storage = call.array, call.storage
    values = StrictArray(array.device, array._values, Storage())  # holds nobody's memory alive

    def work() -> None:
        if storage() is None:
            raise LifetimeError(f"the memory of {call.what} was given back before it began")
        collective.arrive(values, storage)

    array.device.launch(work, array, call.stream.strict, call.what[0])


def groupStart() -> None:
    assert _here.__dict__.get("group") is None
    _here.group = []


def groupEnd() -> None:
    calls, _here.group = _here.group, None
    mates = {id(call.comm._mates): len(call.comm._mates) for call in calls}
    for number, expected in mates.items():
        found = sum(id(call.comm._mates) == number for call in calls)
        assert found == expected, f"a group has calls for {found} of {expected} devices"
    _launch_all(calls)


def get_unique_id() -> bytes:
    if faults.refused_id:
        raise NcclError(2)
    return bytes(range(128))


def install(gpus: int = 1, available: bool = True) -> Callable[[], None]:
    """Put the fake into ``sys.modules``, and its devices behind ``gpu(i)``; gives what takes them out again."""
    nccl = types.ModuleType("cupy.cuda.nccl")
    vars(nccl)["available"] = available
    if available:
        vars(nccl).update(
            {f"NCCL_{name.upper()}": number for name, number in _NUMBERS.items()},
            NCCL_SUM=_SUM, NcclError=NcclError, NcclCommunicator=NcclCommunicator, get_unique_id=get_unique_id,
            groupStart=groupStart, groupEnd=groupEnd,
        )  # fmt: skip
    cuda = types.ModuleType("cupy.cuda")
    vars(cuda).update(
        nccl=nccl, Stream=FakeStream, Event=FakeEvent, get_current_stream=get_current_stream,
        alloc_pinned_memory=alloc_pinned_memory, runtime=types.SimpleNamespace(getDeviceCount=lambda: gpus),
        Device=OpenDevice,
    )  # fmt: skip
    cupy = types.ModuleType("cupy")
    vars(cupy).update(cuda=cuda, asnumpy=asnumpy, ones=np.ones, ndarray=StrictArray)
    cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    modules = {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
    former = {name: sys.modules.get(name) for name in modules}
    factory, devices = context._factories["gpu"], dict(context._devices)
    sys.modules.update(modules)
    context._factories["gpu"] = FakeGpu
    vars(sys.modules[__name__])["faults"] = Faults()
    log.clear()
    forget()

    def remove() -> None:
        context._factories["gpu"] = factory
        context._devices.clear()
        context._devices.update(devices)
        for name, module in former.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        forget()

    return remove


def forget() -> None:
    """What the engine has found out about CuPy."""
    from arrayexec.comm import nccl

    nccl._nccl.cache_clear()
    context._probe_gpus.cache_clear()


class OpenDevice:
    """``cupy.cuda.Device``."""

    def __init__(self, device: int) -> None:
        self.pci_bus_id = buses[device]

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


def filled(where: context.Context, number: float, size: int) -> Any:
    """An array of float32 on a device, ``size`` times the number."""
    array = where.empty((size,), np.dtype(np.float32), "gradient")
    where.from_host(np.full(size, number, np.float32), array)
    return array
