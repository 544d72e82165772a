"""Iterators whose batches are rows with numbers: what is common to arrays, tables and records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..context import Array
from .batch import DataBatch, DataDesc, DataIter
from .sampler import Rows, ShardedSampler


class RowIter(DataIter, ABC):
    """Batches of the rows that a sampler names; a subclass gives ``read``.

    data, label: ``(name, shape of a row, type)`` of every input.
    """

    def __init__(
        self,
        sampler: ShardedSampler,
        data: Sequence[tuple[str, tuple[int, ...], Any]],
        label: Sequence[tuple[str, tuple[int, ...], Any]],
    ) -> None:
        super().__init__(sampler.shard.size)
        self.sampler = sampler
        self.num_data = sampler.num_rows
        self.provide_data = [DataDesc(name, (self.batch_size, *shape), kind) for name, shape, kind in data]
        self.provide_label = [DataDesc(name, (self.batch_size, *shape), kind) for name, shape, kind in label]
        self._read: tuple[list[Array], list[Array]] | None = None

    @abstractmethod
    def read(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """Copies of these rows of every data array and of every label array."""

    @property
    def num_batches(self) -> int:
        """The batches of the current epoch; the same on all shards."""
        return self.sampler.num_batches

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 0."""
        return self.sampler.epoch

    def hard_reset(self) -> None:
        """Go to the beginning of the current epoch and forget rows that were held over."""
        self.sampler.hard_reset()
        self._read = None

    def reset(self) -> None:
        """Go to the beginning of the next epoch; an iterator that has not moved stays where it is."""
        self.sampler.reset()
        self._read = None

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        self._read = None
        return self.sampler.advance()

    def next(self) -> DataBatch:
        """The next batch of this shard; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        rows = self.sampler.rows
        data, label = self.read(rows)
        return DataBatch(
            data,
            label,
            self.sampler.pad,
            rows,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
            first_row=self.sampler.shard.first,
            global_rows=self.sampler.global_rows,
        )

    def _current(self) -> tuple[list[Array], list[Array]]:
        if self._read is None:
            self._read = self.read(self.sampler.rows)
        return self._read

    def getdata(self) -> list[Array]:
        """This shard's rows of every data array."""
        return self._current()[0]

    def getlabel(self) -> list[Array]:
        """This shard's rows of every label array."""
        return self._current()[1]

    def getpad(self) -> int:
        """How many rows at the end of this shard's batch only fill it up."""
        return self.sampler.pad

    def getindex(self) -> Rows:
        """The numbers of the rows of the current batch, those of the padding included."""
        return self.sampler.rows

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands; see `ShardedSampler.get_state`."""
        return self.sampler.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called: the identical batches follow.

        Raises CheckpointError for a state of other data.
        """
        self.sampler.set_state(state)
        self._read = None
