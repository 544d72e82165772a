"""As many batches on every rank, though ranks have different numbers of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from ..comm import Communicator
from ..comm.base import named
from ..errors import ArgumentError, CollectiveError, message, near_miss
from ..train.io import DataBatch

UNEVEN = ("error", "join", "drop")


def ranks_with_batch(comm: Communicator, own: bool, uneven: str, rows: int = 0) -> tuple[int, int]:
    """How many ranks have a batch, this one among them or not, and the rows of all; 0 where ``drop`` ends all."""
    counts = np.array([own, rows], np.int64)
    comm.allreduce(counts)
    having, total = counts.tolist()
    return 0 if having < comm.size and uneven == "drop" else having, total


class EvenBatches:
    """The batches of an iterator, as many on every rank, though the ranks have different numbers of them.

    ``uneven``: where a rank has no batch left, ``error`` raises on all ranks, ``drop`` ends the epoch on all ranks, and
    with ``join`` that rank goes on with batches in which no row counts until the last rank is done. The global rows of
    a batch (``global_rows``) are those that the ranks have in fact. Everything else is asked of the iterator. One small
    sum over the ranks a batch. Raises ArgumentError; CollectiveError says how many batches each rank had.
    """

    def __init__(self, batches: Iterable[DataBatch], comm: Communicator, uneven: str = "error") -> None:
        if uneven not in UNEVEN:
            hint = near_miss(str(uneven), UNEVEN)
            raise ArgumentError(f"uneven must be one of {', '.join(UNEVEN)}, but it is {uneven!r}{hint}")
        self._batches, self._comm, self._uneven = batches, comm, uneven
        if uneven != "error":
            self.num_batches = None  # ranks need not have the same

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __iter__(self) -> Iterator[DataBatch]:
        batches, given = iter(self._batches), 0
        last: Any = None
        while True:
            batch = next(batches, None)
            own = batch.valid if batch is not None else 0
            having, rows = ranks_with_batch(self._comm, batch is not None, self._uneven, own)
            if not having:
                return
            if having < self._comm.size and (self._uneven == "error" or last is None):
                self._refuse(given + (batch is not None))
            last, pad = (batch, batch.pad) if batch is not None else (last, last.rows)
            given += 1
            yield DataBatch(
                last.data, last.label, pad, last.index, last.bucket_key, last.provide_data, last.provide_label,
                last.first_row, rows,
            )  # fmt: skip

    def _refuse(self, count: int) -> NoReturn:
        counts = self._comm.allgather_object(count, "numbers of batches")
        ended = [rank for rank, number in enumerate(counts) if number < max(counts)]
        verb = "has" if len(ended) == 1 else "have"
        hint = "give every rank as many, or say uneven='drop', or uneven='join' where every rank has one at least"
        rows = [(f"rank {rank}", str(number)) for rank, number in enumerate(counts)]
        fact = f"{named(ended)} {verb} no batch number {max(counts)}"
        raise CollectiveError(message(fact, rows, "batches so far", hint))
