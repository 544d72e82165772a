"""Sums over ranks in stages: in memory that the ranks of a host share, then between hosts.

Each rank of a host adds its part of what all of them have written, in the order of the ranks, right where it lies.
Ranks with the same part on several hosts then sum it among themselves, and each copies the result to its whole host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from .guard import Operation

Flat = numpy.ndarray[Any, Any]

_BLOCK = 128 << 10  # bytes of each rank that are added at once: they stay in the cache until the sum is copied
_LINE = 64  # bytes; no two ranks write into one line

OPEN, SCATTER, GATHER, DONE = range(1, 5)
"""The stages of a request: a later one enters a stage after all earlier ones, as each has its own communicator."""

Stage = tuple[int, Callable[[], Any]]
"""Number of a stage, and what begins it: the result has ``Test()``."""


class Carrier(NamedTuple):
    """What sums arrays over the ranks of an MPI communicator; each starts, and its result has ``Test()``."""

    ranks: int
    sum: Callable[[Flat], Any]
    scatter: Callable[[Flat, Flat], Any]
    gather: Callable[[Flat, Flat], Any]


class Staged:
    """A sum under way. ``stages`` yields each stage after the work that the one before it allowed."""

    def __init__(self, queue: list[Staged], owner: Any, operation: Operation, stages: Iterator[Stage]) -> None:
        self._queue, self._owner, self.operation, self._stages = queue, owner, operation, stages
        self._entered = 0
        self._handle: Any = None
        self._next: Stage | None = next(stages)
        queue.append(self)
        self.test()

    def test(self) -> bool:
        """Whether it is complete; moves all requests of the queue as far as they get."""
        bound = DONE
        for request in list(self._queue):
            bound = request._move(bound)
        return self._entered == DONE

    def wait(self) -> None:
        """Return when it is complete."""
        self._owner.wait(self)

    def _move(self, bound: int) -> int:
        """Enter stages up to ``bound``; the one that this request is in then."""
        while self._handle is None or self._owner.tested(self._handle, self.operation):
            if self._handle is not None:
                self._handle, self._next = None, next(self._stages, None)
            if self._next is None:
                self._entered = DONE
                self._queue.remove(self)
                self._owner.completed(self.operation)
                break
            stage, begin = self._next
            if stage > bound:
                break
            self._entered, self._handle = stage, begin()
        return self._entered


class Host:
    """The ranks of one host, and those of other hosts that have the same part as this one.

    ``node``: the MPI communicator of the host. ``sync`` orders what is written in shared memory before and after it.
    ``carrier``: of this rank and its fellows on other hosts; none where there is one host. ``parts``: into how many
    parts a sum is cut, the same on every host.
    """

    def __init__(self, node: Any, sync: Callable[[], object], carrier: Carrier | None, parts: int) -> None:
        self._node, self._sync, self._carrier, self._parts = node, sync, carrier, parts
        self._rank: int = node.Get_rank()

    def part(self, array: Flat) -> slice:
        """The elements of a flat array that this rank sums; the ranks of a host have all of them between them."""
        unit = max(1, _LINE // array.itemsize)
        size = -(-array.size // (self._parts * unit)) * unit
        return slice(min(array.size, self._rank * size), min(array.size, (self._rank + 1) * size))

    def sum(self, rows: Sequence[Flat], transport: str | None, whole: bool) -> Iterator[Stage]:
        """Stages of the sum of ``rows``, the flat arrays of the ranks of this host.

        Complete when this rank has done its part: it is in all ``rows`` then, or unless ``whole`` in its own alone.
        """
        self._sync()
        yield OPEN, self._node.Ibarrier
        self._sync()
        part = self.part(rows[0])
        mine = [row[part] for row in rows]
        targets = mine[1:] if whole else mine[self._rank : self._rank + 1] if self._rank else []
        if self._carrier is None or not mine[0].size:
            add_up(mine, targets)
        else:
            add_up(mine, ())
            yield from between(self._carrier, mine[0], transport)
            for target in targets:
                numpy.copyto(target, mine[0])
        self._sync()


def add_up(rows: Sequence[Flat], targets: Sequence[Flat]) -> None:
    """Add all ``rows``, in their order, into the first one, and copy that to ``targets``."""
    total = rows[0]
    length = _BLOCK // total.itemsize
    for start in range(0, total.size, length):
        piece = slice(start, start + length)
        for row in rows[1:]:
            numpy.add(total[piece], row[piece], out=total[piece])
        for target in targets:
            numpy.copyto(target[piece], total[piece])


def between(carrier: Carrier, array: Flat, transport: str | None) -> Iterator[Stage]:
    """Stages of the sum of ``array`` over the ranks of ``carrier``.

    With ``transport`` float32 numbers travel in 16 bits, but are summed in 32: each rank sums one stretch of all
    ranks in their order. Others are left to MPI.
    """
    if transport is None or array.dtype != numpy.float32:
        yield SCATTER, lambda: carrier.sum(array)
        return
    sent = numpy.zeros((carrier.ranks, -(-array.size // carrier.ranks)), numpy.uint16)
    sent.reshape(-1)[: array.size] = narrow(array, transport)
    found = numpy.empty_like(sent)
    yield SCATTER, lambda: carrier.scatter(sent, found)
    total = widen(found[0], transport)
    for row in found[1:]:
        total += widen(row, transport)
    mine = narrow(total, transport)
    yield GATHER, lambda: carrier.gather(mine, sent)
    numpy.copyto(array, widen(sent.reshape(-1)[: array.size], transport))


def narrow(array: Flat, kind: str) -> Flat:
    """The bits of float32 numbers rounded to ``float16`` or ``bfloat16``; what is too large becomes infinite."""
    if kind == "float16":
        with numpy.errstate(over="ignore"):
            return array.astype(numpy.float16).view(numpy.uint16)
    bits = array.view(numpy.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(numpy.uint16)
    rounded[numpy.isnan(array)] = 0x7FC0
    return rounded


def widen(bits: Flat, kind: str) -> Flat:
    """The float32 numbers of such bits."""
    if kind == "float16":
        return bits.view(numpy.float16).astype(numpy.float32)
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)
