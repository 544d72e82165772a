"""The communicator of a process that is alone."""

from __future__ import annotations

import json
from typing import Any

import numpy

from ..context import cpu
from ..errors import CollectiveError
from .base import Array, Communicator, check_summable, to_json


class _Done:
    """The request of a collective that needs nobody else."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        return


class LocalCommunicator(Communicator):
    """One rank: sums and broadcasts leave arrays as they are."""

    name = "local"
    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def start_allreduce(self, array: Array, what: str) -> _Done:
        check_summable(array, f"allreduce of {what}")
        return _Done()

    def allreduce(self, array: Array) -> None:
        check_summable(array, "allreduce")

    def start_gather(self, array: numpy.ndarray[Any, Any], rows: numpy.ndarray[Any, Any], what: str) -> _Done:
        rows[0] = array
        return _Done()

    def broadcast(self, array: Array, root: int = 0) -> None:
        if root != 0:
            raise CollectiveError(f"broadcast: the root must be a rank, 0 alone here, but it is {root}")
        check_summable(array, "broadcast")

    def barrier(self) -> None:
        return

    def allgather_object(self, obj: object, what: str = "allgather_object") -> list[Any]:
        return [json.loads(to_json(obj, what))]

    def shared_segment(self, nbytes: int) -> numpy.ndarray[Any, Any]:
        segment: numpy.ndarray[Any, Any] = cpu().zeros((nbytes,), numpy.uint8, "state")
        return segment
