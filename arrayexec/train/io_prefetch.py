"""Iterators around other iterators: epochs of another length, batches drawn ahead on threads."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..context import Array
from ..errors import AttributeValueError, CheckpointError, ShapeError, UnknownNameError, near_miss
from .batch import DataBatch, DataDesc, DataIter
from .sampler import check_state


class _Wrapper(DataIter):
    """An iterator that hands on the batches of others; a subclass gives ``iter_next``."""

    current_batch: DataBatch

    def _take_buckets(self, iterator: DataIter) -> None:
        for name in ("buckets", "default_bucket_key"):
            if hasattr(iterator, name):
                setattr(self, name, getattr(iterator, name))

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
        self._take_buckets(data_iter)

    def reset(self) -> None:
        """Begin the next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def hard_reset(self) -> None:
        """Begin an epoch, without rows that the iterator inside has held over."""
        self.cur = 0
        getattr(self.data_iter, "hard_reset", self.data_iter.reset)()

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

    def get_state(self) -> dict[str, Any]:
        """The batch of this epoch, and the state of the iterator inside."""
        return {"batch": self.cur, "size": self.size, "iter": self.data_iter.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called. CheckpointError for a state of another iterator or size."""
        check_state("ResizeIter", state, ("batch", "iter"), {"size": self.size})
        self.data_iter.set_state(state["iter"])
        self.cur = int(state["batch"])


class _Drawn(NamedTuple):
    """A batch (None at the end of the epoch) or what was raised instead, and the state of the iterator after it."""

    batch: DataBatch | None = None
    error: BaseException | None = None
    state: dict[str, Any] | None = None


_LINGER = 2.0  # seconds that a thread waits for a batch to be taken before it ends


class _Ahead:
    """Up to ``depth`` batches of one iterator, drawn ahead by a thread.

    The thread ends when nothing has been taken for a while, and a new one starts where it is needed. So
    nobody has to stop it: neither a loop that is left, nor the garbage collector, nor the end of the
    program, nor the child of a fork, which has none.
    """

    def __init__(self, iterator: DataIter, depth: int) -> None:
        self.iterator, self.depth = iterator, depth
        self.state: dict[str, Any] | None = None  # after the batch that was taken last; None: not asked for yet
        self._keeps_state: bool | None = None
        self._ready: deque[_Drawn] = deque()
        self._changed = threading.Condition()  # guards what follows
        self._thread: threading.Thread | None = None
        self._serving = False  # the thread will look for work again
        self._drawing = False  # it is at a batch
        self._more = False  # neither the end nor a fault has been drawn
        self._closing = False

    def begin(self) -> None:
        """Start to draw, if nothing has been drawn yet."""
        if self._keeps_state is None:
            try:
                self.state = self.iterator.get_state() if hasattr(self.iterator, "get_state") else None
            except CheckpointError:  # it has none; whoever asks for it is told
                self.state = None
            self._keeps_state = self.state is not None
        with self._changed:
            if self.depth and not self._ready:
                self._ask()

    def take(self) -> _Drawn:
        """What the iterator gives or raises next; after `begin`."""
        drawn = self._from_thread() if self.depth else self._draw()
        self.state = drawn.state if drawn.error is None else self.state
        return drawn

    def stop(self) -> None:
        """Wait for the batch at hand and drop all that has been drawn; a fault in it is no matter."""
        thread = self._thread
        self.close()
        if thread is not None:
            thread.join()
        self._ready.clear()
        self.state = self._keeps_state = self._thread = None
        self._serving = self._drawing = self._more = self._closing = False

    def close(self) -> None:
        """Let the thread end, but wait for nothing: the garbage collector calls this, and the end of the program."""
        self._closing = True
        if self._changed.acquire(blocking=False):
            self._changed.notify_all()
            self._changed.release()

    def _from_thread(self) -> _Drawn:
        with self._changed:
            while not self._ready:
                self._ask()
                self._changed.wait(timeout=1)  # a thread that was lost never tells
            drawn = self._ready.popleft()
            if drawn.batch is not None:
                self._ask()
        return drawn

    def _ask(self) -> None:
        self._more = self._more or not self._ready
        if self._serving and self._thread is not None and self._thread.is_alive():
            self._changed.notify_all()
            return
        if self._drawing and self._keeps_state:  # lost with its thread, in the child of a fork: once more
            self.iterator.set_state((self._ready[-1].state if self._ready else None) or self.state or {})
        self._serving, self._drawing = True, False
        run = contextvars.copy_context().run  # numpy.errstate and the like are the caller's
        self._thread = threading.Thread(target=run, args=(self._serve,), name="prefetch", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._wanted():
            drawn = self._draw()
            with self._changed:
                self._ready.append(drawn)
                self._drawing = False
                self._more = drawn.batch is not None
                self._changed.notify_all()

    def _wanted(self) -> bool:
        """Wait until a batch is to be drawn; False when the thread is to end."""
        with self._changed:
            while not self._closing:
                if self._more and len(self._ready) < self.depth:
                    self._drawing = True
                    return True
                if not self._changed.wait(_LINGER):
                    break
            self._serving = False  # told under the lock: who asks now starts a new thread
            return False

    def _draw(self) -> _Drawn:
        try:
            batch = next(self.iterator, None)
            return _Drawn(batch, state=self.iterator.get_state() if self._keeps_state else None)
        except BaseException as error:
            return _Drawn(error=error)


class PrefetchingIter(_Wrapper):
    """The batches of one or several iterators, each drawn ahead on a thread of its own.

    Up to ``depth`` batches are ready beside the one in use (0: drawn when asked for). Data and labels of
    several iterators are joined in order; ``rename_data`` and ``rename_label`` (one dict for each iterator)
    give names to them. What an iterator raises on its thread is raised by ``next()``, with the traceback.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
        depth: int = 1,
    ) -> None:
        self.iters: list[Any] = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        if not self.iters:
            raise AttributeValueError("PrefetchingIter: there must be at least one iterator, but there is none")
        for one in self.iters:
            _check_iterator("PrefetchingIter", one)
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise AttributeValueError(f"PrefetchingIter: depth must be an integer >= 0, but it is {depth!r}")
        super().__init__(self.iters[0].batch_size)
        self.provide_data = _renamed([it.provide_data for it in self.iters], rename_data, "rename_data")
        self.provide_label = _renamed([it.provide_label for it in self.iters], rename_label, "rename_label")
        self._names = rename_data, rename_label
        self._take_buckets(self.iters[0])
        self._ahead = [_Ahead(iterator, depth) for iterator in self.iters]

    def __del__(self) -> None:
        for ahead in getattr(self, "_ahead", ()):
            ahead.close()

    def _stop(self) -> None:
        for ahead in self._ahead:
            ahead.stop()

    def reset(self) -> None:
        """Drop what was drawn ahead and reset every iterator."""
        self._stop()
        for iterator in self.iters:
            iterator.reset()

    def hard_reset(self) -> None:
        """Drop what was drawn ahead; every iterator goes to a beginning without rows that it has held over."""
        self._stop()
        for iterator in self.iters:
            getattr(iterator, "hard_reset", iterator.reset)()

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch.

        Raises what an iterator raised on its thread, and ShapeError where several iterators do not keep step.
        """
        for ahead in self._ahead:
            ahead.begin()
        drawn = [ahead.take() for ahead in self._ahead]
        for one in drawn:
            if one.error is not None:
                raise one.error
        batches = [one.batch for one in drawn]
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
        self.current_batch = self._joined(present) if len(present) > 1 or self._names != (None, None) else present[0]
        return True

    def _joined(self, batches: list[DataBatch]) -> DataBatch:
        first = batches[0]
        described = [self.provide_data, self.provide_label]
        if first.bucket_key is not None:  # other shapes than those of the iterator
            own = ("provide_data", "provide_label")
            pairs = list(zip(batches, self.iters, strict=True))
            descs = [[getattr(batch, name) or getattr(it, name) for batch, it in pairs] for name in own]
            described = [_renamed(descs[i], self._names[i], own[i]) for i in (0, 1)]
        return DataBatch(
            [array for batch in batches for array in batch.data],
            [array for batch in batches for array in batch.label or ()],
            first.pad,
            first.index,
            first.bucket_key,
            described[0],
            described[1],
            first.first_row,
            first.global_rows,
        )

    def get_state(self) -> dict[str, Any]:
        """The states of the iterators after the batch that was handed out last, whatever has been drawn ahead."""
        return {
            "iters": [a.iterator.get_state() if a.state is None else a.state for a in self._ahead],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called. CheckpointError for a state of other iterators."""
        check_state("PrefetchingIter", state, ("iters",), {})
        if len(state["iters"]) != len(self.iters):
            raise CheckpointError(
                f"PrefetchingIter: the state must be of {len(self.iters)} iterators, but it is of {len(state['iters'])}"
            )
        self._stop()
        for iterator, inner in zip(self.iters, state["iters"], strict=True):
            iterator.set_state(inner)


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
