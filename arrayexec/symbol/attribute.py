"""Attributes of nodes that are not the operator's own: scopes that give them, and the keys that are stored hidden."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError

HIDDEN_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
"""Keys that are stored as ``__key__`` and read under both spellings."""

_SHORT = {f"__{key}__": key for key in HIDDEN_KEYS}


def stored_key(key: str) -> str:
    """The key under which a node keeps ``key``: hidden ones between double underscores."""
    return f"__{key}__" if key in HIDDEN_KEYS else key


def is_hidden(key: str) -> bool:
    """True for a key between double underscores."""
    return len(key) > 4 and key.startswith("__") and key.endswith("__")


def deprecated_suffix(key: str) -> str | None:
    """``lr_mult`` for a key like ``weight_lr_mult``, which once meant another node; None for any other."""
    return next((k for k in HIDDEN_KEYS if key.endswith("_" + k) and not key.startswith("_")), None)


def shown(attributes: Mapping[str, str]) -> dict[str, str]:
    """``attributes`` as programs read them: hidden keys under both spellings."""
    return {**attributes, **{_SHORT[key]: text for key, text in attributes.items() if key in _SHORT}}


def texts_only(attributes: Mapping[str, Any], who: str) -> dict[str, str]:
    """``attributes`` under their stored keys; ArgumentError names ``who`` if a value is not a text."""
    if not isinstance(attributes, Mapping):
        raise ArgumentError(f"{who}: attributes must be a dict of texts, but they are {attributes!r}")
    for key, value in attributes.items():
        if not isinstance(value, str):
            raise ArgumentError(
                f"{who}: attribute '{key}' must be a text, but it is {value!r}; write {key}={str(value)!r}"
            )
    return {stored_key(key): value for key, value in attributes.items()}


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[dict[str, str]] = [{}]


_SCOPES = _Scopes()


class AttrScope:
    """Gives ``attributes`` to every variable and operator made in the block of this thread; inner scopes win."""

    def __init__(self, **attributes: str) -> None:
        """Values are texts; ArgumentError (a ValueError) otherwise."""
        self._attributes = texts_only(attributes, "AttrScope")

    def __enter__(self) -> AttrScope:
        _SCOPES.stack.append({**_SCOPES.stack[-1], **self._attributes})
        return self

    def __exit__(self, *_: Any) -> None:
        _SCOPES.stack.pop()


def scoped() -> dict[str, str]:
    """Attributes that the scopes of this thread give; not to be changed."""
    return _SCOPES.stack[-1]
