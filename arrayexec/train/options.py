"""Values of options, and names of registered classes, with the nearest known one where they are wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from ..errors import AttributeValueError, near_miss

_Value = TypeVar("_Value")


def one_of(who: str, option: str, value: str, known: Sequence[str]) -> str:
    """``value``, if it is one of ``known``; raises AttributeValueError otherwise."""
    if value not in known:
        raise AttributeValueError(
            f"{who}: {option} must be one of {', '.join(known)}, but it is {value!r}{near_miss(value, known, shown=0)}"
        )
    return value


def number(who: str, option: str, value: Any) -> float:
    """``value``, if it is a number (an array of no dims counts); raises AttributeValueError otherwise."""
    plain = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(plain, Real):
        raise AttributeValueError(f"{who}: {option} must be a number, but it is {value!r}")
    return value  # type: ignore[no-any-return]


def expression(who: str, option: str, pattern: Any) -> re.Pattern[str]:
    """The regular expression of a text, or the one given; raises AttributeValueError for what is none."""
    try:
        found = re.compile(pattern)
    except (re.error, TypeError) as error:
        fact = f"{option} must be a regular expression, but {pattern!r} is none: {error}"
        raise AttributeValueError(f"{who}: {fact}") from None
    if not isinstance(found.pattern, str):
        raise AttributeValueError(f"{who}: {option} must be an expression for text, but {pattern!r} is one for bytes")
    return found


def registered(kind: str, name: object, registry: Mapping[str, _Value]) -> _Value:
    """What is registered under a name, whatever its case; raises AttributeValueError if nothing is."""
    found = registry.get(str(name).lower())
    if found is None:
        written = name if isinstance(name, str) else ""
        raise AttributeValueError(f"{kind}: there is none called {name!r}{near_miss(written, registry)}")
    return found


def made(kind: str, name: object, registry: Mapping[str, type[_Value]], /, *values: Any, **options: Any) -> _Value:
    """An instance of the class registered under a name; raises AttributeValueError for a wrong name or option.

    Classes of users may take what options they like.
    """
    cls = registered(kind, name, registry)
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        known = options_of(cls)
        for option, value in options.items():
            if option not in known:
                raise AttributeValueError(f"{kind} {name!r}: there is no option {option!r}{near_miss(option, known)}")
            if isinstance(known[option], float):
                number(f"{kind} {name!r}", option, value)
    return cls(*values, **options)


def options_of(cls: type) -> dict[str, Any]:
    """All options that a class takes by keyword, those that it hands on to its bases included, with their defaults."""
    found: dict[str, Any] = {}
    for base in cls.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        rest = [one for one in parameters if one.kind is one.VAR_KEYWORD]
        found = {one.name: one.default for one in parameters if one not in rest} | found
        if not rest:
            break
    return found
