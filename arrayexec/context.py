"""Where arrays live: contexts, their array namespaces, allocators by role, streams and copies.

A :class:`Context` is a small value (device type, device id). Everything it does is done by the
:class:`Device` behind it, made when it is first needed by the factory that `register_device` was
given. ``cpu`` is NumPy. ``gpu`` is CuPy 14, imported when a GPU is first used; that part was not run
on a card yet.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy

from .errors import BackendUnavailableError, ContextError, ShapeError, TypeInferenceError, near_miss

Array = Any
"""An array of whatever namespace its context has (numpy.ndarray, cupy.ndarray, …)."""

Allocator = Callable[[int, str], Array | None]
"""``allocator(nbytes, role)`` gives a flat, aligned uint8 array, or None for the context's own memory."""

ROLES = ("parameter", "gradient", "state", "aux", "input", "arena", "output")

_STAGING_BYTES = 8 << 20  # one of the two pinned blocks through which host data reaches a GPU


class Device:
    """What stands behind a context. This base class is host memory and NumPy."""

    xp: Any = numpy
    alignment = 64

    def __init__(self, name: str = "cpu(0)") -> None:
        self.name = name
        self.allocator: Allocator | None = None

    def allocate(self, nbytes: int, role: str, zero: bool = False) -> Array:
        """A flat uint8 array of exactly ``nbytes`` bytes, aligned; zeroed when asked.

        Raises ContextError for an unknown role and for an allocator that breaks its promise.
        """
        if role not in ROLES:
            raise ContextError(
                f"{self.name}: memory must be asked for by a known role, but it is {role!r}" + near_miss(role, ROLES)
            )
        if self.allocator is not None:
            block = self.allocator(nbytes, role)
            if block is not None:
                self._check_block(block, nbytes, role)
                if zero:
                    block.fill(0)
                return block
        return self._allocate(nbytes, zero)

    def _allocate(self, nbytes: int, zero: bool) -> Array:
        make = numpy.zeros if zero else numpy.empty
        raw = make(nbytes + self.alignment - 1, numpy.uint8)
        start = -raw.ctypes.data % self.alignment
        return raw[start : start + nbytes]

    def address(self, array: Array) -> int:
        """The address of the first byte of an array of this device."""
        return int(array.ctypes.data)

    def _check_block(self, block: Array, nbytes: int, role: str) -> None:
        if not self.owns(block):
            found = f"a {type(block).__name__}, which is not an array of {self.name}"
        elif block.dtype != numpy.uint8 or block.shape != (nbytes,) or not block.flags.c_contiguous:
            found = f"{block.dtype} {block.shape}"
        elif self.address(block) % self.alignment:
            found = f"address {self.address(block):#x}"
        else:
            return
        raise ContextError(
            f"{self.name}: the allocator must give a contiguous uint8 array ({nbytes},) at a multiple "
            f"of {self.alignment} bytes for role {role!r}, but gave {found}"
        )

    def view(self, buffer: Array, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The bytes of a flat uint8 ``buffer`` from ``offset`` on as a C-contiguous array of shape and dtype.

        Raises ContextError where the array would reach past the end of the buffer.
        """
        kind = numpy.dtype(dtype)
        end = offset + math.prod(shape) * kind.itemsize
        if offset < 0 or end > buffer.size:
            raise ContextError(
                f"{self.name}: {kind} {shape} at byte {offset} needs a buffer of {end} bytes, but it has {buffer.size}"
            )
        return buffer[offset:end].view(kind).reshape(shape)

    def from_host(self, array: numpy.ndarray[Any, Any], out: Array) -> None:
        """Copy a NumPy array into ``out``, an array of this device of the same shape; casts."""
        numpy.copyto(out, array, casting="unsafe")

    def to_host(self, array: Array) -> numpy.ndarray[Any, Any]:
        """The values of an array of this device as a NumPy array (host memory itself passes through)."""
        return array  # type: ignore[no-any-return]

    def copy(self, dst: Array, src: Array) -> None:
        """Copy between two arrays of this device of the same shape; casts."""
        self.xp.copyto(dst, src, casting="unsafe")

    def owns(self, array: object) -> bool:
        """Whether an array lies on this device."""
        return isinstance(array, numpy.ndarray)

    def synchronize(self) -> None:
        """Wait until everything that was queued on this device has run."""

    def enter(self) -> AbstractContextManager[object]:
        """Work inside runs on this device, after what the caller queued and before what he queues next."""
        return contextlib.nullcontext()


class _CudaDevice(Device):
    """One CUDA device through CuPy, with a stream of its own. Not run on a card yet."""

    alignment = 256

    def __init__(self, device_id: int) -> None:
        super().__init__(f"gpu({device_id})")
        usable, reason = _usable_gpus()
        if device_id not in usable:
            if usable:
                reason = f"the devices that can be used here are {', '.join(f'gpu({i})' for i in usable)}"
            raise BackendUnavailableError(
                f"{self.name} cannot be used: {reason}\n"
                "  needed:  CuPy 14 and an NVIDIA driver that opens the device\n"
                '  install: pip install "arrayexec[cuda12]" for a CUDA 12 driver, '
                'pip install "arrayexec[cuda13]" for CUDA 13\n'
                "  or run on the processor: arrayexec.cpu()"
            )
        import cupy

        self.xp = cupy
        self._id = device_id
        self._pid = os.getpid()
        self._device = cupy.cuda.Device(device_id)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._staging_lock = threading.Lock()
        self._staging: list[tuple[Any, Any]] = []  # (pinned block, event after its transfer)

    def _allocate(self, nbytes: int, zero: bool) -> Array:
        # CuPy's pool hands out blocks at multiples of 512 bytes
        with self.enter():
            return (self.xp.zeros if zero else self.xp.empty)(nbytes, numpy.uint8)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def from_host(self, array: numpy.ndarray[Any, Any], out: Array) -> None:
        if array.shape != out.shape:  # bytes are copied: nothing else would notice
            raise ShapeError(f"{self.name}: the source must have the shape {out.shape}, but it has {array.shape}")
        source = numpy.ascontiguousarray(array, dtype=out.dtype).reshape(-1).view(numpy.uint8)
        with self._staging_lock, self.enter():
            target = out if out.flags.c_contiguous else self.xp.empty(out.shape, out.dtype)
            for start in range(0, source.size, _STAGING_BYTES):
                self._upload(source[start : start + _STAGING_BYTES], target.data + start)
            if target is not out:
                self.copy(out, target)

    def _upload(self, piece: numpy.ndarray[Any, Any], pointer: Any) -> None:
        if len(self._staging) < 2:
            block = self.xp.cuda.alloc_pinned_memory(_STAGING_BYTES)
        else:
            block, event = self._staging.pop(0)
            event.synchronize()  # its former contents may still be on their way
        pinned = numpy.frombuffer(block, numpy.uint8, piece.size)
        pinned[:] = piece
        pointer.copy_from_host_async(pinned.ctypes.data, piece.size, self._stream)
        self._staging.append((block, self._stream.record()))

    def to_host(self, array: Array) -> numpy.ndarray[Any, Any]:
        with self.enter():
            return self.xp.asnumpy(array)  # type: ignore[no-any-return]

    def copy(self, dst: Array, src: Array) -> None:
        with self.enter():
            self.xp.copyto(dst, src, casting="unsafe")

    def owns(self, array: object) -> bool:
        return isinstance(array, self.xp.ndarray) and array.device.id == self._id

    def synchronize(self) -> None:
        self._stream.synchronize()

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise ContextError(
                f"{self.name} was opened before this process was forked and cannot be used here: "
                "start workers with the 'spawn' or 'forkserver' method, or before the first use of a GPU"
            )
        with self._device:
            caller = self.xp.cuda.get_current_stream()
            if caller == self._stream:
                yield
                return
            self._stream.wait_event(caller.record())
            try:
                with self._stream:
                    yield
            finally:
                caller.wait_event(self._stream.record())


def _usable_gpus() -> tuple[tuple[int, ...], str]:
    """The ids of the GPUs that can be used, and if there are none, why."""
    if os.environ.get("ARRAYEXEC_DEVICE") == "cpu":
        return (), "GPUs are switched off by ARRAYEXEC_DEVICE=cpu"
    return _probe_gpus()


@functools.cache
def _probe_gpus() -> tuple[tuple[int, ...], str]:
    # A CuPy that imports is no proof: a product and a sum really run, which needs driver, NVRTC and cuBLAS.
    # CuPy answers with ImportError, CUDARuntimeError, DynamicLibNotFoundError and more.
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return (), f"{type(error).__name__}: {error}"
    usable, reason = [], "CUDA finds no device"
    for i in range(count):
        try:
            with cupy.cuda.Device(i):
                ones = cupy.ones((16, 16), numpy.float32)
                value = float((ones @ ones + ones)[0, 0])
        except Exception as error:
            reason = f"CUDA device {i}: {type(error).__name__}: {error}"
            continue
        if value == 17.0:
            usable.append(i)
        else:
            reason = f"CUDA device {i} computes wrongly: 16 ones add up to {value - 1.0}"
    return tuple(usable), "" if usable else reason


_factories: dict[str, Callable[[int], Device]] = {
    "cpu": lambda i: Device(f"cpu({i})"),
    "cpu_pinned": lambda i: Device(f"cpu_pinned({i})"),
    "gpu": _CudaDevice,
}
_devices: dict[Context, Device] = {}
_devices_lock = threading.Lock()
_current = threading.local()


def register_device(device_type: str, factory: Callable[[int], Device]) -> None:
    """Make ``Context(device_type, i)`` a context whose device is ``factory(i)``, made on first use.

    Raises ContextError if the type is taken by another factory.
    """
    if _factories.setdefault(device_type, factory) is not factory:
        raise ContextError(f"register_device: the device type {device_type!r} exists already")


class Context:
    """A device by type and number: ``Context('cpu', 1)``, or a copy of another context.

    Raises ContextError for an unknown type and a number that is not an integer >= 0.
    """

    __slots__ = ("device_type", "device_id", "_device")
    device_type: str
    device_id: int

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        if isinstance(device_type, Context):
            device_id, device_type = device_type.device_id, device_type.device_type
        if not isinstance(device_type, str) or device_type not in _factories:
            raise ContextError(
                f"Context: the device type must be a registered one, but it is {device_type!r}"
                + near_miss(str(device_type), _factories)
            )
        try:
            number = operator.index(device_id)
        except TypeError:
            number = -1
        if number < 0 or isinstance(device_id, bool):
            raise ContextError(f"Context: the device number must be an integer >= 0, but it is {device_id!r}")
        self.device_type = device_type
        self.device_id = number
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device behind this context; contexts that are equal share it.

        Raises BackendUnavailableError, with the reason, for a GPU that cannot be used.
        """
        if self._device is None:
            with _devices_lock:
                if self not in _devices:
                    _devices[self] = _factories[self.device_type](self.device_id)
                self._device = _devices[self]
        return self._device

    @property
    def device_typeid(self) -> int:
        """The number of the device type in MXNet's files; 0 for a type that it has not."""
        return {"cpu": 1, "gpu": 2, "cpu_pinned": 3}.get(self.device_type, 0)

    @property
    def xp(self) -> Any:
        """The array namespace: numpy, cupy or that of a registered device."""
        return self.device.xp

    @property
    def alignment(self) -> int:
        """Bytes to whose multiples arrays are placed."""
        return self.device.alignment

    def allocate(self, nbytes: int, role: str, zero: bool = False) -> Array:
        """A flat uint8 array of exactly ``nbytes`` bytes, aligned; see `Device.allocate`."""
        return self.device.allocate(nbytes, role, zero)

    def view(self, buffer: Array, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array inside a flat uint8 buffer; see `Device.view`."""
        return self.device.view(buffer, offset, shape, dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any, role: str, zero: bool = False) -> Array:
        """A new C-contiguous array with arbitrary values, zeros when asked."""
        nbytes, device = math.prod(shape) * numpy.dtype(dtype).itemsize, self.device
        return device.view(device.allocate(nbytes, role, zero), 0, shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any, role: str) -> Array:
        """A new C-contiguous array of zeros."""
        return self.empty(shape, dtype, role, zero=True)

    def set_allocator(self, allocator: Allocator | None) -> Allocator | None:
        """Take memory from ``allocator(nbytes, role)`` from now on (None: own memory); gives the last one."""
        device = self.device
        former, device.allocator = device.allocator, allocator
        return former

    @contextlib.contextmanager
    def allocator(self, allocator: Allocator | None) -> Iterator[None]:
        """Take memory from ``allocator`` inside the block."""
        former = self.set_allocator(allocator)
        try:
            yield
        finally:
            self.set_allocator(former)

    def from_host(self, array: numpy.ndarray[Any, Any], out: Array) -> None:
        """Copy a NumPy array into an array of this context; see `Device.from_host`."""
        self.device.from_host(array, out)

    def to_host(self, array: Array) -> numpy.ndarray[Any, Any]:
        """The values of an array of this context as a NumPy array."""
        return self.device.to_host(array)

    def copy(self, dst: Array, src: Array) -> None:
        """Copy between two arrays of this context; casts."""
        self.device.copy(dst, src)

    def owns(self, array: object) -> bool:
        """Whether an array lies on this context's device (all cpu contexts share host memory)."""
        return self.device.owns(array)

    def synchronize(self) -> None:
        """Wait until everything that was queued on this context has run."""
        self.device.synchronize()

    def enter(self) -> AbstractContextManager[object]:
        """Work inside runs on this context, in order with what the caller queues; see `Device.enter`."""
        return self.device.enter()

    def __enter__(self) -> Context:
        _current.__dict__.setdefault("stack", []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.stack.pop()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return (self.device_type, self.device_id) == (other.device_type, other.device_id)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __str__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[Context], tuple[str, int]]:
        return Context, (self.device_type, self.device_id)


def cpu(device_id: int = 0) -> Context:
    """Host memory and NumPy; other numbers are further replicas on the same memory."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Host memory under MXNet's name for pages that a GPU may read; here plain memory."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """A CUDA device through CuPy. Nothing is imported or opened before it is first used."""
    return Context("gpu", device_id)


def current_context() -> Context:
    """The context of the innermost ``with context:`` of this thread, else ``cpu(0)``."""
    stack = _current.__dict__.get("stack")
    return stack[-1] if stack else Context("cpu", 0)


def num_gpus() -> int:
    """How many GPUs can be used; 0 where CuPy, a driver or a device is missing."""
    return len(_usable_gpus()[0])


def context_of(array: object) -> Context:
    """The context on which an array lies; ``cpu(0)`` for NumPy arrays.

    Raises ContextError for anything that is no array of a known device.
    """
    if isinstance(array, numpy.ndarray):
        return Context("cpu", 0)
    for context, device in list(_devices.items()):
        if device.owns(array):
            return context
    if type(array).__module__.partition(".")[0] == "cupy":
        return Context("gpu", array.device.id)  # type: ignore[attr-defined]
    known = ", ".join(_factories)
    raise ContextError(f"a {type(array).__name__} is not an array of any known device ({known})")


def namespace(array: object) -> Any:
    """The module that computes with an array: numpy, cupy or that of a registered device."""
    return numpy if isinstance(array, numpy.ndarray) else context_of(array).xp


def asnumpy(array: Any) -> numpy.ndarray[Any, Any]:
    """The values of an array of any device as a NumPy array (one that is passes); also sequences, numbers."""
    if isinstance(array, numpy.ndarray):
        return array if type(array) is numpy.ndarray else array.view(numpy.ndarray)
    if isinstance(array, (list, tuple, int, float, numpy.generic)):
        return numpy.asarray(array)
    return context_of(array).to_host(array)


def check_numbers(who: str, array: Any) -> None:
    """Refuse what a cast to real numbers would spoil (TypeInferenceError) and what is no array (ContextError)."""
    context_of(array)
    kind = numpy.dtype(array.dtype)
    if kind.kind in "OSUMmc" or kind.type is numpy.void:
        raise TypeInferenceError(f"{who} must hold real numbers, but its type is {kind}")


def copyto(dst: Array, src: Any) -> None:
    """Copy ``src`` (an array of any device, a sequence, a number) into ``dst``; types are cast.

    Raises ShapeError unless both have the same shape, TypeInferenceError for what is not real numbers,
    ContextError where ``dst`` cannot be written.
    """
    target = context_of(dst)
    if isinstance(src, (list, tuple, int, float, numpy.generic)):
        try:
            src = numpy.asarray(src)
        except ValueError:
            raise ShapeError("copyto: the rows of the nested sequence must have equal lengths") from None
    elif isinstance(src, numpy.ndarray):
        src = asnumpy(src)  # without what a subclass does its own way
    source = context_of(src)
    if dst.shape != src.shape:
        raise ShapeError(f"copyto: the source must have the shape {dst.shape}, but it has {src.shape}")
    check_numbers("copyto: the source", src)
    if isinstance(dst, numpy.ndarray) and not dst.flags.writeable:
        raise ContextError(f"copyto: the destination {dst.dtype} {dst.shape} is read-only")
    if target.owns(src):
        target.copy(dst, src)
    else:
        target.from_host(source.to_host(src), dst)


def brought(array: Array, context: Context, role: str) -> Array:
    """``array`` itself where it lies on the device of ``context``, else a copy there."""
    if context.owns(array):
        return array
    copy = context.empty(tuple(array.shape), array.dtype, role)
    copyto(copy, array)
    return copy


def add_to(total: Array, part: Array) -> None:
    """``total += part``, an array of the same shape on any device; runs on that of ``total``."""
    context = context_of(total)
    part = brought(part, context, "gradient")
    with context.enter():
        context.xp.add(total, part, out=total)
