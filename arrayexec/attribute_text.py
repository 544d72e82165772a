"""Attributes of operators as text and back: one small parser for what MXNet's files hold, without eval.

Accepted: "True" "1" "false", "16", "1e-05" "inf", "(2, 2)" "[2,2]" "(3L, 3L)", "None", a scalar for a 1-tuple.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from .errors import AttributeValueError, OperatorDefinitionError, near_miss

MAX_TEXT = 65536
MAX_PORTS = 100_000  # inputs or outputs of one node: more is no model
PORTS = ("num_args", "num_outputs", "num_arrays", "sections")
"""Attributes that say how many inputs or outputs a node has."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
ELEMENT_TYPE = "an element type of real numbers in native byte order"
TYPE_CODES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")


class _Wrong(Exception):
    """The value does not read as the wanted type."""


def _bool(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
    if found is None:
        raise _Wrong
    return found


def _int(value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise _Wrong


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.integer | np.floating):
        raise _Wrong
    try:
        return float(value.strip().removesuffix("f") if isinstance(value, str) and "inf" not in value else value)
    except (ValueError, OverflowError):
        raise _Wrong from None


def _dtype(value: Any) -> np.dtype[Any]:
    if isinstance(value, str):
        value = value.strip()
        if value.isdecimal() and len(value) < 4 and int(value) < len(TYPE_CODES):
            value = TYPE_CODES[int(value)]
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError, SyntaxError):  # the last for texts like ","
        raise _Wrong from None
    numbers = found.kind in "biuf" or (found.kind == "V" and found.type is not np.void)  # other packages' bfloat16
    if value is None or not numbers or not found.isnative:
        raise _Wrong
    return found


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong
    return value


def _tuple(item: Any, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        text = value.strip()
        if text[:1] in "([" and text[-1:] in ")]" and text:
            parts = [part.strip() for part in text[1:-1].split(",")]
            if parts and not parts[-1]:
                parts.pop()
            value = [part[:-1] if part[-1:] in "lL" else part for part in parts]
        else:
            value = (text,)
    elif isinstance(value, np.ndarray | list | tuple):
        value = list(value)
    else:
        value = (value,)
    return tuple(item(part) for part in value)


def _reader(annotation: Any, where: str) -> tuple[Any, str]:
    """Function that reads a value of the annotated type, and the type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    simple = {
        bool: (_bool, "a bool"),
        int: (_int, "a whole number"),
        float: (_float, "a number"),
        str: (_str, "a text"),
    }
    if annotation in simple:
        return simple[annotation]
    if annotation is np.dtype or origin is np.dtype:
        return _dtype, ELEMENT_TYPE
    if origin is Literal:

        def choose(value: Any) -> Any:
            for option in arguments:
                if value == option or str(value).strip() == str(option):
                    return option
            raise _Wrong

        return choose, "one of " + ", ".join(map(str, arguments))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item, text = _reader(arguments[0], where)
        return (lambda value: _tuple(item, value)), f"a tuple, each item {text}"
    if origin in (types.UnionType, typing.Union) and type(None) in arguments and len(arguments) == 2:
        inner, text = _reader(next(a for a in arguments if a is not type(None)), where)
        return (
            lambda value: (
                None if value is None or (isinstance(value, str) and value.strip() == "None") else inner(value)
            ),
            f"{text} or None",
        )
    raise OperatorDefinitionError(
        f"{where}: type {annotation} of an attribute is not one of bool int float str Literal "
        "numpy.dtype tuple[…, ...] or X | None"
    )


def _or_default(read: Any, default: Any) -> Any:
    """Reads as ``read`` does, and None as the default: what a shape that was given as None has become in a file."""
    return lambda value: default if value is None or str(value).strip() == "None" else read(value)


def unknown_attribute(who: str, key: str, known: Iterable[str], kind: str = "attribute") -> AttributeValueError:
    """The error for an attribute that nobody knows: near misses, and all that there are."""
    listed = ", ".join(known)
    close = near_miss(key, known, shown=0)
    rest = f"{' There' if close else '; there'} are: {listed}" if listed else ""
    return AttributeValueError(f"{who} has no {kind} '{key}'{close}{rest}")


class Attribute(NamedTuple):
    """One attribute of an operator: how it is read, in words, and its default (``required`` if it has none)."""

    name: str
    read: Any
    text: str
    required: bool
    default: Any

    def parse(self, value: Any, where: str) -> Any:
        """The value meant by ``value``; AttributeValueError names ``where`` and what is allowed."""
        try:
            if isinstance(value, str) and len(value) > MAX_TEXT:
                raise _Wrong
            return self.read(value)
        except _Wrong:
            shown = repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "…"
            options = self.text.removeprefix("one of ").split(", ") if self.text.startswith("one of ") else ()
            close = near_miss(value, options, shown=0) if isinstance(value, str) else ""
            raise AttributeValueError(
                f"{where}: attribute '{self.name}' must be {self.text}, but it is {shown}{close}"
            ) from None


def attributes_of(cls: Any, title: str) -> Mapping[str, Attribute]:
    """Attributes of an operator class, from its annotated fields."""
    fields = dataclasses.fields(cls)
    if not fields:
        return {}
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, SyntaxError) as error:
        raise OperatorDefinitionError(f"operator {title}: the types of its attributes are unclear: {error}") from None
    found = {}
    for field in fields:
        read, text = _reader(hints[field.name], f"operator {title}")
        required = field.default is dataclasses.MISSING
        try:
            if field.default_factory is not dataclasses.MISSING:
                raise _Wrong
            _ = required or read(field.default)
        except _Wrong:
            fact = f"the default of attribute '{field.name}' must be {text}"
            shown = "made by a factory" if field.default is dataclasses.MISSING else repr(field.default)
            raise OperatorDefinitionError(f"operator {title}: {fact}, but it is {shown}") from None
        if isinstance(field.default, tuple):
            read = _or_default(read, field.default)
        found[field.name] = Attribute(field.name, read, text, required, None if required else field.default)
    return found


def to_text(value: Any) -> str:
    """The text that MXNet would store for a Python value given as an attribute."""
    if isinstance(value, str):
        return value
    if isinstance(value, type | np.dtype):
        return np.dtype(value).name
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, np.generic):
        value = value.item()
    return str(value)


def read_shape(text: Any, where: str = "variable") -> tuple[int, ...]:
    """A tuple of whole numbers from MXNet's text or any sequence; AttributeValueError if it is not one."""
    shape: tuple[int, ...] = _SHAPE.parse(text, where)
    return shape


def read_dtype(text: Any, where: str = "variable") -> np.dtype[Any]:
    """An element type from a name, MXNet's type code or anything NumPy takes; AttributeValueError if it is not one."""
    dtype: np.dtype[Any] = _DTYPE.parse(text, where)
    return dtype


_SHAPE = Attribute("shape", lambda value: _tuple(_int, value), "a tuple of whole numbers", True, None)
_DTYPE = Attribute("dtype", _dtype, ELEMENT_TYPE, True, None)
