"""Partly known shapes: an absorbing unknown dim ``?``, a shape of unknown rank, and helpers that let both through.

``? + 1`` is ``?``; a comparison with ``?`` raises :class:`Deferred`, which inference catches: the rule is run again
when more is known. So a rule is written as if everything were known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never

Shape = Any  # tuple[int | Unknown, ...] or ANY: the rules do arithmetic on both without asking which


class Deferred(Exception):
    """A rule asked for something that is not known yet."""


def _absorb(self: Unknown, *_: object) -> Unknown:
    return self


def _defer(self: object, *_: object) -> Never:
    raise Deferred


class Unknown:
    """The unknown dim: arithmetic gives itself, comparing defers."""

    __slots__ = ()
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __pow__ = __rpow__ = _absorb
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = _defer
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "?"

    def __reduce__(self) -> str:
        return "UNKNOWN"


class AnyShape:
    """The shape of unknown rank: slices and sums of it are itself, its dims are unknown, counting them defers."""

    __slots__ = ()
    __add__ = __radd__ = _absorb
    __eq__ = __ne__ = __bool__ = __len__ = _defer
    __hash__ = object.__hash__

    def __getitem__(self, item: int | slice) -> Any:
        return self if isinstance(item, slice) else UNKNOWN

    def __iter__(self) -> Iterator[Any]:
        raise Deferred

    def __repr__(self) -> str:
        return "?"

    def __reduce__(self) -> str:
        return "ANY"


UNKNOWN = Unknown()
ANY = AnyShape()


def known(shape: Shape) -> bool:
    """True if the rank and every dim of ``shape`` are known."""
    return shape is not ANY and all(dim is not UNKNOWN for dim in shape)


def product(dims: Iterable[Any]) -> Any:
    """Product of ``dims``; unknown if one is unknown (even beside a zero) or the rank is."""
    if dims is ANY:
        return UNKNOWN
    result: Any = 1
    for dim in dims:
        result = dim * result
    return result


def distinct(shapes: Iterable[Shape]) -> list[Shape]:
    """``shapes`` without repetitions, so that what holds for all of thousands is not said once for each."""
    return list({repr(shape): shape for shape in shapes}.values())


def through(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function of shapes: ``ANY`` where a shape argument is ``ANY`` or the rule defers."""

    @functools.wraps(rule)
    def wrapped(*arguments: Any) -> Any:
        if any(argument is ANY for argument in arguments):
            return ANY
        try:
            return rule(*arguments)
        except Deferred:
            return ANY

    return wrapped


@through
def swap(shape: Sequence[Any], first: int, second: int) -> tuple[Any, ...]:
    """``shape`` with two axes exchanged."""
    dims = list(shape)
    dims[first], dims[second] = dims[second], dims[first]
    return tuple(dims)


@through
def permute(shape: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """``shape`` with its axes in the order ``axes``."""
    return tuple(shape[axis] for axis in axes)


@through
def replace(shape: Sequence[Any], axis: int, dim: Any) -> tuple[Any, ...]:
    """``shape`` with ``dim`` at ``axis``."""
    dims = list(shape)
    dims[axis] = dim
    return tuple(dims)


@through
def drop(shape: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """``shape`` without ``axis``."""
    dims = list(shape)
    del dims[axis]
    return tuple(dims)


@through
def insert(shape: Sequence[Any], axis: int, dim: Any) -> tuple[Any, ...]:
    """``shape`` with a new ``dim`` that becomes dim ``axis`` of the result."""
    dims = list(shape)
    dims.insert(axis if axis >= 0 else len(dims) + 1 + axis, dim)
    return tuple(dims)


def from_user(shape: Sequence[int] | None) -> Shape:
    """MXNet's spelling at the edge of the API: 0 is an unknown dim, ``()`` or None an unknown shape."""
    if not shape:
        return ANY
    return tuple(int(dim) if dim > 0 else UNKNOWN for dim in shape)


def to_user(shape: Shape) -> tuple[int, ...]:
    """Back to MXNet's spelling: ``()`` for an unknown shape, 0 for an unknown dim."""
    if shape is ANY:
        return ()
    return tuple(0 if dim is UNKNOWN else dim for dim in shape)
