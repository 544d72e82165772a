"""``mx.image``: pictures as NDArrays (rows, columns, channels)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...train import image as _core
from . import io as _io
from .array import unwrap, wrap_all
from .refused import found_in


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the engine that takes and gives NDArrays."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return wrap_all(function(*unwrap(args), **unwrap(keywords)))

    return call


class _Augmenter:
    """An augmenter of the engine that takes and gives NDArrays."""

    def __call__(self, src: Any) -> Any:
        """The picture, changed."""
        return wrap_all(super().__call__(unwrap(src)))  # type: ignore[misc]


_classes: dict[type, type] = {}


def __getattr__(name: str) -> Any:
    if name in ("ImageIter", "ImageRecordIter"):
        return getattr(_io, name)
    found = found_in(_core, "image", name, __dir__())
    if isinstance(found, type):
        if not issubclass(found, _core.Augmenter):
            return found
        if found not in _classes:
            _classes[found] = type(name, (_Augmenter, found), {"__doc__": found.__doc__})
        return _classes[found]
    return _on_arrays(found) if callable(found) else found


def __dir__() -> list[str]:
    return sorted({*_core.__all__})
