"""Files of states under ranks: one writes, one reads, all know how it went."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy

from ..comm import Communicator
from ..errors import CheckpointError
from ..train.state_files import from_bytes, load_states, save_states

Path = str | os.PathLike[str]

_PATIENCE = 10  # a disk may take longer than a sum: so many times the deadline


def by_rank_0(comm: Communicator | None, call: Callable[[], Any], what: str) -> Any:
    """What ``call`` gives on rank 0, on all ranks (as JSON carries it); collective.

    Where it fails its exception is raised there, and CheckpointError with the same words on all others.
    """
    if comm is None or comm.size == 1:
        return call()
    found, error = None, None
    if comm.rank == 0:
        try:
            found = call()
        except Exception as caught:
            error = caught
    with comm.deadline(_PATIENCE * comm.limit):
        told = comm.allgather_object([found, None if error is None else str(error)], what)[0]
    if error is not None:
        raise error
    if told[1] is not None:
        raise CheckpointError(f"{what}, on rank 0: {told[1]}")
    return told[0]


def save_together(comm: Communicator | None, path: Path, states: Any) -> None:
    """Write states on rank 0 (see `save_states`), and return on every rank when they are on the disk; collective."""
    by_rank_0(comm, lambda: save_states(path, states), "writing a file of states")


def load_together(comm: Communicator | None, path: Path) -> Any:
    """What `load_states` reads on rank 0, on all ranks, whatever disks they see; collective."""
    if comm is None or comm.size == 1:
        return load_states(path)
    where = os.fspath(path)
    found: list[Any] = []

    def read() -> int:
        raw = numpy.fromfile(where, numpy.uint8)
        found.extend((raw, from_bytes(raw.data, where)))
        return raw.size

    size = by_rank_0(comm, read, "reading a file of states")
    raw = found[0] if found else numpy.empty(size, numpy.uint8)
    comm.broadcast(raw)
    return found[1] if found else from_bytes(raw.data, where)


def gather_bytes(comm: Communicator | None, mine: bytes) -> list[memoryview]:
    """The bytes of every rank, by rank, on all ranks; collective."""
    if comm is None or comm.size == 1:
        return [memoryview(mine)]
    sizes = comm.allgather_object(len(mine), "gathering states")
    rows = numpy.zeros((comm.size, max(sizes)), numpy.uint8)
    own = numpy.zeros(max(sizes), numpy.uint8)
    own[: len(mine)] = numpy.frombuffer(mine, numpy.uint8)
    comm.start_gather(own, rows, "states").wait()
    return [row[:size].data for row, size in zip(rows, sizes, strict=True)]
