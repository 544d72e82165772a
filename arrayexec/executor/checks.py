"""What bind refuses: contexts, arrays and lenders that cannot be used as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..attribute_text import ELEMENT_TYPE, read_dtype
from ..context import Context, check_numbers, context_of, current_context
from ..errors import AttributeValueError, BindError, ShapeError, TypeInferenceError, format_shape

Array = Any


def context_for(ctx: Any, call: str) -> Context:
    """The context asked for (None: the current one); BindError for anything else."""
    if ctx is None:
        return current_context()
    if not isinstance(ctx, Context):
        raise BindError(f"{call}: ctx must be a context such as cpu(), but it is a {type(ctx).__name__}: {ctx!r}")
    return ctx


def element_type(name: str, kind: Any, call: str) -> np.dtype[Any]:
    """The element type of a variable; TypeInferenceError for what is no type of numbers."""
    try:
        return read_dtype(kind)
    except AttributeValueError:
        raise TypeInferenceError(f"{call}: the type of '{name}' must be {ELEMENT_TYPE}, but it is {kind}") from None


def check_context(where: Callable[[str], Context], arrays: Mapping[str, Array], title: str) -> None:
    """Refuse what is no plain array of the context of its name."""
    for name, array in arrays.items():
        context = where(name)
        kind = type(array)
        if not hasattr(array, "dtype") or not hasattr(array, "shape") or isinstance(array, np.generic):
            raise BindError(f"bind: {title} '{name}' must be an array of {context}, but it is a {kind.__name__}")
        if isinstance(array, np.ndarray) and kind not in (np.ndarray, np.memmap):  # masks, another * or []
            raise BindError(
                f"bind: {title} '{name}' must be a plain array, but it is a {kind.__name__}; "
                "give numpy.asarray(…) of it"
            )
        if not context.device.owns(array):
            raise BindError(f"bind: {title} '{name}' must lie on {context}, but it is an array of {context_of(array)}")


def check_values(who: str, array: Any, shape: Sequence[int], found: str = "it", hint: str = "") -> None:
    """Refuse what is no array of real numbers of a shape."""
    if not hasattr(array, "shape"):
        raise BindError(f"{who} must be an array, but it is a {type(array).__name__}")
    if tuple(array.shape) != tuple(shape):
        fact = f"{who} must be {format_shape(shape)}, but {found} is {format_shape(array.shape)}"
        raise ShapeError(fact + hint)
    check_numbers(who, array)


def check_overlap(read: Mapping[str, Array], written: Mapping[str, Array]) -> None:
    """Refuse a written array (gradient, auxiliary state) that shares bytes with any other array."""
    spans = []
    for name, array in {**{f"'{n}'": a for n, a in read.items()}, **written}.items():
        if isinstance(array, np.ndarray) and array.size:
            low, high = np.lib.array_utils.byte_bounds(array)
            spans.append((low, high, name, array))
    spans.sort(key=lambda span: span[:2])
    near: list[tuple[int, int, str, Array]] = []  # those that reach behind the start of the one looked at
    for span in spans:
        near = [other for other in near if other[1] > span[0]]
        for other in near:
            if (span[2] in written or other[2] in written) and _share(span[3], other[3]):
                raise BindError(
                    f"bind: {other[2]} and {span[2]} share memory, but one of them is written while the other is in "
                    "use; give one of them an array of its own"
                )
        near.append(span)


def _share(one: Array, other: Array) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def check_gradient(name: str, gradient: Array, array: Array) -> None:
    """Refuse a gradient array that is unlike its argument, or that cannot be written."""
    if tuple(gradient.shape) != tuple(array.shape):
        raise ShapeError(
            f"bind: the gradient array of '{name}' must be {format_shape(array.shape)}, "
            f"but it is {format_shape(gradient.shape)}"
        )
    if gradient.dtype != array.dtype:
        raise TypeInferenceError(
            f"bind: the gradient array of '{name}' must be {array.dtype}, but it is {gradient.dtype}"
        )
    check_writable("bind", f"the gradient array of '{name}'", gradient)


def check_writable(who: str, what: str, array: Array) -> None:
    """Refuse an array whose elements cannot all be written."""
    if not isinstance(array, np.ndarray) or not array.size:
        return
    if not array.flags.writeable:
        raise BindError(f"{who}: {what} must be writable, but it is read-only")
    reach = array.itemsize
    for stride, dim in sorted((abs(s), d) for s, d in zip(array.strides, array.shape, strict=True) if d > 1):
        if stride < reach:
            raise BindError(
                f"{who}: the elements of {what} must lie apart, but some share memory "
                f"(shape {array.shape}, strides {array.strides})"
            )
        reach += stride * (dim - 1)
