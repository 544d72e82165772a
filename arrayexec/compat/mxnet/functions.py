"""Functions of ``mx.nd`` that are no single operator: making arrays, arithmetic by name, files."""

from __future__ import annotations

import builtins
import math
import operator
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from ...attribute_text import read_dtype
from ...context import Context, asnumpy, current_context
from ...errors import ArgumentError
from .array import NDArray, apply, binary, from_host, is_array, new, unwrap, wrap

Shape = int | Sequence[int]


def _context(ctx: Context | None) -> Context:
    return current_context() if ctx is None else Context(ctx)


def _dims(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | numpy.integer) else tuple(shape)


def _kind(dtype: Any) -> Any:
    return numpy.dtype(numpy.float32) if dtype is None else read_dtype(dtype, "nd")


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> Any:
    """A new array with the values of a sequence, a NumPy array or an NDArray.

    float32 unless ``dtype`` says another type or the source is an NDArray, whose type it keeps.
    """
    plain = unwrap(source_array)
    kind = plain.dtype if dtype is None and isinstance(source_array, NDArray) else _kind(dtype)
    if isinstance(plain, list | tuple):
        plain = [asnumpy(item) if is_array(item) else item for item in plain]
    try:
        host = numpy.array(asnumpy(plain) if is_array(plain) else plain, kind, order="C")
    except (TypeError, ValueError):
        raise ArgumentError(
            "nd.array needs numbers in an array or in nested lists of equal lengths, "
            f"but was given {type(source_array).__name__}"
        ) from None
    context = _context(ctx)
    return wrap(host, context) if context.device_type.startswith("cpu") else from_host(host, context)


def zeros(
    shape: Shape, ctx: Context | None = None, dtype: Any = None, stype: str | None = None, out: Any = None
) -> Any:
    """Zeros of ``shape``, float32 unless said otherwise."""
    if stype not in (None, "default"):
        raise ArgumentError(f"nd.zeros: arrays are dense (stype 'default'), but {stype!r} was asked for")
    return _filled(0, shape, ctx, dtype, out)


def ones(shape: Shape, ctx: Context | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Ones of ``shape``, float32 unless said otherwise."""
    return _filled(1, shape, ctx, dtype, out)


def full(shape: Shape, val: float, ctx: Context | None = None, dtype: Any = None, out: Any = None) -> Any:
    """``val`` everywhere, of ``shape``, float32 unless said otherwise."""
    return _filled(val, shape, ctx, dtype, out)


def empty(shape: Shape, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> Any:
    """A new array with arbitrary values."""
    if stype not in (None, "default"):
        raise ArgumentError(f"nd.empty: arrays are dense (stype 'default'), but {stype!r} was asked for")
    return new(_dims(shape), _kind(dtype), _context(ctx))


def _filled(value: float, shape: Shape, ctx: Context | None, dtype: Any, out: Any) -> Any:
    if out is None:
        out = new(_dims(shape), _kind(dtype), _context(ctx), zero=value == 0)
        if value == 0:
            return out
    out[:] = value
    return out


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, infer_range: Any = None,
    ctx: Context | None = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """start, start + step, … before ``stop`` (0 … start if None), each ``repeat`` times."""
    words = {"start": start, "stop": stop, "step": step, "repeat": repeat, "dtype": _kind(dtype).name}
    return apply("_arange", **words, ctx=_context(ctx))


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> Any:
    """``num`` values at equal distances from ``start`` to ``stop``, or just before it without ``endpoint``."""
    words = {"start": start, "stop": stop, "num": num, "endpoint": endpoint, "dtype": _kind(dtype).name}
    return apply("_linspace", **words, ctx=_context(ctx))


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> Any:
    """(N, M), M = 0 meaning N: 1 on the k-th diagonal, 0 elsewhere."""
    return apply("_eye", N=N, M=M, k=k, dtype=_kind(dtype).name, ctx=_context(ctx))


def from_numpy(ndarray: numpy.ndarray[Any, Any], zero_copy: bool = True) -> Any:
    """An NDArray over the memory of a NumPy array, or over a copy of it."""
    return wrap(ndarray if zero_copy else ndarray.copy())


def concatenate(arrays: Sequence[Any], axis: int = 0, always_copy: bool = True) -> Any:
    """The arrays one after the other along ``axis``; the one itself, of one, without ``always_copy``."""
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return apply("Concat", *arrays, dim=axis)


def split_v2(ary: Any, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """``ary`` cut along ``axis`` before every one of the indices, or in so many equal sections."""
    return ary.split_v2(indices_or_sections, axis, squeeze_axis)


def moveaxis(tensor: Any, source: Any, destination: Any) -> Any:
    """A copy with axes moved to other places; the rest keep their order."""
    marked = numpy.broadcast_to(False, tuple(range(1, tensor.ndim + 1)))  # an axis is known by its size
    return apply("transpose", tensor, axes=tuple(dim - 1 for dim in numpy.moveaxis(marked, source, destination).shape))


def onehot_encode(indices: Any, out: Any) -> Any:
    """Write 1 at the place of every index, 0 elsewhere, into the rows of ``out``."""
    return apply("one_hot", indices, depth=out.shape[1], dtype=numpy.dtype(out.dtype).name, out=out)


def histogram(a: Any, bins: Any = 10, range: tuple[float, float] | None = None) -> list[Any]:
    """How many values lie in each bin (int64), and the edges of the bins in the type of ``a``."""
    values = asnumpy(unwrap(a))
    counts, edges = numpy.histogram(values, asnumpy(unwrap(bins)) if is_array(bins) else bins, range)
    return [from_host(counts.astype(numpy.int64), a.context), from_host(edges.astype(values.dtype), a.context)]


def waitall() -> None:
    """Wait until everything that was queued on the devices in use has run."""
    from ...context import _devices

    for device in list(_devices.values()):
        device.synchronize()


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write an array, a list or a dict of arrays as a ``.params`` file."""
    from ... import files

    files.save(fname, [unwrap(data)] if isinstance(data, NDArray) else unwrap(data))


def load(fname: str | os.PathLike[str]) -> Any:
    """The arrays of a ``.params`` file: a dict, or a list if they have no names."""
    from ... import files

    return _wrapped(files.load(fname))


def load_frombuffer(buf: bytes) -> Any:
    """The arrays of the bytes of a ``.params`` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "buffer.params")
        with open(path, "wb") as file:
            file.write(buf)
        return load(path)


def _wrapped(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {name: wrap(item) for name, item in found.items()}
    return [wrap(item) for item in found]


def _of_two(name: str, plain: Callable[[Any, Any], Any], reverse: str = "") -> Callable[[Any, Any], Any]:
    def function(lhs: Any, rhs: Any) -> Any:
        if is_array(lhs) or is_array(rhs):
            return binary(name, lhs, rhs, reverse)
        return plain(lhs, rhs)

    function.__doc__ = f"Elementwise ``{name}`` of arrays (shapes broadcast) or numbers, in the arrays' type."
    return function


def _truth(test: Callable[[Any, Any], Any]) -> Callable[[Any, Any], float]:
    return lambda left, right: 1.0 if test(left, right) else 0.0


add = _of_two("plus", operator.add)
subtract = _of_two("minus", operator.sub, "_rminus_scalar")
multiply = _of_two("mul", operator.mul)
divide = true_divide = _of_two("div", operator.truediv, "_rdiv_scalar")
modulo = _of_two("mod", operator.mod, "_rmod_scalar")
power = pow = _of_two("power", builtins.pow, "_rpower_scalar")
maximum, minimum = _of_two("maximum", builtins.max), _of_two("minimum", builtins.min)
hypot = _of_two("hypot", math.hypot)
equal, not_equal = _of_two("equal", _truth(operator.eq)), _of_two("not_equal", _truth(operator.ne))
greater = _of_two("greater", _truth(operator.gt), "_lesser_scalar")
greater_equal = _of_two("greater_equal", _truth(operator.ge), "_lesser_equal_scalar")
lesser = _of_two("lesser", _truth(operator.lt), "_greater_scalar")
lesser_equal = _of_two("lesser_equal", _truth(operator.le), "_greater_equal_scalar")
logical_and = _of_two("logical_and", _truth(lambda a, b: a and b))
logical_or = _of_two("logical_or", _truth(lambda a, b: a or b))
logical_xor = _of_two("logical_xor", _truth(lambda a, b: bool(a) != bool(b)))


def isnan(data: Any) -> Any:
    """1 where a number is NaN, else 0."""
    return data != data


def isinf(data: Any) -> Any:
    """1 where a number is infinite, else 0."""
    return abs(data) == math.inf


def isfinite(data: Any) -> Any:
    """1 where a number is neither infinite nor NaN, else 0."""
    return abs(data) < math.inf


def boolean_mask(data: Any, index: Any, axis: int = 0) -> Any:
    """The parts of an array along ``axis`` whose ``index`` is not 0, as a copy."""
    chosen = numpy.flatnonzero(index.asnumpy())
    return apply("take", data, array(chosen, data.context, "int64"), axis=axis)
