"""NDArray: MXNet's array over a plain one, whose memory it shares.

On host memory an NDArray is a `numpy.ndarray` whose Python operators and methods follow MXNet's rules: an element has
the shape (1,), comparisons give 0 and 1 in the type of their operands, numbers take the array's type, a slice in one
piece is a view and any other is a copy. On other devices it holds the device's array (not run on a card yet). NumPy's
functions see the plain values and give plain arrays.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from ...attribute_text import read_dtype
from ...context import Context, asnumpy, context_of, copyto, cpu
from ...errors import ArgumentError, IndexRangeError, ShapeError
from .imperative import call_of, compute, context_for, sorted_out
from .refused import REFUSED_METHODS

_HOST = cpu(0)


def wrap(array: Any, context: Context | None = None) -> Any:
    """An NDArray over a plain array, which is not copied; None and NDArrays pass."""
    if array is None or isinstance(array, NDArray):
        return array
    if isinstance(array, numpy.ndarray):
        view = array.view(HostNDArray)
        if context is not None:
            view._context = context
        return view
    return DeviceNDArray(array, context or context_of(array))


def unwrap(value: Any) -> Any:
    """The plain array under an NDArray; lists, tuples and dicts of them item by item; anything else as it is."""
    if isinstance(value, NDArray):
        return value._raw
    if type(value) in (list, tuple):
        return type(value)(map(unwrap, value))
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    return value


def wrap_all(value: Any) -> Any:
    """Plain arrays, also those in lists, tuples and dicts, as NDArrays; anything else as it is."""
    if type(value) in (list, tuple):
        return type(value)(map(wrap_all, value))
    if type(value) is dict:
        return {key: wrap_all(item) for key, item in value.items()}
    return wrap(value) if is_array(value) else value


def is_array(value: Any) -> bool:
    """Whether a value is an NDArray or a plain array."""
    return isinstance(value, NDArray | numpy.ndarray) or (hasattr(value, "shape") and hasattr(value, "__array_ufunc__")
                                                          and not isinstance(value, numpy.generic))  # fmt: skip


def apply(name: str, *positional: Any, **keywords: Any) -> Any:
    """Operator ``name`` at once on arrays: one NDArray, or a list of them where it has several outputs.

    ``out``: the array (or list) to write to; ``ctx``: where an operator without inputs runs.
    """
    out, ctx = keywords.pop("out", None), keywords.pop("ctx", None)
    inputs, attributes = sorted_out(name, positional, keywords, is_array)
    return _apply_to(name, inputs, attributes, out, ctx)


def _apply_to(
    name: str, inputs: Sequence[Any], attributes: Mapping[str, Any], out: Any, ctx: Context | None = None
) -> Any:
    context = context_for(inputs, ctx)
    targets = [] if out is None else list(out) if isinstance(out, list | tuple) else [out]
    made = compute(name, [unwrap(array) for array in inputs], attributes, context, [unwrap(array) for array in targets])
    if out is not None:
        return out
    if len(made) == 1:
        return wrap(made[0], context)
    return [wrap(array, context) for array in made]


def _scalar(value: Any) -> bool:
    return type(value) in (int, float) or isinstance(value, numbers.Real | numpy.generic)


def binary(name: str, left: Any, right: Any, reverse: str = "", out: Any = None) -> Any:
    """``broadcast_<name>`` of two arrays, or ``_<name>_scalar`` of an array and a number.

    ``reverse``: the operator for a number on the left where the order matters. TypeError for anything else.
    """
    if isinstance(left, NDArray) and isinstance(right, NDArray):
        return _apply_to(f"broadcast_{name}", (left, right), {}, out)
    for one, other, operator in ((left, right, f"_{name}_scalar"), (right, left, reverse or f"_{name}_scalar")):
        if _scalar(other) and is_array(one):
            number = other.item() if isinstance(other, numpy.generic) else other
            if name not in _COMPARISONS and unwrap(one).dtype.kind in "iub":
                number = int(number)  # the number takes the array's type first
            return _apply_to(operator, (one,), {"scalar": float(number) if isinstance(number, bool) else number}, out)
    if is_array(left) and is_array(right):
        return _apply_to(f"broadcast_{name}", (left, right), {}, out)
    kinds = " and ".join(type(value).__name__ for value in (left, right))
    raise ArgumentError(f"nd {name}: operands must be NDArrays and numbers, but they are {kinds}; use nd.array(…)")


_COMPARISONS = frozenset("equal not_equal greater greater_equal lesser lesser_equal".split())


def _operator(name: str, swapped: bool = False, reverse: str = "") -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return binary(name, other, self, reverse) if swapped else binary(name, self, other, reverse)

    return method


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return binary(name, self, other, out=self)

    return method


def _equality(name: str, of_none: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return of_none if other is None else binary(name, self, other)

    return method


def fluent(name: str, operator: str = "") -> Callable[..., Any]:
    """A method that applies an operator with the array as its first input."""

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        return apply(operator or name, self, *args, **keywords)

    method.__name__, method.__doc__ = name, f"Operator ``{operator or name}`` of this array."
    return method


_METHODS = (
    "abs arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort broadcast_axes "
    "broadcast_like cbrt ceil clip cos cosh degrees depth_to_space diag exp expand_dims expm1 fix flatten flip floor "
    "log log10 log1p log2 log_softmax max mean min nanprod nansum norm one_hot ones_like pad pick prod radians rcbrt "
    "reciprocal relu repeat reshape_like rint round rsqrt shape_array sigmoid sign sin sinh size_array slice "
    "slice_axis slice_like softmax softmin sort space_to_depth split sqrt square squeeze sum swapaxes take tan tanh "
    "tile topk trunc zeros_like"
).split()


class NDArray:
    """An array with MXNet's rules; `wrap` makes one of a plain array, ``nd.array`` one with memory of its own."""

    __slots__ = ()
    __array_priority__ = 1000.0
    _context: Context
    _raw: Any
    stype = "default"

    # --- what it is --------------------------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The context on which the array lies."""
        return self._context

    ctx = context

    @property
    def dtype(self) -> Any:
        """The element type as a NumPy type class, as MXNet has it."""
        return self._raw.dtype.type

    @property
    def writable(self) -> bool:
        """Whether the array can be written."""
        return bool(getattr(self._raw.flags, "writeable", True))

    @property
    def T(self) -> Any:
        """A copy with the axes in reverse order."""
        return apply("transpose", self)

    def __repr__(self) -> str:
        size = "x".join(map(str, self._raw.shape))
        return f"\n{asnumpy(self._raw)!s}\n<NDArray {size} @{self._context}>"

    __str__ = __repr__
    __hash__ = object.__hash__

    def __len__(self) -> int:
        return int(self._raw.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, item: Any) -> bool:
        return any(bool(one == item) for one in self)

    def __bool__(self) -> bool:
        if self._raw.size > 1:
            raise ShapeError(
                f"the truth of an NDArray of shape {self._raw.shape} is not one value: take one element, or a sum"
            )
        return bool(self._raw.size) and bool(self.asscalar())

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        value = self.asscalar()
        if self._raw.dtype.kind not in "iu":
            raise ArgumentError(f"an index must be a whole number, but this NDArray holds {self._raw.dtype}")
        return int(value)

    # --- to the host, to other devices, to other types ---------------------------------------------------------

    def asnumpy(self) -> numpy.ndarray[Any, Any]:
        """The values as a NumPy array of their own."""
        return numpy.array(asnumpy(self._raw), order="C")

    def asscalar(self) -> Any:
        """The one value as a NumPy number. ShapeError (a ValueError) where there are more or none."""
        if self._raw.size != 1:
            raise ShapeError(f"asscalar needs an array of one element, but the shape is {self._raw.shape}")
        return asnumpy(self._raw).reshape(-1)[0]

    def copy(self, order: Any = None) -> Any:
        """A copy on the same context."""
        return self.copyto(self._context)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def copyto(self, other: Any) -> Any:
        """Copy into another NDArray of this shape (types are cast), or to a context as a new one; gives that one.

        Raises ShapeError, and ArgumentError for anything that is neither.
        """
        if isinstance(other, Context):
            target = new(self._raw.shape, self._raw.dtype, other)
        elif is_array(other):
            target = other
            if unwrap(other) is self._raw or target is self:
                warnings.warn("copyto: an NDArray is copied to itself; nothing is done", RuntimeWarning, stacklevel=2)
                return False
        else:
            raise ArgumentError(f"copyto needs an NDArray or a Context, but was given {other!r}")
        copyto(unwrap(target), self._raw)
        return target

    def as_in_context(self, context: Context) -> Any:
        """The array itself if it lies there, else a copy on ``context``."""
        return self if Context(context) == self._context else self.copyto(Context(context))

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """The values as another type; without ``copy`` the array itself if it is of that type."""
        kind = read_dtype(dtype, "astype")
        if not copy and kind == self._raw.dtype:
            return self
        target = new(self._raw.shape, kind, self._context)
        with numpy.errstate(invalid="ignore"):
            self._context.copy(unwrap(target), self._raw)
        return target

    def tostype(self, stype: str) -> Any:
        """The array itself: only dense storage ('default') is there. Raises ArgumentError for other kinds."""
        if stype != "default":
            raise ArgumentError(f"tostype: arrays are dense (stype 'default'), but {stype!r} was asked for")
        return self

    def wait_to_read(self) -> None:
        """Wait until the values are there."""
        self._context.synchronize()

    wait_to_write = wait_to_read

    def detach(self) -> Any:
        """Another NDArray over the same memory."""
        return wrap(self._raw, self._context)

    def as_nd_ndarray(self) -> Any:
        """The array itself."""
        return self

    def __reduce__(self) -> Any:
        return _restored, (self.asnumpy(), self._context.device_type, self._context.device_id)

    __reduce_ex__ = lambda self, protocol: self.__reduce__()  # noqa: E731

    # --- shapes ------------------------------------------------------------------------------------------------

    def reshape(self, *shape: Any, **keywords: Any) -> Any:
        """A view of the same memory under another shape, with MXNet's codes 0, -1, -2, -3 and -4.

        ``reverse=True`` reads the codes from the right. Raises ShapeError where sizes differ.
        """
        dims = keywords.pop("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape)
        reverse = bool(keywords.pop("reverse", False))
        if keywords:
            raise ArgumentError(f"reshape has no argument '{next(iter(keywords))}'; there are: shape, reverse")
        dims = tuple(int(dim) for dim in ((dims,) if isinstance(dims, int) else dims))
        found: Any = call_of("Reshape", [self._raw], {"shape": dims, "reverse": reverse}, self._context).outputs[0][0]
        return wrap(self._raw.reshape(found), self._context)

    def transpose(self, *axes: Any, **keywords: Any) -> Any:
        """A copy with the axes in the order given, as a tuple or one by one; reversed without any."""
        order = keywords.get("axes", axes[0] if len(axes) == 1 and isinstance(axes[0], list | tuple) else axes)
        return apply("transpose", self, **({"axes": tuple(order)} if order else {}))

    def broadcast_to(self, shape: Any) -> Any:
        """A copy repeated along axes of size 1, missing ones in front; 0 leaves a dim. ShapeError if it cannot be."""
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        front = len(dims) - self._raw.ndim
        source = self.reshape((1,) * front + self._raw.shape) if front > 0 else self
        return apply("broadcast_to", source, shape=dims)

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
        """The array cut along ``axis`` before every one of the indices, or in so many equal sections."""
        sections = indices_or_sections if isinstance(indices_or_sections, int) else 0
        indices = () if sections else (0, *indices_or_sections)
        return apply("_split_v2", self, indices=indices, sections=sections, axis=axis, squeeze_axis=squeeze_axis)

    # --- elements ----------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        plain, basic = self._key(key)
        try:
            found = self._raw[plain]
        except IndexError as error:
            raise IndexRangeError(f"an NDArray of shape {tuple(self._raw.shape)}: {error}") from None
        if not found.ndim:
            found = found.reshape(1)
        if not basic or not found.flags.c_contiguous:
            found = found.copy()
        return wrap(found, self._context)

    def __setitem__(self, key: Any, value: Any) -> None:
        plain, given = self._key(key)[0], self._value(value)
        try:
            with numpy.errstate(invalid="ignore"):
                self._raw[plain] = given
        except IndexError as error:
            raise IndexRangeError(f"an NDArray of shape {tuple(self._raw.shape)}: {error}") from None
        except (TypeError, ValueError) as error:
            shape = tuple(self._raw.shape)
            raise ShapeError(f"assigning to elements of an NDArray of shape {shape}: {error}") from None

    def _key(self, key: Any) -> tuple[tuple[Any, ...], bool]:
        """The index as NumPy wants it, so that it gives an array; whether it takes no index arrays."""
        parts = key if isinstance(key, tuple) else (key,)
        if not self._raw.ndim and parts == (slice(None),):
            parts = ()
        basic, found = True, []
        for part in parts:
            if isinstance(part, list | NDArray | numpy.ndarray) or is_array(part):
                basic = False
                part = self._places(part)
            elif isinstance(part, bool | numpy.bool_):
                part = int(part)
            elif not (part is None or part is Ellipsis or isinstance(part, int | numpy.integer | slice)):
                raise ArgumentError(
                    "an NDArray is indexed by whole numbers, slices, None, lists and arrays of these, "
                    f"but not by {part!r}"
                )
            found.append(part)
        if basic and not any(part is Ellipsis for part in found):
            found.append(Ellipsis)
        return tuple(found), basic

    def _places(self, part: Any) -> Any:
        """An index array: whole numbers, whatever their type was."""
        return numpy.asarray(asnumpy(unwrap(part))).astype(numpy.int64)

    def _value(self, value: Any) -> Any:
        """What is assigned, as the plain array can take it: numbers that its type has not are wrapped, as in C."""
        if _scalar(value) and self._raw.dtype.kind in "iu":
            with numpy.errstate(invalid="ignore"):
                return numpy.asarray(value).astype(self._raw.dtype)[()]
        return unwrap(value)

    def slice_assign(self, rhs: Any, begin: Any, end: Any, step: Any = ()) -> Any:
        """A copy whose elements from ``begin`` to ``end`` are those of ``rhs``."""
        return apply("_slice_assign", self, rhs, begin=begin, end=end, step=step or ())

    def slice_assign_scalar(self, begin: Any, end: Any, step: Any = (), scalar: float = 0.0) -> Any:
        """A copy whose elements from ``begin`` to ``end`` are ``scalar``."""
        return apply("_slice_assign_scalar", self, scalar=scalar, begin=begin, end=end, step=step or ())

    def _slice(self, start: int, stop: int) -> Any:
        return self[start:stop]

    def _at(self, idx: int) -> Any:
        return self[idx]

    at = _at

    def _full(self, value: float) -> Any:
        self[:] = value
        return self

    def _sync_copyfrom(self, source: Any) -> None:
        copyto(self._raw, unwrap(source))

    # --- arithmetic --------------------------------------------------------------------------------------------

    __add__ = __radd__ = _operator("plus")
    __sub__, __rsub__ = _operator("minus"), _operator("minus", True, "_rminus_scalar")
    __mul__ = __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True, "_rdiv_scalar")
    __mod__, __rmod__ = _operator("mod"), _operator("mod", True, "_rmod_scalar")
    __pow__, __rpow__ = _operator("power"), _operator("power", True, "_rpower_scalar")
    __iadd__, __isub__, __imul__ = _in_place("plus"), _in_place("minus"), _in_place("mul")
    __itruediv__, __imod__, __ipow__ = _in_place("div"), _in_place("mod"), _in_place("power")
    __eq__, __ne__ = _equality("equal", False), _equality("not_equal", True)
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __lt__, __le__ = _operator("lesser"), _operator("lesser_equal")

    def __neg__(self) -> Any:
        return apply("negative", self)

    def __abs__(self) -> Any:
        return apply("abs", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """NumPy's functions work on the plain values; a NumPy number beside an NDArray is a number."""
        if method == "__call__" and len(inputs) == 2 and not keywords and _scalar(inputs[0]) and ufunc in _SWAPPED:
            return getattr(inputs[1], _SWAPPED[ufunc])(inputs[0])
        return getattr(ufunc, method)(*map(unwrap, inputs), **unwrap(keywords))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return func(*_plain(args), **_plain(dict(kwargs)))

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED_METHODS:
            raise AttributeError(f"NDArray.{name} is not here: {REFUSED_METHODS[name]}")
        raise AttributeError(f"'NDArray' object has no attribute '{name}'")


def _plain(value: Any) -> Any:
    """As `unwrap`, at any depth, for the arguments of NumPy's functions."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return unwrap({key: _plain(item) for key, item in value.items()} if type(value) is dict else value)


_SWAPPED = {
    numpy.add: "__radd__", numpy.subtract: "__rsub__", numpy.multiply: "__rmul__", numpy.true_divide: "__rtruediv__",
    numpy.remainder: "__rmod__", numpy.power: "__rpow__", numpy.equal: "__eq__", numpy.not_equal: "__ne__",
    numpy.greater: "__lt__", numpy.greater_equal: "__le__", numpy.less: "__gt__", numpy.less_equal: "__ge__",
}  # fmt: skip

for _name in _METHODS:
    setattr(NDArray, _name, fluent(_name))


class HostNDArray(NDArray, numpy.ndarray):  # type: ignore[misc]
    """An NDArray on host memory: a `numpy.ndarray` that shares the memory it was made of."""

    _context = _HOST

    def __array_finalize__(self, parent: Any) -> None:
        context = getattr(parent, "_context", None)
        if context is not None and context is not _HOST:
            self._context = context

    @property
    def _raw(self) -> Any:
        return self.view(numpy.ndarray)


class DeviceNDArray(NDArray):
    """An NDArray that holds an array of another device."""

    __slots__ = ("__weakref__", "_context", "_raw")

    def __init__(self, array: Any, context: Context) -> None:
        self._raw, self._context = array, context

    shape = property(lambda self: tuple(self._raw.shape), doc="The dims.")
    size = property(lambda self: int(self._raw.size), doc="The number of elements.")
    ndim = property(lambda self: int(self._raw.ndim), doc="The number of dims.")

    def asnumpy(self) -> numpy.ndarray[Any, Any]:
        """The values as a NumPy array of their own."""
        return numpy.require(asnumpy(self._raw), requirements="C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        return self.asnumpy().astype(dtype or self._raw.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        with self._context.enter():
            return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        with self._context.enter():
            super().__setitem__(key, value)

    def _places(self, part: Any) -> Any:
        return unwrap(from_host(super()._places(part), self._context))

    def _value(self, value: Any) -> Any:
        plain = super()._value(value)
        if _scalar(plain):
            return plain
        if not self._context.owns(plain):
            plain = unwrap(from_host(numpy.asarray(asnumpy(plain)), self._context))
        return plain.astype(self._raw.dtype) if plain.dtype != self._raw.dtype else plain


def new(shape: Sequence[int], dtype: Any, context: Context, zero: bool = False) -> Any:
    """A new NDArray with arbitrary values, zeros when asked. BackendUnavailableError for a GPU that cannot be used."""
    dims = tuple(shape)
    if context.device_type.startswith("cpu"):
        return wrap((numpy.zeros if zero else numpy.empty)(dims, dtype), context)
    return wrap(context.empty(dims, dtype, "input", zero=zero), context)


def from_host(array: numpy.ndarray[Any, Any], context: Context) -> Any:
    """A copy of a NumPy array as an NDArray on ``context``."""
    made = new(array.shape, array.dtype, context)
    copyto(unwrap(made), array)
    return made


def _restored(array: numpy.ndarray[Any, Any], device_type: str, device_id: int) -> Any:
    return from_host(array, Context(device_type, device_id))


