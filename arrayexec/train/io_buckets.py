"""Sentences of different lengths in buckets of equal length."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ..errors import AttributeValueError
from . import random
from .batch import DataBatch, DataDesc, DataIter, Shard
from .options import one_of
from .sampler import check_state

_LOG = logging.getLogger(__name__)
# the order of the batches, and for every bucket the order of its sentences
_EpochOrder = tuple[numpy.ndarray[Any, Any], list[numpy.ndarray[Any, Any]]]


class BucketSentenceIter(DataIter):
    """Batches of sentences of about the same length; the label of a position is the next word.

    Every sentence (a sequence of integers) goes to the shortest bucket that holds it and is filled up
    with ``invalid_label``, which also is the label of its last position. ``buckets`` are lengths; without
    them, every length that fills at least one batch is one. Sentences longer than all buckets are left
    out with a warning (`discarded` counts them). ``layout`` is ``NT`` (batch, time) or ``TN``.

    last_batch: ``discard`` drops the last, incomplete batch of every bucket; ``pad`` keeps it, filled up
    with rows of ``invalid_label`` that ``pad`` counts. With ``shuffle``, every epoch has a new order of
    batches and of sentences inside their bucket, drawn from ``seed`` (None: the one seed). With ``num_shards``,
    ``batch_size`` counts the rows of the global batch and all ranks draw the same keys (see `batch`).

    Raises AttributeValueError for options that mean nothing and where no bucket is left.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        layout: str = "NT",
        last_batch: str = "discard",
        shuffle: bool = True,
        num_shards: int = 1,
        shard_id: int = 0,
        seed: int | None = None,
    ) -> None:
        who = type(self).__name__
        self.layout = one_of(who, "layout", layout, ("NT", "TN"))
        keeps_rest = one_of(who, "last_batch", last_batch, ("discard", "pad")) == "pad"
        self.shard = Shard(who, batch_size, num_shards, shard_id)
        super().__init__(self.shard.size)
        lengths = numpy.array([len(sentence) for sentence in sentences], numpy.intp)
        self.buckets = _bucket_lengths(who, lengths, batch_size, buckets)
        self.default_bucket_key = self.buckets[-1]
        self.invalid_label = invalid_label
        self.data_name = data_name
        self.label_name = label_name
        self.dtype = numpy.dtype(dtype)
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

        home = numpy.searchsorted(self.buckets, lengths)  # the bucket of every sentence
        self.discarded = int((home == len(self.buckets)).sum())
        if self.discarded:
            _LOG.warning(
                "%s: %d of %d sentences are longer than the largest bucket (%d) and are left out",
                who,
                self.discarded,
                len(lengths),
                self.default_bucket_key,
            )
        self._members = [numpy.flatnonzero(home == i) for i in range(len(self.buckets))]
        self._rows = [
            _padded([sentences[i] for i in members.tolist()], length, invalid_label, self.dtype)
            for members, length in zip(self._members, self.buckets, strict=True)
        ]
        # (bucket, first row) of every batch of an epoch
        size = self.shard.global_size
        self._batches = [
            (bucket, start)
            for bucket, members in enumerate(self._members)
            for start in range(0, len(members), size)
            if keeps_rest or start + size <= len(members)
        ]
        if not self._batches:
            raise AttributeValueError(
                f"{who}: some bucket of {self.buckets} must hold a full batch of {size} sentences, but none "
                "does: use a smaller batch_size or last_batch='pad'"
            )
        self._batch = -1
        self._order: _EpochOrder | None = None

    @property
    def provide_data(self) -> list[DataDesc]:  # type: ignore[override]
        """The description of the data in the default bucket, with the rows of this shard."""
        return self._describe(self.data_name, self.default_bucket_key)

    @property
    def provide_label(self) -> list[DataDesc]:  # type: ignore[override]
        """The description of the label in the default bucket, with the rows of this shard."""
        return self._describe(self.label_name, self.default_bucket_key)

    @property
    def num_batches(self) -> int:
        """The batches of an epoch; the same on all shards."""
        return len(self._batches)

    def reset(self) -> None:
        """Go to the beginning of the next epoch; an iterator that has not moved stays where it is."""
        if self._batch < 0:
            return
        self.epoch += 1
        self._batch = -1
        self._order = None

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        self._batch = min(self._batch + 1, self.num_batches)
        return self._batch < self.num_batches

    def next(self) -> DataBatch:
        """The next batch of this shard; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        batch_order, row_orders = self._epoch_order()
        bucket, start = self._batches[batch_order[self._batch]]
        rows = row_orders[bucket][start : start + self.shard.global_size]  # of the global batch
        global_pad = self.shard.global_size - rows.size
        wanted = rows[self.shard.rows]
        length = self.buckets[bucket]
        data = numpy.full((self.shard.size, length), self.invalid_label, self.dtype)
        data[: wanted.size] = self._rows[bucket][wanted]
        label = numpy.full_like(data, self.invalid_label)
        label[:, :-1] = data[:, 1:]
        index = numpy.full(self.shard.size, -1, numpy.intp)
        index[: wanted.size] = self._members[bucket][wanted]
        if self.layout == "TN":
            data, label = numpy.ascontiguousarray(data.T), numpy.ascontiguousarray(label.T)
        return DataBatch(
            [data],
            [label],
            self.shard.pad(global_pad),
            index,
            length,
            self._describe(self.data_name, length),
            self._describe(self.label_name, length),
            self.shard.first,
            self.shard.global_size - global_pad,
        )

    def _epoch_order(self) -> _EpochOrder:
        # Drawn when first needed: a seed set after the iterator was made counts.
        if self._order is None:
            batches = numpy.arange(self.num_batches)
            rows = [numpy.arange(len(members)) for members in self._members]
            self._epoch_seed = random.current_seed() if self.seed is None else self.seed
            if self.shuffle:
                stream = random.generator("iterator", self.epoch, seed=self._epoch_seed)
                for order in (batches, *rows):
                    stream.shuffle(order)
            self._order = batches, rows
        return self._order

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands: epoch, batch and seed, with a description of the sentences."""
        self._epoch_order()
        return {"epoch": self.epoch, "batch": self._batch + 1, "seed": self._epoch_seed, **self._description()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called, whatever the number of ranks; the seed of the state stays in force.

        Raises CheckpointError for a state of other sentences, buckets or options.
        """
        check_state(type(self).__name__, state, ("epoch", "batch", "seed"), self._description())
        self.epoch, self._order = int(state["epoch"]), None
        self.seed = int(state["seed"])
        self._batch = min(int(state["batch"]) - 1, self.num_batches)

    def _description(self) -> dict[str, Any]:
        return {
            "rows_of_buckets": [len(members) for members in self._members],
            "buckets": self.buckets,
            "batch_size": self.shard.global_size,
            "num_batches": self.num_batches,
            "shuffle": self.shuffle,
        }

    def describe(self, bucket_key: int) -> tuple[list[DataDesc], list[DataDesc]]:
        """The descriptions of data and label in a bucket, with the rows of this shard."""
        return self._describe(self.data_name, bucket_key), self._describe(self.label_name, bucket_key)

    def _describe(self, name: str, length: int) -> list[DataDesc]:
        shape = (self.batch_size, length)
        return [DataDesc(name, shape if self.layout == "NT" else shape[::-1], self.dtype, self.layout)]


def _bucket_lengths(
    who: str, lengths: numpy.ndarray[Any, Any], batch_size: int, given: Sequence[int] | None
) -> list[int]:
    """The lengths of the buckets, ascending."""
    if given is None:
        counts = numpy.bincount(lengths[lengths > 0], minlength=1)
        buckets = numpy.flatnonzero(counts >= batch_size).tolist()
        if not buckets:
            raise AttributeValueError(
                f"{who}: some length must occur in at least {batch_size} sentences (one batch), but none of "
                f"{len(lengths)} sentences' does: give buckets= or a smaller batch_size"
            )
        return buckets
    buckets = sorted(set(map(int, given)))
    if not buckets or buckets[0] < 1:
        raise AttributeValueError(f"{who}: buckets must be lengths of at least 1, but they are {list(given)}")
    return buckets


def _padded(
    sentences: list[Sequence[int]], length: int, filler: int, dtype: numpy.dtype[Any]
) -> numpy.ndarray[Any, Any]:
    rows = numpy.full((len(sentences), length), filler, dtype)
    for row, sentence in zip(rows, sentences, strict=True):
        try:
            row[: len(sentence)] = sentence
        except (TypeError, ValueError) as error:
            raise AttributeValueError(
                f"BucketSentenceIter: a sentence must be the numbers of its words, but one is {str(sentence)[:60]}"
            ) from error
    return rows
