"""Which rows come when: the order of every epoch from seed and epoch alone, and the rows of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy

from ..errors import AttributeValueError, CheckpointError
from . import random
from .batch import Shard
from .options import one_of

Rows = numpy.ndarray[Any, Any]


class ShardedSampler:
    """The numbers of the rows of every batch that one rank of ``num_shards`` takes.

    ``batch_size`` counts the rows of the *global* batch. All ranks have the same number of batches and
    the same permutation, drawn anew for every epoch from the seed and the number of the epoch. What is
    left at the end of an epoch: ``pad`` fills the last batch up with rows from the beginning (`pad`
    counts them), ``discard`` drops it, ``roll_over`` lets its rows lead the next epoch. ``seed=None``
    means the one seed of the program.

    A loop over it yields the row numbers of the batches that are left of the epoch; at the end of an
    epoch the next loop begins the next one. Raises AttributeValueError for options that mean nothing.
    """

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        num_shards: int = 1,
        shard_id: int = 0,
        shuffle: bool = True,
        last_batch_handle: str = "pad",
        seed: int | None = None,
        who: str = "ShardedSampler",
    ) -> None:
        if num_rows < 1:
            raise AttributeValueError(f"{who}: there must be at least one row, but there are {num_rows}")
        self.who = who
        self.num_rows = int(num_rows)
        self.shard = Shard(who, batch_size, num_shards, shard_id)
        self.shuffle = bool(shuffle)
        self.last_batch_handle = one_of(who, "last_batch_handle", last_batch_handle, ("pad", "discard", "roll_over"))
        self.seed = seed
        self.epoch = 0
        self.hard_reset()

    @property
    def num_batches(self) -> int:
        """The batches of the current epoch; the same on all ranks."""
        rows = self._held.size + self.num_rows
        size = self.shard.global_size
        return -(-rows // size) if self.last_batch_handle == "pad" else rows // size

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Rows]:
        if self.ended:
            self.reset()
        while self.advance():
            yield self.rows

    @property
    def ended(self) -> bool:
        """Whether the end of the epoch has been seen."""
        return self.batch >= self.num_batches

    def hard_reset(self) -> None:
        """Go to the beginning of the current epoch and forget rows that were held over."""
        self._held: Rows = numpy.empty(0, numpy.intp)
        self._order: Rows | None = None
        self.batch = -1  # the current one; -1 before the first

    def reset(self) -> None:
        """Go to the beginning of the next epoch; a sampler that has not moved stays where it is."""
        if self.batch < 0:
            return
        held = self._held[:0]
        if self.last_batch_handle == "roll_over" and self.ended:
            held = self._rows_of_epoch()[self.num_batches * self.shard.global_size :]
        self.hard_reset()
        self._held = held
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the current one, if it is under way, goes on where it stands."""
        if epoch != self.epoch or self.ended:
            self.hard_reset()
            self.epoch = int(epoch)

    def advance(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        self.batch = min(self.batch + 1, self.num_batches)
        return self.batch < self.num_batches

    @property
    def rows(self) -> Rows:
        """The row numbers of this rank in the current batch, those of the padding included."""
        order = self._rows_of_epoch()
        start = self.batch * self.shard.global_size + self.shard.first
        stop = start + self.shard.size
        return order[start:stop].copy() if stop <= order.size else order[numpy.arange(start, stop) % order.size]

    @property
    def pad(self) -> int:
        """How many rows at the end of this rank's batch only fill it up."""
        return self.shard.pad(self._global_pad())

    @property
    def global_rows(self) -> int:
        """The rows that count in the current batch, over all ranks."""
        return self.shard.global_size - self._global_pad()

    def _global_pad(self) -> int:
        end = (self.batch + 1) * self.shard.global_size
        return max(0, end - self._held.size - self.num_rows)

    def _rows_of_epoch(self) -> Rows:
        # Drawn when first needed: a seed set after the sampler was made counts.
        if self._order is None:
            fresh = numpy.arange(self.num_rows)
            self._epoch_seed = random.current_seed() if self.seed is None else self.seed
            if self.shuffle:
                random.generator("iterator", self.epoch, seed=self._epoch_seed).shuffle(fresh)
            self._order = numpy.concatenate([self._held, fresh]) if self._held.size else fresh
        return self._order

    @property
    def epoch_seed(self) -> int:
        """The seed of the current epoch, for whatever else is drawn in it."""
        self._rows_of_epoch()
        return self._epoch_seed

    def get_state(self) -> dict[str, Any]:
        """Where the sampler stands: numbers and one array, enough to go on with the identical rows."""
        return {
            "epoch": self.epoch,
            "batch": self.batch + 1,
            "seed": self.epoch_seed,
            "held": self._held,
            **self._description(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called, whatever the number of ranks; the seed of the state stays in force.

        Raises CheckpointError where the state is of other rows, batches or options.
        """
        check_state(self.who, state, ("epoch", "batch", "seed", "held"), self._description())
        self.hard_reset()
        self.epoch = int(state["epoch"])
        self._held = numpy.array(state["held"], numpy.intp).reshape(-1)
        if self._held.size and not 0 <= self._held.min() <= self._held.max() < self.num_rows:
            raise CheckpointError(f"{self.who}: the rows held over in the state must be in 0..{self.num_rows - 1}")
        self.seed = int(state["seed"])
        self.batch = min(int(state["batch"]) - 1, self.num_batches)

    def _description(self) -> dict[str, Any]:
        return {
            "num_rows": self.num_rows,
            "batch_size": self.shard.global_size,
            "shuffle": self.shuffle,
            "last_batch_handle": self.last_batch_handle,
        }


def sampler_of_part(
    who: str,
    num_rows: int,
    batch_size: int,
    num_parts: int,
    part_index: int,
    shuffle: bool,
    last_batch_handle: str,
    seed: int | None,
) -> ShardedSampler:
    """The sampler of one of ``num_parts`` readers of ``batch_size`` rows; AttributeValueError for wrong numbers."""
    Shard(who, batch_size, 1, 0)
    if not all(isinstance(number, (int, numpy.integer)) for number in (num_parts, part_index)) or not (
        0 <= part_index < num_parts
    ):
        raise AttributeValueError(
            f"{who}: part_index must be in 0..num_parts - 1, but num_parts is {num_parts!r} and part_index "
            f"{part_index!r}"
        )
    return ShardedSampler(
        num_rows, batch_size * num_parts, num_parts, part_index, shuffle, last_batch_handle, seed, who
    )


def check_state(who: str, state: Mapping[str, Any], keys: tuple[str, ...], description: Mapping[str, Any]) -> None:
    """Refuse a state that lacks a key, or whose description differs from that of what it is given to."""
    missing = [key for key in (*keys, *description) if key not in state]
    if missing:
        raise CheckpointError(f"{who}: a state must have {', '.join(missing)}, but it has {', '.join(state)}")
    for key, value in description.items():
        if state[key] != value:
            raise CheckpointError(f"{who}: {key} must be what it was in the state, {state[key]!r}, but it is {value!r}")
