"""Files of states under ranks: one writes, one reads, all know how it went."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy

from ..comm import Communicator
from ..errors import CheckpointError
from ..train.state_files import load_states, save_states

Path = str | os.PathLike[str]


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
    held: list[Any] = []

    def read() -> int:
        held.extend((load_states(path), _bytes(path)))
        return int(held[1].size)

    size = by_rank_0(comm, read, "reading a file of states")
    raw = held[1] if held else numpy.empty(size, numpy.uint8)
    comm.broadcast(raw)
    if held:
        return held[0]
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        raw.tofile(copy)
        return load_states(copy)


def _bytes(path: Path) -> numpy.ndarray[Any, Any]:
    return numpy.fromfile(path, numpy.uint8)
