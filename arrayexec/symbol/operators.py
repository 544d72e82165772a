"""Operators as functions of symbols: ``sym.FullyConnected(data, num_hidden=10, name='fc1')``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, CompositionError
from ..registry import Form, Op, find_op, get_op
from .algebra import single
from .compose import make_node
from .graph import Entry
from .symbol import Symbol, kind_of


def apply(op_name: str, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> Symbol:
    """Outputs of operator ``op_name``: symbols are its inputs, the rest its attributes, ``name`` and ``attr``.

    Attributes may follow the symbols by position, in the order of the operator's fields.
    Raises UnknownOperatorError, AttributeValueError, CompositionError.
    """
    form = get_op(op_name).form
    given = dict(keywords)
    name, attr = given.pop("name", None), given.pop("attr", None)
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"{op_name}: name must be a text, but it is {name!r}")
    named: dict[str, Entry] = {}
    for key, value in keywords.items():
        if isinstance(value, Symbol):
            named[key] = single(given.pop(key), f"{op_name}: input '{key}' must be one value")
        elif value is None and key in form.forward.parameters and key not in form.attributes:
            del given[key]  # an input that is left out
    if form.variadic is not None and len(positional) == 1 and isinstance(positional[0], list | tuple):
        positional = tuple(positional[0])
    inputs: list[Entry] = []
    for position, value in enumerate(positional):
        if isinstance(value, np.ndarray):
            raise CompositionError(
                f"{op_name}: input {position} must be a symbol, but it is an array; make it a Variable and hand the "
                "array to bind"
            )
        if not isinstance(value, Symbol):
            _by_position(op_name, form, positional[position:], given)
            break
        inputs.append(single(value, f"{op_name}: input {position} must be one value"))
    kind = kind_of(type(value) for value in (*positional, *keywords.values()) if isinstance(value, Symbol))
    return kind(make_node(op_name, inputs, named, given, name=name, attr=attr).outputs)


def _by_position(op_name: str, form: Form, values: tuple[Any, ...], given: dict[str, Any]) -> None:
    names = list(form.attributes)
    if len(values) > len(names):
        raise CompositionError(
            f"{op_name} was given {len(values)} values after its symbols, but its attributes are {names}"
        )
    for key, value in zip(names, values, strict=False):
        if isinstance(value, Symbol):
            raise CompositionError(f"{op_name}: symbols come before attributes, but {value!r} follows one")
        if key in given:
            raise CompositionError(f"{op_name}: attribute '{key}' is given by position and by keyword")
        given[key] = value


_FUNCTIONS: dict[str, tuple[type[Op], Callable[..., Symbol]]] = {}


def function(name: str) -> Callable[..., Symbol] | None:
    """The function that applies operator ``name``, with its signature and docstring; None if nobody registered it."""
    cls = find_op(name)
    if cls is None:
        return None
    kept = _FUNCTIONS.get(name)
    if kept is not None and kept[0] is cls:
        return kept[1]

    def operator(*inputs: Any, **keywords: Any) -> Symbol:
        return apply(name, inputs, keywords)

    operator.__name__ = operator.__qualname__ = name
    operator.__module__ = __package__ or ""
    operator.__doc__ = inspect.getdoc(cls)
    operator.__signature__ = _signature(cls.form)  # type: ignore[attr-defined]
    _FUNCTIONS[name] = cls, operator
    return operator


def _signature(form: Form) -> inspect.Signature:
    """Inputs as a program may give them by keyword, then attributes with their defaults, then name and attr."""
    kind, none = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)]
    for attribute in form.attributes.values():
        parameters.append(
            inspect.Parameter(attribute.name, kind, default=none if attribute.required else attribute.default)
        )
    parameters += [
        inspect.Parameter(word, kind, default=None) for word in ("name", "attr") if word not in form.attributes
    ]
    parameters.append(inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters, return_annotation=Symbol)
