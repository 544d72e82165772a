"""Sliding windows over the spatial axes of a batch: what convolution and pooling share.

Layouts: ``NCW``, ``NCHW``, ``NCDHW`` (channels first, the default) and ``NWC``, ``NHWC``, ``NDHWC`` (channels last).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape

Layout = Literal["NCW", "NCHW", "NCDHW", "NWC", "NHWC", "NDHWC"]
Tune = Literal["off", "limited_workspace", "fastest"]  # changes no number


def check_kernel(operator: str, kernel: Sequence[int]) -> int:
    """Number of spatial axes that ``kernel`` names: one to three."""
    if not 1 <= len(kernel) <= 3 or min(kernel) < 1:
        raise AttributeValueError(
            f"{operator}: attribute 'kernel' must hold one to three numbers >= 1, but it is {tuple(kernel)}"
        )
    return len(kernel)


def per_axis(operator: str, name: str, given: Sequence[int], axes: int, default: int) -> tuple[int, ...]:
    """One whole number >= ``default`` a spatial axis; ``default`` for all of them where none is given."""
    if given and len(given) != axes:
        raise AttributeValueError(
            f"{operator}: attribute '{name}' must hold {axes} numbers, one for each axis of 'kernel', "
            f"but it is {tuple(given)}"
        )
    if any(item < default for item in given):
        raise AttributeValueError(
            f"{operator}: attribute '{name}' must be at least {default} on every axis, but it is {tuple(given)}"
        )
    return tuple(given) or (default,) * axes


def check_layout(operator: str, layout: str | None, axes: int) -> None:
    """Refuse a layout that names another number of spatial axes than the kernel has."""
    if layout is not None and len(layout) != axes + 2:
        raise AttributeValueError(
            f"{operator}: attribute 'layout' must have as many spatial axes as 'kernel', which has {axes}, "
            f"but it is {layout!r}"
        )


def split(shape: Any, last: bool) -> tuple[Any, Any, Any]:
    """Batch, channels and spatial dims of a shape whose rank is known."""
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def join(batch: Any, channels: Any, spatial: Sequence[Any], last: bool) -> tuple[Any, ...]:
    """The inverse of :func:`split`."""
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


def channels_first(array: Any, last: bool) -> Any:
    """View of ``array`` (N, …, C) as (N, C, …)."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1)) if last else array


def check_filled(s: Any, name: str) -> None:
    """Refuse a value of known rank that has a dim of 0 other than its batch."""
    shape = getattr(s, name)
    if any(is_known(dim) and dim == 0 for dim in shape[1:]):
        s.fail(name, f"must have no dim of 0 but the batch, but it is {format_shape(shape)}")


def is_known(dim: Any) -> bool:
    """True for a dim that inference knows."""
    return dim is not UNKNOWN
