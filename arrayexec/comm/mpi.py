"""Ranks of MPI. Every wait is a non-blocking request with a deadline."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

import numpy

from .. import context
from ..errors import BackendUnavailableError, CollectiveError, RendezvousError
from ..threads import cores, share_threads
from .base import FIRST_STEP_FACTOR, Array, Communicator, check_summable, host_buffer, named, to_json
from .guard import Guard, Operation
from .local import LocalCommunicator
from .siblings import leave_launcher, watched
from .stages import GATHER, Carrier, Host, Stage, Staged, between

_YIELD_FOR = 0.02  # seconds in which a waiting rank gives its core away, but does not sleep
_WATCH_EVERY = 0.05
PRETEND = "ARRAYEXEC_RANKS_PER_HOST"
"""Environment variable: take every so many ranks for a host of their own, to try on one machine what several do."""

Made = TypeVar("Made", bound="MPICommunicator")


def connect(launched: int, timeout: float, make: Callable[[Any, float], Made]) -> Made:
    """``make(MPI, timeout)``: a communicator over all ranks that were launched (0: the launcher did not say).

    Raises BackendUnavailableError without a usable mpi4py, RendezvousError where MPI sees other ranks
    than the launcher started.
    """
    with _ending_after(timeout * FIRST_STEP_FACTOR):
        try:
            with watched():
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but no MPI library
            raise BackendUnavailableError(
                f"comm.init: MPI cannot be used: {type(error).__name__}: {error}\n"
                '  install: pip install "arrayexec[mpi]"; on a cluster pip install mpi4py beside its own MPI'
            ) from error
        if launched > 1 and MPI.COMM_WORLD.Get_size() == 1:
            raise RendezvousError(
                f"comm.init: the launcher started {launched} processes, but MPI sees only this one: "
                "mpirun and the library that mpi4py loads belong to different MPIs\n"
                f"  library: {MPI.Get_library_version().splitlines()[0].strip()}\n"
                "  use the mpirun of that library"
            )
        return make(MPI, timeout)


@contextlib.contextmanager
def _ending_after(timeout: float) -> Iterator[None]:
    """End this process if what is inside, which cannot be interrupted, takes longer.

    MPI starts when all ranks start it; one that dies before leaves the others in there with the
    interpreter locked. Only faulthandler's own thread still runs then: it prints where the rank is.
    """
    try:
        faulthandler.dump_traceback_later(timeout, exit=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # stderr is no file
        yield
        return
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class _Link:
    """The letters of the guards: small point-to-point messages on a communicator of their own."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.threaded: bool = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self._sending: list[tuple[Any, bytes]] = []

    def post(self, rank: int, letter: Mapping[str, Any]) -> None:
        self._sending = [(request, data) for request, data in self._sending if not request.Test()]
        data = json.dumps(letter).encode()
        self._sending.append((self._comm.Isend([data, self._mpi.BYTE], dest=rank), data))

    def collect(self) -> list[tuple[int, dict[str, Any]]]:
        letters = []
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            data = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([data, self._mpi.BYTE])
            letters.append((status.Get_source(), json.loads(data)))
        return letters

    def begin_exit(self) -> Callable[[], bool]:
        test: Callable[[], bool] = self._comm.Ibarrier().Test
        return test

    def abort(self, code: int, host_lost: bool) -> NoReturn:
        if host_lost:
            leave_launcher(code)
        # MPICH leaves its shared memory behind when a job is aborted, some MiB each time
        with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
            for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
                os.unlink(path)
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)  # Abort does not come back


class MPIRequest:
    """A collective under way."""

    def __init__(
        self, owner: MPICommunicator, operation: Operation, handle: Any, finish: Callable[[], None] | None
    ) -> None:
        self._owner, self.operation, self._handle, self._finish = owner, operation, handle, finish

    def test(self) -> bool:
        if self._handle is None:
            return True
        if not self._owner.tested(self._handle, self.operation):
            return False
        self._handle = None
        self._owner.completed(self.operation)
        if self._finish is not None:
            self._finish()
        return True

    def wait(self) -> None:
        self._owner.wait(self)


class MPICommunicator(Communicator):
    """All ranks of an MPI job. Made by `connect`, the same on every rank."""

    name = "mpi"
    _guard: Guard

    def __init__(self, mpi: Any, timeout: float, whole: MPICommunicator | None = None, group: Any = None) -> None:
        super().__init__(timeout)
        self._mpi = mpi
        self._groups: list[MPICommunicator] = []
        world = group or mpi.COMM_WORLD
        self.rank = world.Get_rank()
        self.size = world.Get_size()
        self._agreed: set[tuple[str, str]] = set()
        self._windows: list[Any] = []  # never freed: a view kept by the user would crash the process
        self._rows: list[list[numpy.ndarray[Any, Any]]] = []  # of each window, the bytes of every rank of the host
        self._spans: list[tuple[int, int]] = []  # and where those of this rank begin and end
        self._host: Host | None = None  # found out with the first window
        self._staged: list[Staged] = []
        # Gradients, other arrays and control data travel apart: ranks that are in different collectives
        # wait for each other, which is seen, instead of adding up what does not belong together.
        copies = [world.Idup() for _ in range(6)]
        for _, request in copies:
            request.Wait()
        self._gradients, self._arrays, self._control, letters, scatter, gather = (comm for comm, _ in copies)
        self._all = self._carrier(scatter, gather)
        self._members = ""
        self._guard = Guard(_Link(mpi, letters), self._doing, lambda: self.limit, whole._guard if whole else None)
        if whole is not None:
            self._members = f"group of {named(world.group.Translate_ranks(None, mpi.COMM_WORLD.group))}"
            self._guard.install_in()
        elif self.size > 1:
            self._guard.install()
        pretended = f" {self.rank // int(os.environ[PRETEND])}" if os.environ.get(PRETEND) else ""
        self._hosts = hosts = self.allgather_object(socket.gethostname() + pretended)
        self._guard.hosts = hosts
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        self.local_size = hosts.count(hosts[self.rank])
        if self.local_size > 1 and whole is None:  # ranks share the cores: a larger product waits for itself
            share_threads(max(1, cores() // self.local_size))

    def _doing(self) -> str:
        """What the program is doing, and where these are some of the ranks, which."""
        return ", ".join(filter(None, (self.where, self._members)))

    def within(self, comm: Any) -> Communicator:
        """The ranks of an MPI communicator that holds some of these, or all; collective among them.

        A failure in it ends the whole job.
        """
        for made in (self, *self._groups):
            if self._mpi.Comm.Compare(comm, made._arrays) in (self._mpi.IDENT, self._mpi.CONGRUENT):
                return made
        if comm.Get_size() == 1:
            return LocalCommunicator()
        with _ending_after(self.limit):
            self._groups.append(self._group(comm))
        return self._groups[-1]

    def _group(self, comm: Any) -> MPICommunicator:
        return MPICommunicator(self._mpi, self._timeout, self, comm)

    def start_allreduce(self, array: Array, what: str) -> MPIRequest:
        return self._start(f"allreduce of {what}", array, self._gradients)

    def allreduce(self, array: Array) -> None:
        self._together("allreduce", array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        if not 0 <= root < self.size:
            ranks = f"0 to {self.size - 1}"
            raise CollectiveError(f"broadcast: the root must be a rank, {ranks}, but it is {root}")
        check_summable(array, "broadcast")
        self._together(f"broadcast from rank {root}", array, root)

    def _together(self, what: str, array: Array, root: int | None = None) -> None:
        """A whole collective. Types and shapes that are new are compared first: MPI adds up what does not fit."""
        check_summable(array, what)
        self._guard.check(what)
        kind = f"{array.dtype} {tuple(array.shape)}"
        if (what, kind) not in self._agreed:
            self.agree({"array": kind}, what)
            self._agreed.add((what, kind))
        self._start(what, array, self._arrays, root).wait()

    def _start(self, what: str, array: Array, comm: Any, root: int | None = None) -> MPIRequest:
        check_summable(array, what)
        operation = self._guard.enter(what, self._doing())
        handle, finish = self._begin(array, comm, root)
        return MPIRequest(self, operation, handle, finish)

    def _begin(self, array: Array, comm: Any, root: int | None) -> tuple[Any, Callable[[], None] | None]:
        """Start the sum over the ranks of ``comm``, or the copy of what ``root`` has, in place.

        Gives what has a ``Test()``, and what is left to do once that says True.
        """
        host = host_buffer(array)
        handle = comm.Iallreduce(self._mpi.IN_PLACE, host) if root is None else comm.Ibcast(host, root)
        return handle, None if host is array else lambda: context.context_of(array).from_host(host, array)

    def check(self, what: str) -> None:
        self._guard.look(what)

    def barrier(self) -> None:
        operation = self._guard.enter("barrier", self._doing())
        MPIRequest(self, operation, self._control.Ibarrier(), None).wait()

    def allgather_object(self, obj: object, what: str = "allgather_object") -> list[Any]:
        mine = to_json(obj, what)
        operation = self._guard.enter(what, self._doing())
        lengths = numpy.zeros(self.size, numpy.int64)
        own = numpy.array([len(mine)], numpy.int64)
        MPIRequest(self, operation, self._control.Iallgather(own, lengths), None).wait()
        data = bytearray(int(lengths.sum()))
        target = [data, lengths.tolist(), self._mpi.BYTE]
        MPIRequest(self, operation, self._control.Iallgatherv([mine, self._mpi.BYTE], target), None).wait()
        ends = [0, *lengths.cumsum().tolist()]
        return [json.loads(data[start:end]) for start, end in pairwise(ends)]

    def shared_segment(self, nbytes: int) -> numpy.ndarray[Any, Any]:
        rounded = -(-nbytes // 64) * 64
        needs = self.allgather_object([rounded, _shared_memory_room()])
        for host in dict.fromkeys(self._hosts):
            here = [need for need, name in zip(needs, self._hosts, strict=True) if name == host]
            wanted, rooms = zip(*here, strict=True)
            if sum(wanted) > min(rooms):
                raise BackendUnavailableError(
                    f"shared_segment: the {len(wanted)} ranks need {sum(wanted)} bytes of shared memory, "
                    f"but /dev/shm has {min(rooms)} left\n"
                    "  in a container give it more (docker run --shm-size), or use memory of each rank's own"
                )
        # Nothing here can wait in a non-blocking way; all ranks have just come together.
        if self._host is None:
            near = self._arrays.Split_type(self._mpi.COMM_TYPE_SHARED, key=self.rank)
            self._node = near.Split(self._hosts.index(self._hosts[self.rank]), self.rank)
        node = self._node
        window = self._mpi.Win.Allocate_shared(rounded + 64, 1, comm=node)
        self._windows.append(window)
        rows = (numpy.frombuffer(window.Shared_query(i)[0], numpy.uint8) for i in range(node.Get_size()))
        # To a rank that is alone on its host MPICH gives memory at any address.
        self._rows.append([row[-row.ctypes.data % 64 :][:rounded] for row in rows])
        own: numpy.ndarray[Any, Any] = self._rows[-1][node.Get_rank()]
        own.fill(0)  # takes the memory now, while there is room for it
        self._spans.append((own.ctypes.data, own.ctypes.data + rounded))
        if self._host is None:
            window.Lock_all(self._mpi.MODE_NOCHECK)  # without which there is no Sync
            self._host = self._meet(node, window.Sync)
        self.barrier()
        return own[:nbytes]

    def _meet(self, node: Any, sync: Callable[[], object]) -> Host:
        """Find the ranks of other hosts that will have the same part of a sum."""
        rank = node.Get_rank()
        sizes = self.allgather_object([rank, node.Get_size()])
        parts = min(size for _, size in sizes)
        fellows = self._arrays.Split(rank if rank < parts else self._mpi.UNDEFINED, self.rank)
        several = sum(first == 0 for first, _ in sizes) > 1 and fellows != self._mpi.COMM_NULL
        return Host(node, sync, self._carrier(fellows, fellows.Dup()) if several else None, parts)

    def _carrier(self, scatter: Any, gather: Any) -> Carrier:
        """Stages of one kind have a communicator of their own: requests enter each in their order, but not both."""
        start = scatter.Iallreduce
        ranks = scatter.Get_size()
        return Carrier(ranks, lambda array: start(self._mpi.IN_PLACE, array), scatter.Ialltoall, gather.Iallgather)

    def place(self, array: Array) -> tuple[int, int] | None:
        if isinstance(array, numpy.ndarray):
            address = array.__array_interface__["data"][0]
            for i, (start, end) in enumerate(self._spans):
                if start <= address <= end - array.nbytes:
                    return i, address - start
        return None

    def _everywhere(self, array: Array) -> list[numpy.ndarray[Any, Any]] | None:
        """What the ranks of the host have in the place of a flat ``array``; None unless it is in shared memory."""
        place = self.place(array)
        if place is None:
            return None
        return [row[place[1] : place[1] + array.nbytes].view(array.dtype) for row in self._rows[place[0]]]

    def part(self, array: Array) -> slice:
        return super().part(array) if self._host is None or self.place(array) is None else self._host.part(array)

    def spread(self, array: Array) -> None:
        for row in self._everywhere(array) or ():
            if row.ctypes.data != array.ctypes.data:
                numpy.copyto(row, array.reshape(-1))

    def start_sum(
        self, array: Array, what: str, transport: str | None = None, whole: bool = True
    ) -> MPIRequest | Staged:
        rows = self._everywhere(array)
        stages: Iterator[Stage]
        if rows is not None and self._host is not None:
            stages = self._host.sum(rows, transport, whole)
        elif transport is None:
            return self.start_allreduce(array, what)
        else:
            stages = between(self._all, array, transport)
        return Staged(self._staged, self, self._guard.enter(f"allreduce of {what}", self._doing()), stages)

    def start_gather(self, array: numpy.ndarray[Any, Any], rows: numpy.ndarray[Any, Any], what: str) -> Staged:
        stages: Iterator[Stage] = iter([(GATHER, lambda: self._all.gather(array, rows))])
        return Staged(self._staged, self, self._guard.enter(f"gathering of {what}", self._doing()), stages)

    def completed(self, operation: Operation) -> None:
        """Told by the requests."""
        if not operation.what.startswith("broadcast"):  # whose root does not wait for anybody
            self._guard.completed(operation)

    def tested(self, handle: Any, operation: Operation) -> bool:
        """Whether the MPI request of ``operation`` is complete; CollectiveError where MPI refuses it."""
        try:
            return bool(handle.Test())
        except self._mpi.Exception as error:
            self._guard.fail(
                CollectiveError(
                    f"rank {self.rank}: MPI failed in {operation}: {error}\n"
                    "  most often the ranks gave arrays of different sizes"
                )
            )

    def wait(self, request: MPIRequest | Staged) -> None:
        """Wait for a request of this communicator, up to the deadline."""
        if request.test():
            return
        begin = now = time.monotonic()
        next_watch = begin + _WATCH_EVERY
        pause = 50e-6
        try:
            while not request.test():
                now = time.monotonic()
                if now - begin < _YIELD_FOR:
                    # Where ranks outnumber cores this is 10 to 100 times faster than spinning or sleeping.
                    os.sched_yield()
                    continue
                if now > next_watch:
                    self._guard.watch(request.operation, now - begin, self.limit)
                    next_watch = now + _WATCH_EVERY
                time.sleep(pause)
                pause = min(1.5 * pause, 1e-3)
        finally:
            self.seconds += time.monotonic() - begin


def _shared_memory_room() -> int:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize
