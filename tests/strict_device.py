"""A device of the tests that behaves like a GPU where a GPU differs from host memory.

Context type ``strict`` (``Context('strict', i)`` after `strict(i)`). Its arrays

* refuse to mix with NumPy arrays and functions, to be iterated, and to become Python numbers;
* compute late: every operation is queued on the current stream and runs when the host waits, so a value
  that is looked at too early is poison;
* notice races: an array that one stream has written may be used on another only if that one waits for it;
* offer only what CuPy 14 offers: functions and keywords that it lacks are refused by name.

``device.log`` records allocations, copies, waits, temporaries and synchronisations, in order.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from arrayexec.context import Context, Device, register_device


class HostMixingError(TypeError):
    """A device array met the host without a copy or a wait that was asked for."""


class UnsupportedError(TypeError):
    """A function or keyword that CuPy 14 does not have, or whose result's shape depends on values."""


class RaceError(RuntimeError):
    """A stream uses an array that another stream may still be working on."""


# Taken from CuPy 14.2 beside NumPy 2.4: names and keywords that only NumPy has.
MISSING = set(
    "asmatrix block bmat einsum_path errstate flexible frompyfunc geomspace geterr histogram_bin_edges insert "
    "longdouble matrix matvec memmap nanpercentile nanquantile ndenumerate nditer nested_iters object_ polydiv "
    "polyint rec recarray seterr spacing strings unstack vecdot vecmat void linalg.diagonal linalg.matrix_norm "
    "linalg.multi_dot linalg.outer linalg.svdvals linalg.tensordot linalg.trace linalg.vecdot linalg.vector_norm".split()
)
MISSING_KEYWORDS = {
    **{name: {"initial", "where"} for name in "sum prod max min amax amin nansum nanprod nanmax nanmin".split()},
    **{name: {"where"} for name in ("all", "any", "mean", "nanmean")},
    **{name: {"where", "correction", "mean"} for name in ("var", "std")},
    "take": {"mode"},
    "einsum": {"out", "casting", "order"},
    "argsort": {"order", "stable"},
    "sort": {"order", "stable"},
    "argpartition": {"kind", "order"},
    "partition": {"kind", "order"},
    "count_nonzero": {"keepdims"},
    "isin": {"kind"},
    "unique": {"sorted"},
    "clip": {"max", "min", "where", "casting", "dtype"},
    "indices": {"sparse"},
}
UFUNC_METHODS = {
    "reduce": {"add", "multiply"},
    "accumulate": {"add", "multiply"},
    "reduceat": {"add"},
    "at": {"add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"},
    "outer": {"add", "subtract", "multiply", "divide", "maximum", "minimum"},
}
UFUNC_KEYWORDS = {"matmul": {"out", "axes", "axis", "keepdims", "casting", "dtype", "order"}}
VALUE_SHAPED = {"nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "union1d", "intersect1d", "setdiff1d"}
FIRST_ARGUMENT_IS_WRITTEN = {"copyto", "put", "putmask", "place", "put_along_axis", "fill_diagonal"}
VIEWS = set(
    "reshape transpose swapaxes moveaxis rollaxis expand_dims squeeze ravel broadcast_to broadcast_arrays diagonal split "
    "array_split hsplit vsplit dsplit as_strided sliding_window_view atleast_1d atleast_2d atleast_3d flip real imag "
    "permute_dims matrix_transpose rot90 flipud fliplr".split()
)
METADATA = {"result_type", "can_cast", "promote_types", "broadcast_shapes", "ndim", "shape", "size", "iscomplexobj", "isrealobj"}


class Stream:
    """A queue of work that runs in order; ``clock`` says how far it has waited for the other streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = 0
        self.clock: dict[Stream, int] = {}

    def record(self) -> tuple[Stream, int, dict[Stream, int]]:
        """An event: everything that is queued here now, and what it has waited for."""
        return self, self.position, dict(self.clock)

    def wait(self, event: tuple[Stream, int, dict[Stream, int]]) -> None:
        """Later work here comes after the event."""
        stream, position, clock = event
        for other, seen in (*clock.items(), (stream, position)):
            self.clock[other] = max(self.clock.get(other, 0), seen)


class Storage:
    """Memory that arrays share, with who has touched it last."""

    def __init__(self) -> None:
        self.written: tuple[Stream, int] | None = None
        self.read: dict[Stream, int] = {}


class StrictDevice(Device):
    """The device behind ``Context('strict', i)``."""

    alignment = 256

    def __init__(self, device_id: int) -> None:
        super().__init__(f"strict({device_id})")
        self.xp = StrictNamespace(self, np, "")
        self.log: list[tuple[Any, ...]] = []
        self.stream = Stream(f"{self.name} context")
        self.default_stream = Stream(f"{self.name} default")
        self._lock = threading.RLock()
        self._queue: list[tuple[Callable[[], object], str]] = []
        self._host_clock: dict[Stream, int] = {}
        self._current = threading.local()

    # what the engine uses

    def _allocate(self, nbytes: int, zero: bool) -> StrictArray:
        raw = super()._allocate(nbytes, zero)
        if not zero:
            raw.fill(0xFF)  # NaN, -1: nobody may rely on what was here
        self.log.append(("allocate", nbytes))
        return StrictArray(self, raw, Storage())

    def address(self, array: StrictArray) -> int:
        return int(array._values.ctypes.data)

    def from_host(self, array: np.ndarray, out: StrictArray) -> None:
        staged = np.array(array, out.dtype)
        if staged.shape != out.shape:
            raise ValueError(f"from_host: {staged.shape} into {out.shape}")
        with self.enter():
            self.log.append(("from_host", out.shape))
            self.submit(lambda: np.copyto(out._values, staged), [], [out], "from_host")

    def to_host(self, array: StrictArray) -> np.ndarray:
        with self.enter():
            self.log.append(("to_host", array.shape))
            self.submit(lambda: None, [array], [], "to_host")
            self.run()
        return array._values.copy()

    def copy(self, dst: StrictArray, src: StrictArray) -> None:
        with self.enter():
            self.log.append(("copy", dst.shape))
            self.xp.copyto(dst, src, casting="unsafe")

    def owns(self, array: object) -> bool:
        return isinstance(array, StrictArray) and array.device is self

    def synchronize(self) -> None:
        self.log.append(("synchronize",))
        self.run()

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        caller = self.current_stream
        if caller is self.stream:
            yield
            return
        self.log.append(("wait", "context for caller"))
        self.stream.wait(caller.record())
        try:
            with self.use(self.stream):
                yield
        finally:
            self.log.append(("wait", "caller for context"))
            caller.wait(self.stream.record())

    # what the tests use

    @property
    def current_stream(self) -> Stream:
        """The stream on which this thread's work is queued."""
        return getattr(self._current, "stream", self.default_stream)

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[Stream]:
        """Queue this thread's work on another stream."""
        former = self.current_stream
        self._current.stream = stream
        try:
            yield stream
        finally:
            self._current.stream = former

    def count(self, kind: str) -> int:
        """How many entries of a kind the log has."""
        return sum(entry[0] == kind for entry in self.log)

    @property
    def pending(self) -> int:
        """Operations that are queued and have not run."""
        return len(self._queue)

    # the machine itself

    def submit(self, work: Callable[[], object], reads: list[StrictArray], writes: list[StrictArray], what: str) -> None:
        """Queue work on the current stream after checking that nothing it touches is in use elsewhere."""
        with self._lock:
            stream = self.current_stream
            for array in (*reads, *writes):
                if array.device is not self:
                    raise HostMixingError(f"{what}: arrays of {self.name} and {array.device.name} are mixed")
                if array._storage.written:
                    self._check_order(stream, *array._storage.written, what)
            for array in writes:
                for other, position in array._storage.read.items():
                    self._check_order(stream, other, position, what)
            stream.position += 1
            for array in reads:
                array._storage.read[stream] = stream.position
            for array in writes:
                array._storage.written = (stream, stream.position)
                array._storage.read = {}
            frame = next(
                (f for f in reversed(traceback.extract_stack(limit=12)) if f.filename != __file__ and f.name != "enter"), None
            )
            self._queue.append((work, f"{what}, queued at {frame.filename}:{frame.lineno}" if frame else what))

    def _check_order(self, stream: Stream, other: Stream, position: int, what: str) -> None:
        waited = max(stream.clock.get(other, 0), self._host_clock.get(other, 0))
        if other is not stream and waited < position:
            raise RaceError(f"{what} on stream '{stream.name}' touches an array that '{other.name}' may still be using")

    def run(self) -> None:
        """Run all that is queued; the host has then waited for every stream."""
        with self._lock:
            # The order of queueing is a legal order: a wait only refers to what was queued before it.
            queue, self._queue = self._queue, []
            streams = {self.stream, self.default_stream, self.current_stream}
            for work, where in queue:
                try:
                    with np.errstate(all="ignore"):  # a device has no floating point warnings
                        work()
                except Exception as error:
                    error.add_note(where)
                    raise
            for stream in streams:
                for other, position in (*stream.clock.items(), (stream, stream.position)):
                    self._host_clock[other] = max(self._host_clock.get(other, 0), position)

    def adopt(self, values: np.ndarray, name: str) -> StrictArray:
        """A new array for a result that no ``out=`` was given for."""
        self.log.append(("temporary", name, values.shape, values.nbytes))
        block = np.full(values.nbytes, 0xFF, np.uint8)
        return StrictArray(self, block.view(values.dtype).reshape(values.shape), Storage())


def _arrays(value: object) -> Iterator[StrictArray]:
    """The device arrays in an argument; host arrays are refused."""
    if isinstance(value, StrictArray):
        yield value
    elif isinstance(value, np.ndarray):
        raise HostMixingError(f"a NumPy array {value.dtype} {value.shape} was given to a device function")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, slice):
        yield from _arrays((value.start, value.stop, value.step))


def _replace(value: Any, change: Callable[[StrictArray], Any]) -> Any:
    """The argument with each device array changed."""
    if isinstance(value, StrictArray):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _replace(item, change) for key, item in value.items()}
    return value


def _values(array: StrictArray) -> np.ndarray:
    return array._values


def _blank(array: StrictArray) -> np.ndarray:
    """Zeros of the array's shape and type without memory: enough to learn the shape of a result."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _identity(array: StrictArray) -> np.ndarray:
    return np.broadcast_to(np.eye(*array.shape[-2:], dtype=array.dtype), array.shape)


class StrictFunction:
    """A NumPy function or ufunc that is queued instead of called."""

    def __init__(self, device: StrictDevice, function: Any, name: str) -> None:
        self._device = device
        self._function = function
        self._name = name

    def __getattr__(self, method: str) -> StrictFunction:
        if not isinstance(self._function, np.ufunc) or method not in UFUNC_METHODS:
            raise AttributeError(method)
        if self._function.__name__ not in UFUNC_METHODS[method]:
            raise UnsupportedError(f"CuPy has no {self._name}.{method}")
        return StrictFunction(self._device, getattr(self._function, method), f"{self._name}.{method}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, device = self._name, self._device
        refused = MISSING_KEYWORDS.get(name.rpartition(".")[2], set()) & set(kwargs)
        if isinstance(self._function, np.ufunc):
            refused = set(kwargs) - UFUNC_KEYWORDS.get(name, {"out", "where", "casting", "dtype"})
        if refused:
            raise UnsupportedError(f"CuPy's {name} has no keyword {', '.join(sorted(refused))}")
        if name in VALUE_SHAPED or (name == "where" and len(args) == 1) or (name == "bincount" and not kwargs.get("minlength")):
            raise UnsupportedError(f"the shape of the result of {name} depends on values: the host would have to wait")
        outs = list(_arrays(kwargs.get("out")))
        if isinstance(self._function, np.ufunc):
            outs += _arrays(args[self._function.nin :])
        arrays = [array for array in _arrays((args, tuple(kwargs.values()))) if not any(array is out for out in outs)]
        if not arrays and not outs:
            return self._without_arrays(args, kwargs)
        if name in METADATA:
            return self._function(*_replace(args, _blank), **_replace(kwargs, _blank))
        function, real = self._function, (_replace(args, _values), _replace(kwargs, _values))
        if name in FIRST_ARGUMENT_IS_WRITTEN or name.endswith(".at"):
            device.submit(lambda: function(*real[0], **real[1]), arrays[1:], arrays[:1], name)
            return None
        if outs:
            device.submit(lambda: function(*real[0], **real[1]), arrays, outs, name)
            return outs[0] if len(outs) == 1 else tuple(outs)
        if name.rpartition(".")[2] in VIEWS:
            viewed = self._as_view(function(*real[0], **real[1]), arrays[0])
            if viewed is not None:
                return viewed
        blank = _identity if name.startswith("linalg.") else _blank
        with np.errstate(all="ignore"):
            model = function(*_replace(args, blank), **_replace(kwargs, blank))
        models = model if isinstance(model, (tuple, list)) else (model,)
        results = [device.adopt(np.asarray(item), name) for item in models]

        def work() -> None:
            found = function(*real[0], **real[1])
            for result, value in zip(results, found if isinstance(found, (tuple, list)) else (found,), strict=True):
                result._values[...] = value

        device.submit(work, arrays, results, name)
        return tuple(results) if isinstance(model, (tuple, list)) else results[0]

    def _without_arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self._function(*args, **kwargs)
        if not isinstance(value, np.ndarray):
            return value
        result = self._device.adopt(value, self._name)
        self._device.submit(lambda: result._values.__setitem__(..., value), [], [result], self._name)
        return result

    def _as_view(self, result: Any, base: StrictArray) -> Any:
        results = result if isinstance(result, (list, tuple)) else (result,)
        if any(item.size and not np.may_share_memory(item, base._values) for item in results):
            return None  # this layout needs a copy
        wrapped = [StrictArray(self._device, item, base._storage) for item in results]
        return tuple(wrapped) if isinstance(result, (list, tuple)) else wrapped[0]


class StrictNamespace:
    """NumPy's names as far as CuPy has them, working on strict arrays."""

    def __init__(self, device: StrictDevice, module: ModuleType, prefix: str) -> None:
        self._device = device
        self._module = module
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in MISSING:
            raise UnsupportedError(f"CuPy has no {path}")
        if path == "random":
            raise UnsupportedError("random numbers come from the bound rng, not from the array namespace")
        if path == "ndarray":
            return StrictArray
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return StrictNamespace(self._device, value, f"{path}.")
        if callable(value) and not isinstance(value, type):
            value = StrictFunction(self._device, value, path)
        setattr(self, name, value)
        return value


def _operator(name: str, swapped: bool = False, inplace: bool = False) -> Callable[..., Any]:
    def method(self: StrictArray, *others: Any) -> Any:
        operands = (*others, self) if swapped else (self, *others)
        return getattr(self.device.xp, name)(*operands, **({"out": self} if inplace else {}))

    return method


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(self.device.xp, name)(self, *args, **kwargs)


def _refused(what: str) -> Callable[..., Any]:
    def method(self: StrictArray, *args: Any, **kwargs: Any) -> Any:
        raise HostMixingError(f"{what} on a device array would make the host wait or copy; use asnumpy or copyto")

    return method


class StrictArray:
    """An array of a strict device: shape and type are known at once, values when the queue has run."""

    def __init__(self, device: StrictDevice, values: np.ndarray, storage: Storage) -> None:
        self.device = device
        self._values = values
        self._storage = storage

    dtype = property(lambda self: self._values.dtype)
    shape = property(lambda self: self._values.shape)
    strides = property(lambda self: self._values.strides)
    ndim = property(lambda self: self._values.ndim)
    size = property(lambda self: self._values.size)
    nbytes = property(lambda self: self._values.nbytes)
    itemsize = property(lambda self: self._values.itemsize)
    flags = property(lambda self: self._values.flags)
    T = property(lambda self: self.transpose())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape} on {self.device.name}>"

    def _view(self, values: np.ndarray) -> StrictArray:
        return StrictArray(self.device, values, self._storage)

    def view(self, dtype: Any) -> StrictArray:
        return self._view(self._values.view(dtype))

    def reshape(self, *shape: Any) -> StrictArray:
        return self.device.xp.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> StrictArray:
        return self._view(self._values.transpose(*axes))

    def astype(self, dtype: Any, copy: bool = True) -> StrictArray:
        if not copy and self.dtype == dtype:
            return self
        result = self.device.adopt(np.empty(self.shape, dtype), "astype")
        self.device.submit(lambda: np.copyto(result._values, self._values, casting="unsafe"), [self], [result], "astype")
        return result

    def fill(self, value: Any) -> None:
        self[...] = value

    def sort(self, axis: int = -1) -> None:
        self.device.submit(lambda: self._values.sort(axis), [self], [self], "sort")

    def flatten(self) -> StrictArray:
        return self.copy().reshape(-1)

    def __getitem__(self, key: Any) -> StrictArray:
        indices = list(_arrays(key))
        parts = key if isinstance(key, tuple) else (key,)
        if any(index.dtype == bool for index in indices):
            raise UnsupportedError("a boolean index gives a shape that depends on values: the host would have to wait")
        if not indices and not any(isinstance(part, list) for part in parts):
            found = self._values[key]
            # a whole index gives a 0-d view here, as on a device, not a number
            return self._view(found if isinstance(found, np.ndarray) else self._values[(*parts, ...)])
        real = _replace(key, _values)
        result = self.device.adopt(_blank(self)[_replace(key, _blank)], "getitem")
        self.device.submit(lambda: np.copyto(result._values, self._values[real]), [self, *indices], [result], "getitem")
        return result

    def __setitem__(self, key: Any, value: Any) -> None:
        indices = list(_arrays(key))
        if isinstance(value, (list, tuple)):
            raise HostMixingError("a host sequence was assigned to a device array")
        values = list(_arrays(value))
        real, given = _replace(key, _values), _replace(value, _values)
        self.device.submit(lambda: self._values.__setitem__(real, given), [*indices, *values], [self], "setitem")

    __array__ = _refused("numpy.asarray()")
    __array_ufunc__ = _refused("a NumPy ufunc")
    __array_function__ = _refused("a NumPy function")
    __float__ = _refused("float()")
    __int__ = _refused("int()")
    __index__ = _refused("an index or int()")
    __bool__ = _refused("bool()")
    __complex__ = _refused("complex()")
    __iter__ = _refused("iteration")
    __contains__ = _refused("'in'")
    item = _refused("item()")
    tolist = _refused("tolist()")
    tobytes = _refused("tobytes()")
    __hash__ = object.__hash__


for _name, _function in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("truediv", "divide"),
    ("floordiv", "floor_divide"),
    ("mod", "remainder"),
    ("pow", "power"),
    ("matmul", "matmul"),
    ("and", "bitwise_and"),
    ("or", "bitwise_or"),
    ("xor", "bitwise_xor"),
    ("lshift", "left_shift"),
    ("rshift", "right_shift"),
):
    setattr(StrictArray, f"__{_name}__", _operator(_function))
    setattr(StrictArray, f"__r{_name}__", _operator(_function, swapped=True))
    setattr(StrictArray, f"__i{_name}__", _operator(_function, inplace=True))
for _name, _function in (
    ("lt", "less"),
    ("le", "less_equal"),
    ("gt", "greater"),
    ("ge", "greater_equal"),
    ("eq", "equal"),
    ("ne", "not_equal"),
    ("neg", "negative"),
    ("pos", "positive"),
    ("abs", "absolute"),
    ("invert", "invert"),
):
    setattr(StrictArray, f"__{_name}__", _operator(_function))
for _name in (
    "sum prod max min mean var std any all argmax argmin argsort cumsum cumprod clip round dot take repeat copy "
    "swapaxes squeeze ravel diagonal trace searchsorted nonzero compress"
).split():
    setattr(StrictArray, _name, _method(_name))


_registered = False


def strict(device_id: int = 0) -> Context:
    """The context of a strict device, its log and queue empty."""
    global _registered
    if not _registered:
        register_device("strict", StrictDevice)
        _registered = True
    context = Context("strict", device_id)
    device: Any = context.device
    device.run()
    device.log.clear()
    return context
