"""Data iterators: over arrays, over sentences in buckets, and around other iterators.

Sharded iterators give every rank its rows of each global batch, see `batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError, ShapeError, UnknownNameError, near_miss
from . import random
from .batch import DataBatch, DataDesc, DataIter, Shard, split_rows
from .bucket_io import BucketSentenceIter
from .options import one_of

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = [
    "DataDesc",
    "DataBatch",
    "DataIter",
    "NDArrayIter",
    "ArrayIter",
    "ResizeIter",
    "PrefetchingIter",
    "BucketSentenceIter",
    "split_rows",
]


class NDArrayIter(DataIter):
    """Batches of the rows of arrays that lie in memory; float64 and int64 become float32.

    data, label: an array, a list of arrays (named ``_0_data``, ``_1_data``, …) or a dict name → array,
    all with the same number of rows. last_batch_handle: ``pad`` fills the last batch up with rows from
    the beginning and tells their count, ``discard`` drops it, ``roll_over`` lets its rows lead the next
    epoch. ``shuffle`` draws a new order for every epoch from the one seed. ``num_shards`` and
    ``shard_id``: see `batch`.

    Raises ShapeError where lengths differ, AttributeValueError for options that mean nothing.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        num_shards: int = 1,
        shard_id: int = 0,
    ) -> None:
        who = type(self).__name__
        self.data = _named_arrays(who, data, data_name)
        self.label = [] if label is None else _named_arrays(who, label, label_name)
        if not self.data:
            raise AttributeValueError(f"{who}: data must hold at least one array, but it holds none")
        self.num_data = _common_rows(who, self.data + self.label)
        self.shard = Shard(who, batch_size, num_shards, shard_id)
        super().__init__(self.shard.size)
        self.shuffle = shuffle
        self.last_batch_handle = one_of(who, "last_batch_handle", last_batch_handle, ("pad", "discard", "roll_over"))
        self.epoch = 0
        self.hard_reset()

    @property
    def provide_data(self) -> list[DataDesc]:  # type: ignore[override]
        """Name, shape (with the rows of this shard) and type of every data array."""
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:  # type: ignore[override]
        """Name, shape (with the rows of this shard) and type of every label array."""
        return self._describe(self.label)

    @property
    def num_batches(self) -> int:
        """The batches of the current epoch; the same on all shards."""
        rows = self._held.size + self.num_data
        size = self.shard.global_size
        return -(-rows // size) if self.last_batch_handle == "pad" else rows // size

    def hard_reset(self) -> None:
        """Go to the beginning of the current epoch and forget rows that were held over."""
        self._held = numpy.empty(0, numpy.intp)
        self._order: numpy.ndarray[Any, Any] | None = None
        self._batch = -1

    def reset(self) -> None:
        """Go to the beginning of the next epoch; an iterator that has not moved stays where it is."""
        if self._batch < 0:
            return
        held = self._held[:0]
        if self.last_batch_handle == "roll_over" and self._batch >= self.num_batches:
            held = self._rows_of_epoch()[self.num_batches * self.shard.global_size :]
        self.hard_reset()
        self._held = held
        self.epoch += 1

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        self._batch = min(self._batch + 1, self.num_batches)
        return self._batch < self.num_batches

    def next(self) -> DataBatch:
        """The next batch of this shard; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(
            self.getdata(),
            self.getlabel(),
            self.getpad(),
            self.getindex(),
            provide_data=self.provide_data,
            provide_label=self.provide_label,
            first_row=self.shard.first,
            global_rows=self.shard.global_size - self._global_pad(),
        )

    def getdata(self) -> list[Array]:
        """Copies of this shard's rows of every data array."""
        rows = self.getindex()
        return [array[rows] for _, array in self.data]

    def getlabel(self) -> list[Array]:
        """Copies of this shard's rows of every label array."""
        rows = self.getindex()
        return [array[rows] for _, array in self.label]

    def getpad(self) -> int:
        """How many rows at the end of this shard's batch only fill it up."""
        return self.shard.pad(self._global_pad())

    def getindex(self) -> numpy.ndarray[Any, Any]:
        """The numbers of the rows of the current batch in the arrays, those of the padding included."""
        rows = self._rows_of_epoch()
        start = self._batch * self.shard.global_size
        wanted = numpy.arange(start, start + self.shard.global_size)[self.shard.rows]
        return rows[wanted % rows.size]

    def _global_pad(self) -> int:
        end = (self._batch + 1) * self.shard.global_size
        return max(0, end - self._held.size - self.num_data)

    def _rows_of_epoch(self) -> numpy.ndarray[Any, Any]:
        # Drawn when first needed: a seed set after the iterator was made counts.
        if self._order is None:
            fresh = numpy.arange(self.num_data)
            if self.shuffle:
                random.generator("iterator", self.epoch).shuffle(fresh)
            self._order = numpy.concatenate([self._held, fresh])
        return self._order

    def _describe(self, arrays: list[tuple[str, Any]]) -> list[DataDesc]:
        return [DataDesc(name, (self.batch_size, *array.shape[1:]), array.dtype) for name, array in arrays]


ArrayIter = NDArrayIter


def _named_arrays(who: str, source: Any, default_name: str) -> list[tuple[str, numpy.ndarray[Any, Any]]]:
    """``(name, host array)`` pairs in the order given."""
    if isinstance(source, Mapping):
        pairs = list(source.items())
    elif isinstance(source, (list, tuple)) and (not source or hasattr(source[0], "shape")):
        single = len(source) == 1
        pairs = [(default_name if single else f"_{i}_{default_name}", a) for i, a in enumerate(source)]
    else:
        pairs = [(default_name, source)]
    arrays = []
    for name, value in pairs:
        array = asnumpy(value)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            raise ShapeError(
                f"{who}: {name!r} must be an array of numbers with rows, but it is {array.dtype} {array.shape}"
            )
        if array.dtype in (numpy.float64, numpy.int64):
            array = array.astype(numpy.float32)
        arrays.append((name, array))
    return arrays


def _common_rows(who: str, arrays: list[tuple[str, Any]]) -> int:
    lengths = {name: array.shape[0] for name, array in arrays}
    if len(lengths) < len(arrays):
        names = ", ".join(name for name, _ in arrays)
        raise AttributeValueError(f"{who}: the names of data and labels must differ, but they are {names}")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
        raise ShapeError(f"{who}: all arrays must have the same number of rows, but {listed}")
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise ShapeError(f"{who}: the arrays must have at least one row, but they have none")
    return int(rows)


class _Wrapper(DataIter):
    """An iterator that hands on the batches of others; a subclass gives ``iter_next``."""

    current_batch: DataBatch

    def next(self) -> DataBatch:
        """The next batch; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def getdata(self) -> Sequence[Array]:
        """The data arrays of the current batch."""
        return self.current_batch.data

    def getlabel(self) -> Sequence[Array]:
        """The label arrays of the current batch."""
        return self.current_batch.label or []

    def getpad(self) -> int | None:
        """How many rows at the end of the current batch do not count."""
        return self.current_batch.pad

    def getindex(self) -> Any:
        """The numbers of the rows of the current batch in the source, where known."""
        return self.current_batch.index


def _check_iterator(who: str, given: Any) -> None:
    for name in ("batch_size", "provide_data", "provide_label"):
        if not hasattr(given, name):
            raise AttributeValueError(f"{who}: an iterator must have {name}, but {type(given).__name__} has none")


class ResizeIter(_Wrapper):
    """Epochs of exactly ``size`` batches of another iterator, which is reset whenever it ends.

    With ``reset_internal`` every epoch starts at its beginning, otherwise where the last one stopped.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        _check_iterator("ResizeIter", data_iter)
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur = 0
        self.provide_data = data_iter.provide_data
        self.provide_label = data_iter.provide_label
        for name in ("buckets", "default_bucket_key"):
            if hasattr(data_iter, name):
                setattr(self, name, getattr(data_iter, name))

    def reset(self) -> None:
        """Begin the next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def iter_next(self) -> bool:
        """Move to the next batch; False after ``size`` of them."""
        if self.cur >= self.size:
            return False
        batch = next(self.data_iter, None)
        if batch is None:
            self.data_iter.reset()
            batch = next(self.data_iter, None)
        if batch is None:
            raise AttributeValueError(
                f"ResizeIter: the {type(self.data_iter).__name__} inside must give a batch after reset(), "
                "but it gives none"
            )
        self.current_batch = batch
        self.cur += 1
        return True


class PrefetchingIter(_Wrapper):
    """The batches of one or several iterators, each drawn one step ahead on a thread of its own.

    Data and labels of several iterators are joined in order; ``rename_data`` and ``rename_label`` (one
    dict for each iterator) give names to them. What an iterator raises on its thread is raised by
    ``next()``.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.iters = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise AttributeValueError("PrefetchingIter: there must be at least one iterator, but there is none")
        for one in self.iters:
            _check_iterator("PrefetchingIter", one)
        super().__init__(self.iters[0].batch_size)
        self.provide_data = _renamed([it.provide_data for it in self.iters], rename_data, "rename_data")
        self.provide_label = _renamed([it.provide_label for it in self.iters], rename_label, "rename_label")
        for name in ("buckets", "default_bucket_key"):
            if hasattr(self.iters[0], name):
                setattr(self, name, getattr(self.iters[0], name))
        self._pending: list[Future[DataBatch | None]] = []

    def reset(self) -> None:
        """Drop what was drawn ahead and reset every iterator."""
        for future in self._pending:
            future.exception()  # waits; a fault of a batch that nobody asked for is no matter
        self._pending = []
        for iterator in self.iters:
            iterator.reset()

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch.

        Raises what an iterator raised on its thread, and ShapeError where several iterators do not keep step.
        """
        pending = self._pending or self._draw()
        self._pending = []
        batches = [future.result() for future in pending]
        present = [batch for batch in batches if batch is not None]
        if not present:
            return False
        if len(present) < len(batches):
            raise ShapeError(
                "PrefetchingIter: all iterators must have the same number of batches, but number "
                f"{batches.index(None)} has ended before another"
            )
        if len({batch.pad for batch in present}) > 1:
            raise ShapeError(
                "PrefetchingIter: all iterators must pad alike, but a batch has the pads "
                f"{[batch.pad for batch in present]}"
            )
        self.current_batch = present[0] if len(present) == 1 else self._joined(present)
        self._pending = self._draw()
        return True

    def _draw(self) -> list[Future[DataBatch | None]]:
        return [_next_on_thread(iterator) for iterator in self.iters]

    def _joined(self, batches: list[DataBatch]) -> DataBatch:
        first = batches[0]
        return DataBatch(
            [array for batch in batches for array in batch.data],
            [array for batch in batches for array in batch.label or ()],
            first.pad,
            first.index,
            first.bucket_key,
            self.provide_data,
            self.provide_label,
            first.first_row,
            first.global_rows,
        )


def _next_on_thread(iterator: DataIter) -> Future[DataBatch | None]:
    """The next batch, or None at the end, drawn on a thread that never holds up the end of the program."""
    import threading
    from concurrent.futures import Future

    drawn: Future[DataBatch | None] = Future()

    def draw() -> None:
        try:
            drawn.set_result(next(iterator, None))
        except BaseException as error:
            drawn.set_exception(error)

    threading.Thread(target=draw, name="prefetch", daemon=True).start()
    return drawn


def _renamed(described: list[list[DataDesc]], names: Sequence[Mapping[str, str]] | None, option: str) -> list[DataDesc]:
    if names is None:
        return [desc for descs in described for desc in descs]
    if len(names) != len(described):
        raise AttributeValueError(
            f"PrefetchingIter: {option} must have one dict for each of the {len(described)} iterators, "
            f"but it has {len(names)}"
        )
    renamed = []
    for descs, mapping in zip(described, names, strict=True):
        for name in mapping:
            if name not in (known := [desc.name for desc in descs]):
                raise UnknownNameError(
                    f"PrefetchingIter: {option} must name inputs of its iterator, but names {name!r}"
                    + near_miss(name, known)
                )
        renamed += [DataDesc(mapping.get(desc.name, desc.name), desc.shape, desc.dtype, desc.layout) for desc in descs]
    return renamed
