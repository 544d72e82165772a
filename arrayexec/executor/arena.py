"""Memory that executors share: the arena of internals, the pool of inputs, flat segments, and who wrote last."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..context import Context, context_of, copyto
from ..errors import BusyExecutorError

Array = Any


class Tenant(Protocol):
    """An executor as shared memory sees it."""

    title: str

    def drop_views(self, stale: str = "") -> None:
        """Forget every array that lies in shared memory; it is bound again on the next use.

        ``stale``: why a backward of the last forward would be wrong, if it would.
        """


class WriteMark:
    """Counts the engine's writes into a set of arrays and remembers the last one in words."""

    __slots__ = ("__weakref__", "version", "words")

    def __init__(self) -> None:
        self.version = 0
        self.words = ""


_marks: weakref.WeakValueDictionary[int, WriteMark] = weakref.WeakValueDictionary()


def address_of(array: Array) -> int:
    """By what writes into an array are counted."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return id(array)  # executors hand out one and the same array object for as long as they are bound


def mark_arrays(arrays: Iterable[Array]) -> set[WriteMark]:
    """Put a mark on arrays that have none yet; the marks of all of them."""
    mark = WriteMark()
    return {_marks.setdefault(address_of(array), mark) for array in arrays}


def note_write(array: Array, words: str) -> None:
    """Tell that the engine has written an argument, so that a backward of an older forward is refused."""
    note_writes([address_of(array)], words)


def note_writes(addresses: Iterable[int], words: str) -> None:
    """`note_write` of arrays by their `address_of`."""
    for address in addresses:
        mark = _marks.get(address)
        if mark is not None:
            mark.version += 1
            mark.words = words


def write(pairs: Sequence[tuple[Array, Array]], words: str) -> None:
    """Copy (target, source) pairs, sources as they were before the first copy, and tell that arguments were written."""
    for target, source in _apart(pairs) if len(pairs) > 1 else pairs:
        copyto(target, source)
        note_write(target, words)


def _apart(pairs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """The same pairs; a source that lies in one of the targets is replaced by a copy."""
    targets = [target for target, _ in pairs]
    same = {id(target) for target in targets}
    hosts = [target for target in targets if isinstance(target, np.ndarray)]
    bounds = [np.lib.array_utils.byte_bounds(target) for target in hosts]
    low, high = min((b[0] for b in bounds), default=0), max((b[1] for b in bounds), default=0)

    def overwritten(source: Array) -> bool:
        if id(source) in same or not isinstance(source, np.ndarray):
            return id(source) in same
        start, end = np.lib.array_utils.byte_bounds(source)
        return start < high and low < end and any(np.may_share_memory(source, target) for target in hosts)

    return [(target, source.copy() if overwritten(source) else source) for target, source in pairs]


class _Shared:
    """Memory of several executors, whose views of it are dropped before it grows."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._tenants: weakref.WeakSet[Any] = weakref.WeakSet()

    def join(self, tenant: Tenant) -> None:
        """Count an executor among those whose views are dropped before growth."""
        self._tenants.add(tenant)

    def _drop_views(self, stale: str = "") -> None:
        for tenant in list(self._tenants):
            tenant.drop_views(stale)


class Arena(_Shared):
    """The bytes in which executors keep their internals: one block a context, as large as the largest plan.

    Growth first drops the views of every live executor, then frees, then allocates.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.blocks: dict[Context, Array] = {}
        self.last: tuple[str, int] = ("", 0)  # title and id of the executor that ran in it
        self._lock = threading.Lock()
        self._holder = ""

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(int(block.size) for block in self.blocks.values())

    def reserve(self, needs: Mapping[Context, int]) -> None:
        """Make the block of each context at least that many bytes large."""
        small = [c for c, nbytes in needs.items() if c not in self.blocks or nbytes > self.blocks[c].size]
        if not small:
            return
        self._drop_views()
        for context in small:
            self.blocks.pop(context, None)
        for context in small:
            self.blocks[context] = context.allocate(needs[context], "arena")

    @contextmanager
    def held_by(self, tenant: Tenant) -> Iterator[None]:
        """Use the arena alone; BusyExecutorError at once if it is in use (by a monitor's caller, a second thread)."""
        if not self._lock.acquire(blocking=False):
            raise BusyExecutorError(
                f"{tenant.title} cannot run now: {self._holder} is running in the memory that they share; "
                "executors that share memory are used one at a time, not from callbacks or other threads"
            )
        try:
            self._holder = tenant.title
            yield
        finally:
            self._lock.release()


class InputPool(_Shared):
    """Inputs by name, shared between buckets: each executor's input is a prefix view of the largest one's bytes.

    Works on any mapping name → array (``shared_data_arrays``); entries are replaced by larger ones when needed.
    """

    def __init__(self, arrays: MutableMapping[str, Array], context: Context) -> None:
        super().__init__(context)
        self.arrays = arrays

    def fits(self, name: str, shape: Sequence[int], dtype: Any) -> bool:
        """True if the entry ``name`` is there and has bytes enough."""
        held = self.arrays.get(name)
        return held is not None and held.flags.c_contiguous and held.nbytes >= _nbytes(shape, dtype)

    def view(self, name: str, shape: tuple[int, ...], dtype: Any, context: Context | None = None) -> Array:
        """The input ``name`` in a bucket's shape and type; grows the entry if it is too small.

        ``context``: where it lies (None: on that of the pool).
        """
        context = context or self.context
        if not self.fits(name, shape, dtype):
            self._drop_views("the shared inputs have grown since the last forward")
            self.arrays.pop(name, None)
            self.arrays[name] = context.zeros(shape, dtype, "input")
        held = self.arrays[name]
        flat = held.reshape(-1).view(np.uint8)
        return context.view(flat, 0, shape, dtype)


_pools: weakref.WeakValueDictionary[int, InputPool] = weakref.WeakValueDictionary()


def pool_of(arrays: MutableMapping[str, Array], context: Context) -> InputPool:
    """The pool that manages a mapping: one for all executors that were given the same mapping object."""
    pool = _pools.get(id(arrays))  # the pool keeps the mapping alive, so its id stays its own
    if pool is None or pool.arrays is not arrays:
        pool = _pools[id(arrays)] = InputPool(arrays, context)
    return pool


def _nbytes(shape: Sequence[int], dtype: Any) -> int:
    return math.prod(shape) * int(np.dtype(dtype).itemsize)


def allocate_segment(
    context: Context, role: str, specs: Mapping[str, tuple[tuple[int, ...], Any]]
) -> tuple[Array, dict[str, Array]]:
    """One flat block of zeros that holds arrays of (shape, type) by name, in order, each aligned; block and views."""
    alignment, offsets, total = context.alignment, {}, 0
    for name, (shape, dtype) in specs.items():
        offsets[name] = total
        total += -(-_nbytes(shape, dtype) // alignment) * alignment
    block = context.allocate(total, role, zero=True)
    views = {name: context.view(block, offsets[name], shape, dtype) for name, (shape, dtype) in specs.items()}
    _note_padding(context, block, views.values())
    return block, views


class Span(NamedTuple):
    """Where an array lies: whose memory, its first byte, the byte behind it, and behind the padding of a segment."""

    owner: int
    start: int
    stop: int
    padded: int


_padding: dict[int, tuple[weakref.ref[Any], dict[int, int]]] = {}
"""By what owns memory: the bytes behind arrays of segments, and those behind the padding that follows."""


def _note_padding(context: Context, block: Array, arrays: Iterable[Array]) -> None:
    owner = _owner(block)
    key, ends = id(owner), {}
    for array in arrays:
        stop = context.device.address(array) + array.nbytes
        ends[stop] = -(-stop // context.alignment) * context.alignment
    held = _padding.get(key)
    if held is None or held[0]() is not owner:
        _padding[key] = weakref.ref(owner, lambda _: _padding.pop(key, None)), {}
    _padding[key][1].update(ends)


def span(array: Array) -> Span:
    """Where a contiguous array lies."""
    owner = _owner(array)
    start = context_of(array).device.address(array)
    stop = start + array.nbytes
    held = _padding.get(id(owner))
    padded = held[1].get(stop, stop) if held is not None and held[0]() is owner else stop
    return Span(id(owner), start, stop, padded)


def _owner(array: Array) -> Any:
    while hasattr(getattr(array, "base", None), "dtype"):
        array = array.base
    return array
