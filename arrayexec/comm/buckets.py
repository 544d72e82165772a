"""Gradient buckets: stretches of the gradients that are summed over the ranks while backward still runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from .. import context
from ..errors import CollectiveError, UnknownNameError, near_miss
from .base import Array, Communicator, Request, check_summable

MAX_BYTES = 8 << 20
PARTS = 4  # no bucket is larger than this part of all gradients,
LEAST_BYTES = 256 << 10  # unless that is less than this: then a meeting of the ranks costs more than it hides
FIRST_BYTES = 1 << 20  # the first bucket: the sooner it is full, the sooner ranks meet

_LARGE = 64 << 10  # bytes from which an array that lies alone is reduced where it is, not packed
_MAX_GAP = 256  # bytes that alignment may leave between neighbours in a segment


@dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``stop`` of one gradient."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """What one all-reduce carries: pieces of one type that lie in one place."""

    dtype: numpy.dtype[Any]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients in it."""
        return sum(piece.stop - piece.start for piece in self.pieces) * self.dtype.itemsize


Place = tuple[str, object, int]
"""``("segment", its number, stretch)``, ``("own", name, 0)`` or ``("packed", "", 0)``."""

_PACKED: Place = ("packed", "", 0)


def cut(
    gradients: Iterable[tuple[str, int, Any]], places: Mapping[str, Place] | None = None, max_bytes: int = MAX_BYTES
) -> tuple[Bucket, ...]:
    """Cut gradients, (name, nbytes, dtype) in the order in which backward finishes them, into buckets.

    A bucket has at most ``max_bytes`` and at most a quarter of all bytes (but 256 KiB where that is less), one
    type and one of ``places``; a larger gradient is spread over several. The first one is smaller. The cuts
    depend on the arguments alone, so they are the same on every rank.
    """
    items = [(name, nbytes, numpy.dtype(dtype)) for name, nbytes, dtype in gradients]
    limit = max(64, min(max_bytes, max(LEAST_BYTES, sum(nbytes for _, nbytes, _ in items) // PARTS)) // 64 * 64)
    buckets: list[tuple[numpy.dtype[Any], list[Piece]]] = []
    room, last = 0, None  # bytes that still fit into the last bucket; type and place of what it holds
    for name, nbytes, dtype in items:
        home = (dtype, (places or {}).get(name, _PACKED))
        if home != last or room < nbytes <= limit:
            room = 0
        start, size, last = 0, nbytes // dtype.itemsize, home
        while start < size:
            if room < dtype.itemsize:
                buckets.append((dtype, []))
                room = limit if len(buckets) > 1 else min(limit, max(FIRST_BYTES, nbytes))
            stop = min(size, start + room // dtype.itemsize)
            buckets[-1][1].append(Piece(name, start, stop))
            room -= (stop - start) * dtype.itemsize
            start = stop
    return tuple(Bucket(dtype, tuple(pieces)) for dtype, pieces in buckets)


class GradientBuckets:
    """Sums gradients over all ranks, bucket by bucket, as backward writes them.

    ``gradients``: the arrays by name, C-contiguous, in the order in which backward finishes them.
    ``segments``: flat arrays inside which they may lie; a stretch of neighbours there is reduced in place
    (with the gap that alignment left between them, so that must hold numbers). Others are reduced in
    place where they are large, else packed into host memory, as are all that the communicator does not take.
    Arrays of devices: not run on a card. ``transport``: ``float16`` or ``bfloat16``, in which float32 numbers travel
    between hosts.
    ``sharded``: in a shared segment each rank gets the sum of its `part` of each bucket alone. Making one is a
    collective call. Raises PlanMismatchError if ranks have other gradients, CollectiveError for arrays that
    cannot be summed in place and impossible options.
    """

    def __init__(
        self,
        comm: Communicator,
        gradients: Mapping[str, Array],
        segments: Sequence[Array] = (),
        max_in_flight: int = 16,
        max_bytes: int = MAX_BYTES,
        transport: str | None = None,
        sharded: bool = False,
    ) -> None:
        if transport not in (None, "float16", "bfloat16"):
            kinds = "None, 'float16' or 'bfloat16'"
            raise CollectiveError(f"GradientBuckets: transport must be {kinds}, but it is {transport!r}")
        if max_in_flight < 1:
            raise CollectiveError(f"GradientBuckets: max_in_flight must be at least 1, but it is {max_in_flight}")
        for name, array in gradients.items():
            if not array.flags.c_contiguous:
                raise CollectiveError(
                    f"GradientBuckets: gradient {name!r} must be C-contiguous to be summed over ranks, "
                    f"but it is {tuple(array.shape)} with strides {tuple(array.strides)}"
                )
        self._comm, self._gradients, self._max_in_flight = comm, dict(gradients), max_in_flight
        segments = [segment for segment in segments if comm.takes(segment)]
        places = _places(comm, gradients, segments)
        self.buckets = cut(((n, a.nbytes, a.dtype) for n, a in gradients.items()), places, max_bytes)
        """The buckets, in the order in which they are sent."""
        self._buffers = [_buffer(bucket, gradients, places, segments) for bucket in self.buckets]
        for i, (buffer, _) in enumerate(self._buffers):
            check_summable(buffer, f"GradientBuckets: bucket {i}")
        self._shared = any(comm.place(buffer) is not None for buffer, _ in self._buffers)
        self._transport, self._sharded, self._quiet = transport, sharded, False
        comm.agree(self.description(), "gradient buckets")
        self._buckets_of: dict[str, list[int]] = {name: [] for name in gradients}
        for i, bucket in enumerate(self.buckets):
            for name in {piece.name for piece in bucket.pieces}:
                self._buckets_of[name].append(i)
        self.events: list[tuple[float, str, int]] = []
        """(time.perf_counter(), 'start' or 'done', bucket) of the current step, else of the last one."""
        self._lock = threading.Lock()  # replicas on several devices finish their gradients in threads
        self._begin()

    def _begin(self) -> None:
        self._written: set[str] = set()
        self._earlier: set[str] = set()  # what was ready in no_sync()
        self._missing = [len({piece.name for piece in bucket.pieces}) for bucket in self.buckets]
        self._next = 0  # the bucket to start next
        self._flying: dict[int, Request] = {}

    def description(self) -> dict[str, object]:
        """What ranks must agree on: type and size of every gradient, and where the buckets are cut."""
        rows: dict[str, object] = {}
        for name, array in self._gradients.items():
            rows[f"gradient {name}"] = f"{array.dtype} {tuple(array.shape)}"
        for i, bucket in enumerate(self.buckets):
            place = self._comm.place(self._buffers[i][0])
            where = "" if place is None else f" in shared segment {place[0]} at {place[1]}"
            rows[f"bucket {i}"] = " ".join(f"{p.name}[{p.start}:{p.stop}]" for p in bucket.pieces) + where
        return rows | {"transport": self._transport, "sharded": self._sharded}

    def owned(self) -> Iterator[Piece]:
        """The stretches of gradients whose sums this rank has: all, or with ``sharded`` its parts of the buckets."""
        for bucket, (buffer, packed) in zip(self.buckets, self._buffers, strict=True):
            part = self._comm.part(buffer) if self._sharded and not packed else slice(0, buffer.size)
            for piece in bucket.pieces:
                if packed:
                    yield piece
                    continue
                shift = (_bounds(buffer)[0] - _bounds(self._gradients[piece.name])[0]) // bucket.dtype.itemsize
                start, stop = max(piece.start, part.start + shift), min(piece.stop, part.stop + shift)
                if start < stop:
                    yield Piece(piece.name, start, stop)

    def ready(self, name: str) -> None:
        """Say that gradient ``name`` is written; starts the buckets that are full now, in order.

        Raises UnknownNameError, and CollectiveError for a name that was ready before in this step.
        """
        with self._lock:
            self._check_name(name)
            if self._quiet:
                self._earlier.add(name)
                return
            if name in self._written:
                raise CollectiveError(
                    f"GradientBuckets: gradient {name!r} was written twice in one step, "
                    f"but gradient bucket {self._buckets_of[name][0]} may be on its way\n"
                    "  call finish() after every backward, or sum with grad_req='add' and reduce once"
                )
            self._mark(name)
            while self._next < len(self.buckets) and not self._missing[self._next]:
                self._start_next()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients that are ready stay here: for all but the last backward where several add up."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def finish(self, used: Collection[str] | None = None) -> list[str]:
        """Start what is not under way yet, wait until every gradient is the sum over all ranks.

        ``used``: the gradients that were written in this step, marked or not (None: those marked ready).
        All others count as zeros, and are filled with them. Returns the names that some rank used.
        Raises UnknownNameError, CollectiveTimeoutError and PeerFailure.
        """
        with self._lock:
            for name in used or ():
                self._check_name(name)
            mine = self._written | self._earlier | set(used or ())
            counts = numpy.array([name in mine for name in self._gradients], numpy.int32)
            for name, array in self._gradients.items():
                if name not in self._written:
                    if name not in mine:
                        with context.context_of(array).enter():
                            array.fill(0)
                    self._mark(name)
            while self._next < len(self.buckets):
                self._start_next()
            # Where ranks share memory, all have done their parts when all have come to this sum.
            counting = None if self._shared else self._comm.start_allreduce(counts, "used gradients")
            while self._flying:
                self._finish_first()
            (counting or self._comm.start_allreduce(counts, "used gradients")).wait()
            self._begin()
            return [name for name, count in zip(self._gradients, counts, strict=True) if count]

    def _check_name(self, name: str) -> None:
        if name not in self._gradients:
            raise UnknownNameError(f"GradientBuckets: no gradient is called {name!r}{near_miss(name, self._gradients)}")

    def _mark(self, name: str) -> None:
        if not self._written:
            self.events.clear()
        self._written.add(name)
        for i in self._buckets_of[name]:
            self._missing[i] -= 1

    def _start_next(self) -> None:
        i = self._next
        for j, request in list(self._flying.items()):  # also drives MPI, which has no thread of its own
            if request.test():
                self._done(j)
        while len(self._flying) >= self._max_in_flight:
            self._finish_first()
        for part, copy in self._packed(i):
            numpy.copyto(copy, context.asnumpy(part))
        self.events.append((time.perf_counter(), "start", i))
        self._next += 1
        self._flying[i] = self._comm.start_sum(
            self._buffers[i][0], f"gradient bucket {i}", self._transport, not self._sharded
        )

    def _finish_first(self) -> None:
        i = next(iter(self._flying))
        self._flying[i].wait()
        self._done(i)

    def _done(self, i: int) -> None:
        del self._flying[i]
        for part, copy in self._packed(i):
            context.copyto(part, copy)
        self.events.append((time.perf_counter(), "done", i))

    def _packed(self, i: int) -> Iterator[tuple[Array, Array]]:
        """Every piece of bucket ``i`` and its copy in the buffer; none where the pieces lie there themselves."""
        buffer, packed = self._buffers[i]
        start = 0
        for piece in self.buckets[i].pieces if packed else ():
            stop = start + piece.stop - piece.start
            yield self._gradients[piece.name].reshape(-1)[piece.start : piece.stop], buffer[start:stop]
            start = stop


def _bounds(array: Array) -> tuple[int, int]:
    start = context.context_of(array).device.address(array)
    return start, start + int(array.nbytes)


def _places(comm: Communicator, gradients: Mapping[str, Array], segments: Sequence[Array]) -> dict[str, Place]:
    """Where each gradient lies; only neighbours in one stretch of a segment share a bucket in place."""
    places: dict[str, Place] = {}
    stretch, last_end, last_home = 0, 0, -1
    for name, array in gradients.items():
        if not comm.takes(array):
            places[name] = _PACKED
            continue
        start, end = _bounds(array)
        spans = ((i, segment.dtype, *_bounds(segment)) for i, segment in enumerate(segments))
        home = next((i for i, kind, low, high in spans if kind == array.dtype and low <= start and end <= high), -1)
        if home < 0:
            places[name] = ("own", name, 0) if array.nbytes >= _LARGE else _PACKED
            continue
        if home != last_home or not 0 <= start - last_end <= _MAX_GAP:
            stretch += 1
        last_home, last_end = home, end
        places[name] = ("segment", home, stretch)
    return places


def _buffer(
    bucket: Bucket, gradients: Mapping[str, Array], places: Mapping[str, Place], segments: Sequence[Array]
) -> tuple[Array, bool]:
    """The flat array to reduce, and whether the pieces are packed into it (else they lie in it)."""
    first, last, width = bucket.pieces[0], bucket.pieces[-1], bucket.dtype.itemsize
    kind, home, _ = places[first.name]
    if kind == "packed":
        return numpy.empty(bucket.nbytes // width, bucket.dtype), True
    whole = (segments[home] if isinstance(home, int) else gradients[first.name]).reshape(-1)
    base = _bounds(whole)[0]
    start = (_bounds(gradients[first.name])[0] - base) // width + first.start
    stop = (_bounds(gradients[last.name])[0] - base) // width + last.stop
    return whole[start:stop], False
