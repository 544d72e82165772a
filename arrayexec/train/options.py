"""Words of options and names of registered classes, with the nearest known one where they are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..errors import AttributeValueError, near_miss

_Value = TypeVar("_Value")


def one_of(who: str, option: str, value: str, known: Sequence[str]) -> str:
    """``value``, if it is one of ``known``; raises AttributeValueError otherwise."""
    if value not in known:
        raise AttributeValueError(
            f"{who}: {option} must be one of {', '.join(known)}, but it is {value!r}{near_miss(value, known, shown=0)}"
        )
    return value


def registered(kind: str, name: object, registry: Mapping[str, _Value]) -> _Value:
    """What is registered under a name, whatever its case; raises AttributeValueError if nothing is."""
    found = registry.get(str(name).lower())
    if found is None:
        raise AttributeValueError(f"{kind}: there is none called {name!r}{near_miss(str(name), registry)}")
    return found
