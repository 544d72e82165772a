"""Putting graphs together: making one node from texts and inputs, and copying a graph with variables replaced."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..attribute_text import to_text, unknown_attribute
from ..errors import ArrayExecError, AttributeValueError, CompositionError, near_miss
from ..registry import SPECIAL, Op, get_op, make_op, signature_of
from . import naming
from .attribute import deprecated_suffix, is_hidden, scoped, stored_key, texts_only
from .graph import Entry, Node, Source, place, post_order

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SETTINGS: dict[tuple[type[Op], tuple[tuple[str, str], ...]], Op] = {}
_MANY_SETTINGS = 4096


def user_source() -> Source:
    """File and line of the nearest caller outside the package."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None


def _setting(cls: type[Op], values: Mapping[str, Any], texts: Mapping[str, str], where: str) -> Op:
    """The operator instance for ``values``; the same one for the same texts, since graphs repeat their settings."""
    if cls.rest:
        return make_op(cls.form.name, values, where)  # what free attributes mean may change, as Custom's
    key = (cls, tuple(texts.items()))
    op = _SETTINGS.get(key)
    if op is None:
        op = make_op(cls.form.name, values, where)
        if len(_SETTINGS) >= _MANY_SETTINGS:
            _SETTINGS.clear()
        _SETTINGS[key] = op
    return op


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = tuple(value.tolist()) if value.ndim else value.item()
    return to_text(value)


def _split(
    cls: type[Op], around: Mapping[str, str], own: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of the operator's attributes, and the hidden texts beside them; ``own`` wins over what is ``around``."""
    form, values = cls.form, dict[str, Any]()
    hidden: dict[str, str] = {}
    for key, value in ({**around, **own} if around else own).items():
        if key in form.attributes:
            values[key] = value
        elif is_hidden(stored_key(key)):
            hidden[stored_key(key)] = _text(value)
        elif cls.rest:
            values[key] = value
        else:
            suffix = deprecated_suffix(key)
            if suffix is not None:
                argument = key[: -len(suffix) - 1]
                raise AttributeValueError(
                    f"{form.name}{where}: '{key}' would belong to the input '{argument}'; "
                    f"make that one yourself: {argument}=Variable('…_{argument}', {suffix}={value})"
                )
            made = [names for names in (cls.outputs, cls.hidden) if not callable(names)]
            others = SPECIAL.union(form.forward.many, form.forward.temps, *made)
            inputs = [name for name in form.forward.parameters if name not in others]
            if key in inputs:
                raise CompositionError(
                    f"{form.name}{where}: input '{key}' must be a symbol, but it is a {type(value).__name__}; "
                    "make it a Variable and hand the array to bind"
                )
            try:  # with what else is given it may be clear which of forward's parameters are inputs
                sound = {name: one for name, one in own.items() if name in form.attributes}
                inputs = list(signature_of(make_op(form.name, sound)).arguments)
            except ArrayExecError:
                pass
            error = unknown_attribute(f"{form.name}{where}", key, [*form.attributes, *inputs], "attribute or input")
            hint = f" (keys of your own look like __{key}__)" if key in around else ""
            raise AttributeValueError(f"{error}{hint}")
    return values, hidden


def make_node(
    op_name: str, inputs: Sequence[Entry], named: Mapping[str, Entry], given: Mapping[str, Any], *,
    name: str | None = None, attr: Mapping[str, str] | None = None, hint: str | None = None,
) -> Node:  # fmt: skip
    """One application of ``op_name``: ``inputs`` by position, ``named`` by argument, the rest become variables.

    ``given`` are attribute values, ``attr`` texts for the node and its new variables; ``hint`` is what a missing name
    counts.
    Raises UnknownOperatorError, AttributeValueError, CompositionError.
    """
    cls = get_op(op_name)
    form = cls.form
    source = user_source()
    name = naming.current().get(name, hint or op_name.lower())
    where = place(name, source)
    around = scoped()
    if attr:
        around = {**around, **texts_only(attr, f"{form.name}{where}")}
    values, hidden = _split(cls, around, given, where)
    if form.variadic is not None and "num_args" in form.attributes and "num_args" not in values:
        values["num_args"] = len(inputs) + len(named)
        if not inputs and not named:
            raise CompositionError(f"{form.name}{where} takes any number of inputs, but it was given none")
    texts = {key: _text(value) for key, value in values.items()}
    op = _setting(cls, values, texts, where)
    texts.update(hidden)
    node = Node(op, name, texts, (), source)
    node.inputs = _inputs(node, inputs, named)
    return node


def _inputs(node: Node, inputs: Sequence[Entry], named: Mapping[str, Entry]) -> tuple[Entry, ...]:
    op: Op = node.op  # type: ignore[assignment]
    arguments = node.signature.arguments  # type: ignore[union-attr]
    if len(inputs) > len(arguments):
        raise CompositionError(
            f"{node.where} was given {len(inputs)} inputs, but it takes {len(arguments)}: "
            f"{', '.join(arguments) or 'none'}"
        )
    filled, left = list(inputs), dict(named)
    for argument in arguments[len(inputs) :]:
        entry = left.pop(argument, None)
        if entry is None:
            texts = {**node.attributes, **op.variable_attributes(argument)}
            entry = (Node(None, f"{node.name}_{argument}", texts, (), node.source), 0)
        filled.append(entry)
    for argument in left:
        if argument in arguments:
            raise CompositionError(f"{node.where}: input '{argument}' is given by position and by keyword")
        raise CompositionError(f"{node.where} has no input '{argument}'{near_miss(argument, arguments)}")
    return tuple(filled)


def copied(heads: Sequence[Entry], replaced: Mapping[str, Entry] | None = None) -> list[Entry]:
    """``heads`` of a copy of the graph, with the variables named in ``replaced`` exchanged for other values."""
    new: dict[int, Entry] = {}  # where the copy has the first value of a node

    def moved(entry: Entry) -> Entry:
        node, first = new[id(entry[0])]
        return node, first + entry[1]

    for node in post_order(heads):
        if node.op is None and replaced and node.name in replaced:
            new[id(node)] = replaced[node.name]
            continue
        twin = copy.copy(node)
        twin.attributes, twin.inputs = dict(node.attributes), tuple(map(moved, node.inputs))
        new[id(node)] = twin, 0
    return [moved(head) for head in heads]
