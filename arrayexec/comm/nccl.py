"""Arrays of GPUs among ranks, and among the devices of one process, through NCCL. Not run on a card yet.

Ranks meet over MPI: agreement, deadlines, barriers and arrays of the host are those of `MPICommunicator`. Sums and
copies of GPU arrays are launched on a stream of their own, one a device. Its collectives come after what was queued
on the context's stream before them, what is queued there once they are complete comes after them, and a computation
in between goes on beside them. NCCL knows neither types nor lifetimes nor deadlines: that is looked after here.

This file and `context` alone import CuPy, when a GPU array is first met.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy

from .. import context
from ..context import Context
from ..errors import BackendUnavailableError, CollectiveError, CollectiveTimeoutError, message
from .base import Array, check_summable
from .mpi import MPICommunicator, MPIRequest, connect
from .stages import Staged

# Read by NCCL when its first communicator is made; what the user has set stays. Rings without NVLink reductions give
# the same bits from run to run; peers that connect at once cannot keep a later launch waiting.
_SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0"}

_ABORT_SECONDS = 2.0  # NCCL waits for its kernels when it aborts; the job ends whether it comes back or not

_SAYS = "\n  what NCCL itself says about it: run again with NCCL_DEBUG=WARN"
_INSTALL = "install: pip install nvidia-nccl-cu12 for the CuPy of CUDA 12, nvidia-nccl-cu13 for that of CUDA 13"


def connect_nccl(launched: int, timeout: float, required: bool) -> NCCLCommunicator:
    """The communicator over all ranks whose GPU arrays NCCL carries; collective.

    Where NCCL cannot, they are staged through pinned host memory, unless it is ``required``: then
    BackendUnavailableError on all ranks, with the reason of each. Raises what `mpi.connect` raises.
    """
    made = connect(launched, timeout, lambda mpi, seconds: NCCLCommunicator(mpi, seconds, required))
    if required:
        made.check_all(made.allgather_object(why_not(), "search for NCCL"))
    return made


def why_not() -> str:
    """Why this process cannot use NCCL; an empty text where it can."""
    if not context.num_gpus():
        try:
            context.gpu(0).synchronize()
        except BackendUnavailableError as error:
            return str(error).partition("\n")[0].partition(": ")[2]
    return "" if _nccl().available else "CuPy finds no NCCL library"


@functools.cache
def _nccl() -> Any:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without the library CuPy warns, and says so in `available`, too
        from cupy.cuda import nccl
    return nccl


def _current_stream() -> Any:
    from cupy import cuda

    return cuda.get_current_stream()


def _element(kind: numpy.dtype[Any]) -> tuple[int | None, int]:
    """NCCL's number for a type (None: it has none) and how many of those an element is: two if it is complex."""
    name = f"NCCL_FLOAT{4 * kind.itemsize}" if kind.kind == "c" else f"NCCL_{kind.name.upper()}"
    return getattr(_nccl(), name, None), 2 if kind.kind == "c" else 1


class _Channel:
    """One device in an NCCL communicator: its side of it, and the stream on which its collectives run."""

    def __init__(self, where: Context, comm: Any, fail: Callable[[CollectiveError], NoReturn]) -> None:
        self.where, self.comm, self._fail = where, comm, fail
        self._aborted = False
        self._flying: list[_Flight] = []
        with where.enter():
            from cupy import cuda

            self.stream = cuda.Stream(non_blocking=True)

    def queue(self, array: Array, root: int | None) -> None:
        """Tell NCCL to sum ``array`` over all devices, or to replace it by that of device ``root``."""
        nccl, pointer = _nccl(), self.where.device.address(array)
        if root is None:
            number, parts = _element(array.dtype)
            self.comm.allReduce(pointer, pointer, array.size * parts, number, nccl.NCCL_SUM, self.stream.ptr)
        else:
            self.comm.broadcast(pointer, pointer, array.nbytes, nccl.NCCL_UINT8, root, self.stream.ptr)

    def follow(self) -> None:
        """What is launched next comes after what is queued on the context's stream now."""
        with self.where.enter():
            self.stream.wait_event(_current_stream().record())

    def launched(self, what: str, array: Array) -> _Flight:
        """Remember a collective until it is done: its memory must not be given to anybody else before."""
        self._flying.append(_Flight(self, what, array))
        return self._flying[-1]

    def idle(self) -> bool:
        """Whether all that was launched is done."""
        while self._flying and self._flying[0].Test():
            del self._flying[0]
        return not self._flying

    def check(self, what: str) -> None:
        """Ask NCCL whether anything has failed since; never waits."""
        if self._aborted:  # then collectives end without having done anything
            self._fail(CollectiveError(f"NCCL was ended on {self.where} after a failure, in the middle of {what}"))
        try:
            self.comm.check_async_error()
        except _nccl().NcclError as error:
            self.failed(what, error)

    def failed(self, what: str, error: Exception) -> NoReturn:
        """Raise an error of NCCL's as one of ours."""
        self._fail(CollectiveError(f"NCCL failed in {what} on {self.where}: {error}{_SAYS}"))

    def abort(self) -> None:
        """End what runs; nothing can be launched after that."""
        if not self._aborted:
            self._aborted = True
            _Aside(self.comm.abort).join(_ABORT_SECONDS)


class _Flight:
    """A collective under way on one device. MPI's requests are asked by ``Test``, so is this."""

    def __init__(self, channel: _Channel, what: str, array: Array) -> None:
        self._channel, self._what, self._array = channel, what, array
        with channel.where.enter():
            self._done = channel.stream.record()

    def Test(self) -> bool:
        if self._array is not None:
            self._channel.check(self._what)
            if not self._done.done:
                return False
            self._array = None
        return True

    def settle(self) -> None:
        """What is queued on the context's stream from now on comes after the collective."""
        with self._channel.where.enter():
            _current_stream().wait_event(self._done)


class _Aside:
    """A call that may never come back, in a thread that may be left behind."""

    def __init__(self, call: Callable[[], object], fail: Callable[[Exception], object] = lambda error: None) -> None:
        self._call, self._fail = call, fail
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.join = self._thread.join

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:
            self._error = error

    def Test(self) -> bool:
        if self._thread.is_alive():
            return False
        if self._error is not None:
            self._fail(self._error)
        return True


def _launch(channels: Sequence[_Channel], arrays: Sequence[Array], what: str, root: int | None) -> list[_Flight]:
    """One collective among devices, those of this process in one group: else the first would wait for the second."""
    nccl = _nccl()
    for channel in channels:
        channel.idle()
        channel.follow()
    try:
        nccl.groupStart()
        try:
            for channel, array in zip(channels, arrays, strict=True):
                channel.queue(array, root)
        finally:
            nccl.groupEnd()
    except nccl.NcclError as error:
        channels[0].failed(what, error)
    return [channel.launched(what, array) for channel, array in zip(channels, arrays, strict=True)]


class NCCLCommunicator(MPICommunicator):
    """Ranks of MPI whose GPU arrays NCCL carries where it can. Made by `comm.init`.

    A device takes part from its first collective on, in which all ranks agree on whether NCCL can serve: where one
    of them has no NCCL, or two have the same GPU, and for types that NCCL does not sum, arrays go through pinned
    host memory and MPI, each rank its own device's.
    """

    def __init__(
        self, mpi: Any, timeout: float, required: bool, whole: NCCLCommunicator | None = None, group: Any = None
    ) -> None:
        self._required = required
        self._channels: dict[Context, _Channel | None] = {}
        self.why_staged = ""
        """Why GPU arrays go through host memory; empty while NCCL carries them."""
        super().__init__(mpi, timeout, whole, group)
        if required:
            self.name = "nccl"

    def _group(self, comm: Any) -> NCCLCommunicator:
        return NCCLCommunicator(self._mpi, self._timeout, self._required, self, comm)

    def check_all(self, reasons: Sequence[str]) -> None:
        """Keep, or raise as BackendUnavailableError where NCCL is required, why it cannot serve; reasons by rank."""
        if any(reasons):
            rows = [(f"rank {rank}", reason or "can use it") for rank, reason in enumerate(reasons)]
            fact = f"NCCL cannot carry arrays of GPUs among the ranks: {next(filter(None, reasons))}"
            hint = "each rank needs NCCL and a GPU of its own, gpu(comm.local_rank) where each sees those of its host"
            hint += f"\n  {_INSTALL}\n  or backend='mpi': through host memory, as without any backend named"
            self.why_staged = message(fact, rows, "ranks", hint)
            if self._required:
                raise BackendUnavailableError(self.why_staged)

    def check(self, what: str) -> None:
        super().check(what)
        for channel in self._channels.values():
            if channel is not None:
                channel.idle()

    def _abort_all(self) -> None:
        for channel in self._channels.values():
            if channel is not None:
                channel.abort()

    def _fail(self, error: CollectiveError) -> NoReturn:
        self._abort_all()
        self._guard.fail(error)

    def takes(self, array: Array) -> bool:
        return super().takes(array) or context.context_of(array).device_type == "gpu"

    def part(self, array: Array) -> slice:
        return super().part(array) if isinstance(array, numpy.ndarray) else slice(0, array.size)

    def start_sum(
        self, array: Array, what: str, transport: str | None = None, whole: bool = True
    ) -> MPIRequest | Staged:
        """As among ranks of MPI; arrays of GPUs travel in their own type."""
        if isinstance(array, numpy.ndarray):
            return super().start_sum(array, what, transport, whole)
        return self.start_allreduce(array, what)

    def wait(self, request: Any) -> None:
        try:
            super().wait(request)
        except CollectiveError:
            self._abort_all()
            raise

    def _start(self, what: str, array: Array, comm: Any, root: int | None = None) -> MPIRequest:
        check_summable(array, what)
        self._guard.check(what)
        if self.takes(array) and not isinstance(array, numpy.ndarray):
            where = context.context_of(array)
            if where not in self._channels:
                self._channels[where] = self._open(where)
            if self._channels[where] is not None:
                what += " on GPUs"  # a rank that has its array on the host is in another collective
        return super()._start(what, array, comm, root)

    def _open(self, where: Context) -> _Channel | None:
        """Meet all ranks in a communicator of NCCL, each with a device; None where NCCL cannot serve; collective."""
        mine = {"why": why_not(), "device": f"GPU {_bus(where)} of {socket.gethostname()}", "id": ""}
        if self.rank == 0 and not mine["why"]:
            try:
                mine["id"] = _nccl().get_unique_id().hex()
            except _nccl().NcclError as error:
                mine["why"] = f"NCCL gives no id to meet by: {error}"
        ranks = self.allgather_object(mine, "meeting in NCCL")
        devices = [rank["device"] for rank in ranks]
        shared = [f"{device} is used by several ranks" if devices.count(device) > 1 else "" for device in devices]
        reasons = [rank["why"] or text for rank, text in zip(ranks, shared, strict=True)]
        self.check_all(reasons)
        if any(reasons):
            return None
        made: list[_Channel] = []

        def meet() -> None:
            with where.enter():
                comm = _nccl().NcclCommunicator(self.size, bytes.fromhex(ranks[0]["id"]), self.rank)
                made.append(_Channel(where, comm, self._fail))

        def fail(error: Exception) -> NoReturn:
            self._guard.fail(CollectiveError(f"NCCL failed when the ranks met on {where}: {error}{_SAYS}"))

        operation = self._guard.enter("meeting in NCCL", self.where)
        MPIRequest(self, operation, _Aside(meet, fail), None).wait()
        return made[0]

    def _begin(self, array: Array, comm: Any, root: int | None) -> tuple[Any, Callable[[], None] | None]:
        if isinstance(array, numpy.ndarray):
            return super()._begin(array, comm, root)
        where = context.context_of(array)
        channel = self._channels.get(where)
        if channel is None or array.size == 0 or (root is None and _element(array.dtype)[0] is None):
            handle, _ = super()._begin(host := _staged(array, where), comm, root)
            return handle, lambda: where.from_host(host, array)
        with where.enter():
            flat = array if array.flags.c_contiguous else where.xp.ascontiguousarray(array)
        what = "an allreduce" if root is None else "a broadcast"
        (flight,) = _launch([channel], [flat], what, root)

        def finish() -> None:
            flight.settle()
            if flat is not array:
                where.copy(array, flat)

        return flight, finish


def _bus(where: Context) -> str:
    from cupy import cuda

    return str(cuda.Device(where.device_id).pci_bus_id)


def _staged(array: Array, where: Context) -> numpy.ndarray[Any, Any]:
    """A copy of a device array in pinned host memory; waits for what was queued before it."""
    if where.device_type != "gpu":
        return numpy.ascontiguousarray(context.asnumpy(array))
    from cupy import asnumpy, cuda

    memory = cuda.alloc_pinned_memory(max(1, array.nbytes))
    host = numpy.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    with where.enter():
        asnumpy(array, out=host)
    return host


def join(contexts: Sequence[Context], use_nccl: bool | str) -> DeviceGroup | None:
    """The group for an option that is True, False or ``auto``: where NCCL can serve. None for less than two devices."""
    if not use_nccl or len(contexts) < 2:
        return None
    if use_nccl == "auto" and ({where.device_type for where in contexts} != {"gpu"} or why_not()):
        return None
    return DeviceGroup(contexts)


class DeviceGroup:
    """The GPUs of this process as one NCCL communicator: a sum or a copy over all of them is one grouped call.

    Nothing here makes the host wait but `wait`: each collective comes after what is queued on the contexts' streams
    before it, and before what is queued there next. Raises BackendUnavailableError where NCCL cannot be used and
    CollectiveError for contexts that are no different GPUs.
    """

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.contexts = tuple(contexts)
        names = ", ".join(map(str, contexts))
        if not contexts or len(set(contexts)) < len(contexts) or {c.device_type for c in contexts} != {"gpu"}:
            raise CollectiveError(f"DeviceGroup: NCCL needs different GPUs, but the contexts are {names or 'none'}")
        for where in contexts:
            where.synchronize()  # opens it, or says why it cannot be used
        if not _nccl().available:
            raise BackendUnavailableError(f"DeviceGroup: CuPy finds no NCCL library for {names}\n  {_INSTALL}")
        try:
            made = _nccl().NcclCommunicator.initAll([where.device_id for where in contexts])
        except _nccl().NcclError as error:
            raise CollectiveError(f"DeviceGroup: NCCL failed to join {names}: {error}{_SAYS}") from error
        self._failure: CollectiveError | None = None
        self._channels = [_Channel(where, comm, self._fail) for where, comm in zip(contexts, made, strict=True)]

    def allreduce(self, arrays: Sequence[Array]) -> None:
        """Replace each array, one a context, by the sum of all."""
        self._collect(arrays, "allreduce", None)

    def broadcast(self, arrays: Sequence[Array], root: int = 0) -> None:
        """Replace each array, one a context, by that of context number ``root``."""
        if not 0 <= root < len(self.contexts):
            raise CollectiveError(
                f"DeviceGroup: the root must be one of {len(self.contexts)} contexts, from 0 on, but it is {root}"
            )
        self._collect(arrays, "broadcast", root)

    def wait(self, timeout: float = 300.0) -> None:
        """Return when all collectives are done; raises CollectiveTimeoutError after ``timeout`` seconds."""
        limit = time.monotonic() + timeout
        while late := [channel for channel in self._channels if not channel.idle()]:
            if time.monotonic() > limit:
                names = ", ".join(str(channel.where) for channel in late)
                self._fail(
                    CollectiveTimeoutError(f"DeviceGroup: the collectives of {names} did not end in {timeout:g} s")
                )
            time.sleep(50e-6)

    def _fail(self, error: CollectiveError) -> NoReturn:
        self._failure = error
        for channel in self._channels:
            channel.abort()
        raise error

    def _collect(self, arrays: Sequence[Array], what: str, root: int | None) -> None:
        if self._failure is not None:
            first = str(self._failure).partition("\n")[0]
            raise CollectiveError(f"DeviceGroup: no {what} can follow what failed: {first}") from self._failure
        self._check(arrays, f"DeviceGroup.{what}", root)
        for flight in _launch(self._channels, arrays, f"{what} of a group of devices", root):
            flight.settle()

    def _check(self, arrays: Sequence[Array], what: str, root: int | None) -> None:
        if len(arrays) != len(self.contexts):
            counts = f"{len(self.contexts)} arrays, one a context, but there are {len(arrays)}"
            raise CollectiveError(f"{what}: there must be {counts}")
        first = f"{arrays[0].dtype} {tuple(arrays[0].shape)}"
        for array, where in zip(arrays, self.contexts, strict=True):
            check_summable(array, what)
            found = f"{array.dtype} {tuple(array.shape)}"
            if not where.owns(array):
                there = context.context_of(array)
                raise CollectiveError(f"{what}: the array for {where} must lie there, but is on {there}")
            if found != first:
                raise CollectiveError(f"{what}: the arrays must be alike, but there are {first} and {found} on {where}")
            if not array.flags.c_contiguous:
                raise CollectiveError(f"{what}: the array on {where}, {found}, must be C-contiguous")
        if root is None and _element(arrays[0].dtype)[0] is None:
            raise CollectiveError(f"{what}: NCCL has no sum of {arrays[0].dtype}")
