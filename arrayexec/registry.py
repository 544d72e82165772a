"""Registration and look-up of operators and of faster kernels; the names an operator's author needs are found here.

The form that an operator has is in ``operator_form.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, dataclass_transform

from .attribute_text import MAX_PORTS, PORTS, attributes_of, to_text, unknown_attribute
from .errors import ArrayExecError, AttributeValueError, OperatorDefinitionError, UnknownOperatorError, near_miss
from .operator_form import (
    SPECIAL,
    WHOLE,
    Body,
    Form,
    Known,
    Many,
    Op,
    Sample,
    Signature,
    Temp,
    gradient_positions,
    scratch_of,
    signature_of,
)

__all__ = [
    "SPECIAL", "Form", "Known", "Many", "Op", "Sample", "Signature", "Temp", "add_loader", "add_names", "all_names",
    "find_body", "find_op", "get_op", "gradient_positions", "kernel_tiers", "make_op", "register_kernel", "register_op",
    "scratch_of", "signature_of",
]  # fmt: skip

_OPERATORS: dict[str, type[Op]] = {}
_LOADERS: list[Callable[[str], bool]] = []
_KERNELS: dict[tuple[str, str], Callable[[Op, str], Callable[..., None] | None]] = {}
_LOCK = threading.RLock()


def _body(cls: type[Op], name: str) -> Body | None:
    function = cls.__dict__.get(name) or getattr(cls, name, None)
    if function is None:
        return None
    parameters = list(inspect.signature(function).parameters.values())[1:] if callable(function) else []
    for p in parameters:
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            raise OperatorDefinitionError(
                f"operator {cls.__name__}: parameters of {name} are bound by name, one each, so '{p}' cannot be bound"
            )
    marks = {p.name: str(p.annotation) for p in parameters}
    return Body(
        tuple(p.name for p in parameters),
        frozenset(name for name, mark in marks.items() if mark.rpartition(".")[2] == "Many" or "'many'" in mark),
        frozenset(name for name, mark in marks.items() if mark.rpartition(".")[2] == "Temp" or "'temp'" in mark),
    )


def _check(cls: type[Op], form: Form) -> None:
    """Refuse what would silently do something else: shadowing fields, unknown parameter names, missing bodies."""

    def refuse(text: str) -> None:
        raise OperatorDefinitionError(f"operator {form.name}: {text}")

    for name in form.attributes:
        if hasattr(Op, name) or name in SPECIAL or name in ("name", "attr"):
            refuse(f"attribute '{name}' bears a name that the operator form or every symbol has; choose another")
    for kind in ("inputs", "outputs", "hidden", "aux", "no_gradient", "hints"):
        names = getattr(cls, kind, ())
        if isinstance(names, str):
            refuse(f"{kind} must be a tuple of names, but it is the text '{names}'; write {kind} = ('{names}',)")
        written = kind in ("outputs", "hidden") and isinstance(names, Sequence)
        for name in names if written and not form.forward.many & WHOLE else ():
            if name not in form.forward.parameters:
                refuse(f"forward has no parameter '{name}' to write into; add it, or say {kind} = (…)")
    aux = () if callable(cls.aux) else cls.aux
    known = [name for name in (*form.forward.parameters, *aux) if name not in SPECIAL]
    for title, body in (("backward", form.backward), ("update", form.update)):
        for name in body.parameters if body and not callable(cls.aux) else ():
            base = name[1:] if title == "backward" and name[:1] == "d" and name not in known else name
            if name in known or base in known or name in SPECIAL or name in (body.temps if body else ()):
                continue
            if not callable(getattr(cls, "inputs", ())) and not callable(cls.outputs) and not callable(cls.hidden):
                every = "forward names every input, also one that it does not read"
                refuse(f"parameter '{name}' of {title} is none of forward's ({every}){near_miss(name, known)}")
    if form.update and not cls.aux:
        refuse("has update but no auxiliary states (aux = …)")
    inplace: Any = {} if isinstance(cls.inplace, property) else cls.inplace
    if not isinstance(inplace, Mapping):
        refuse(f"inplace must be a dict {{written: read}}, but it is {inplace!r}")
    if cls.linear and form.backward and (form.variadic or cls.hidden or "out" in form.backward.parameters):
        refuse("linear is for fixed inputs, no hidden outputs, and a backward that does not read out")
    rule = inspect.signature(cls.gradient).parameters if hasattr(cls, "gradient") else {}
    for name in [name for name, p in rule.items() if p.kind is not p.VAR_KEYWORD][1:]:
        if name not in ("sym", *known) and (name[:1] != "d" or name[1:] not in known):
            fact = f"parameter '{name}' of gradient is no input, output or gradient of an output"
            refuse(fact + near_miss(name, known))
    if form.variadic and "num_args" not in form.attributes and not hasattr(cls, "inputs"):
        refuse(f"'{form.variadic}' takes any number of inputs; count them in a field num_args: int, or say inputs = …")
    bound = [*form.forward.parameters, *(form.backward.parameters if form.backward else ())]
    inputs = () if callable(getattr(cls, "inputs", ())) else getattr(cls, "inputs", ())
    for kind, names, allowed in (
        ("no_gradient", () if form.variadic else cls.__dict__.get("no_gradient", ()), [*bound, *inputs]),
        ("inplace", [*inplace, *inplace.values()], bound),
        ("linear", cls.linear, form.forward.parameters if form.backward else ()),
        ("rest", [cls.rest] if cls.rest else [], form.attributes),
        ("rows", [cls.rows] if isinstance(cls.rows, str) else [], ["parallel", "sum"]),
    ):  # fmt: skip
        for name in names:
            if name not in allowed:
                refuse(f"{kind} speaks of '{name}', which is not there{near_miss(name, allowed)}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register_op(cls: Any = None, *, name: str | None = None, aliases: Sequence[str] = ()) -> Any:
    """Class decorator: make ``cls`` an operator under ``name`` (default: the class name) and ``aliases``.

    Raises OperatorDefinitionError for a class that breaks the form or a name that is taken by another class.
    """
    if cls is None:
        return functools.partial(register_op, name=name, aliases=aliases)
    if not isinstance(cls, type) or not issubclass(cls, Op):
        raise OperatorDefinitionError(f"register_op takes a subclass of Op, but it was given {cls!r}")
    title = name or cls.__name__
    if isinstance(aliases, str) or not all(isinstance(key, str) for key in (title, *aliases)):
        fact = f"name and aliases must be texts, but they are {name!r}, {aliases!r}"
        raise OperatorDefinitionError(f"operator {title}: {fact}")
    try:
        cls = dataclasses.dataclass(frozen=True, kw_only=True, repr=True)(cls)
    except (TypeError, ValueError) as error:
        raise OperatorDefinitionError(f"operator {title}: its fields cannot be attributes: {error}") from None
    forward = _body(cls, "forward")
    if forward is None or not forward.parameters or forward.parameters[0] != "xp":
        raise OperatorDefinitionError(f"operator {title}: forward(self, xp, …) is missing or does not begin with xp")
    cls.form = Form(
        title, tuple(aliases), attributes_of(cls, title), forward, _body(cls, "backward"), _body(cls, "update")
    )
    _check(cls, cls.form)
    if cls.__module__.partition(".")[0] != __package__:  # a family that is not imported yet owns its names, too
        for key in (title, *aliases):
            any(loader(key) for loader in _LOADERS)
    with _LOCK:
        for key in (title, *aliases):
            other = _OPERATORS.get(key)
            if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise OperatorDefinitionError(
                    f"operator name '{key}' is taken by {other.__module__}.{other.__qualname__}"
                )
        for key in (title, *aliases):
            _OPERATORS[key] = cls
    return cls


def add_loader(loader: Callable[[str], bool]) -> None:
    """Register a function that imports the module of an operator name and says whether it knew it."""
    _LOADERS.append(loader)


def find_op(name: str) -> type[Op] | None:
    """Operator class of a name or alias; None if nobody knows it. Imports the family that holds it."""
    found = _OPERATORS.get(name)
    if found is not None:
        return found
    if not any(loader(name) for loader in _LOADERS):  # not under the lock: imports have locks of their own
        for entry in importlib.metadata.entry_points(group="arrayexec.operators", name=name):
            entry.load()
    return _OPERATORS.get(name)


def get_op(name: str, where: str = "") -> type[Op]:
    """Operator class of a name or alias; UnknownOperatorError with near misses, ``where`` appended to the fact."""
    found = find_op(name)
    if found is None:
        raise UnknownOperatorError(f"operator '{name}' is not registered{where}{near_miss(name, all_names())}")
    return found


_NAME_LISTS: list[Callable[[], Iterable[str]]] = []


def add_names(names: Callable[[], Iterable[str]]) -> None:
    """Register a function that lists operator names which are not imported yet."""
    _NAME_LISTS.append(names)


def all_names() -> list[str]:
    """Every operator name and alias, sorted, save ``_gradient_…``: those are made as gradients are asked for."""
    names = {*_OPERATORS, *(name for names in _NAME_LISTS for name in names())}
    return sorted(name for name in names if not name.startswith("_gradient_"))


def make_op(name: str, attributes: Mapping[str, Any], where: str = "") -> Op:
    """Operator ``name`` set to ``attributes`` (values or MXNet's texts).

    UnknownOperatorError and AttributeValueError name ``where``, near misses and what is allowed.
    """
    cls = get_op(name, where)
    form, others = cls.form, list[str]()
    values: dict[str, Any] = {}
    for key, value in attributes.items():
        attribute = form.attributes.get(key)
        if attribute is None and cls.rest:
            others.append(f"{key}={to_text(value)}")
            continue
        if attribute is None:
            raise unknown_attribute(f"{form.name}{where}", key, form.attributes)
        values[key] = attribute.parse(value, f"{form.name}{where}")
        if key in PORTS and values[key] > MAX_PORTS:
            raise AttributeValueError(
                f"{form.name}{where}: attribute '{key}' must be at most {MAX_PORTS}, but it is {values[key]}"
            )
    missing = [key for key, attribute in form.attributes.items() if attribute.required and key not in values]
    if missing:
        raise AttributeValueError(
            f"{form.name}{where} needs the attribute '{missing[0]}' ({form.attributes[missing[0]].text})"
        )
    if others:
        values[cls.rest] = tuple(sorted(others))
    try:
        return cls(**values)
    except ArrayExecError as error:  # the class refuses a value and does not know the node
        raise type(error)(str(error).replace(f"{form.name}:", f"{form.name}{where}:", 1)) from error.__cause__


def register_kernel(op_name: str, tier: str) -> Callable[[Any], Any]:
    """Decorator for a factory ``(op, body name) -> body or None`` of faster bodies of one operator in one tier."""

    def register(factory: Any) -> Any:
        _KERNELS[op_name, tier] = factory
        return factory

    return register


def find_body(op: Op, body: str, tier: str) -> Callable[..., None]:
    """The body that ``tier`` runs for ``op``: a registered kernel, else the operator's own, which is the reference."""
    factory = _KERNELS.get((op.form.name, tier))
    return (factory and factory(op, body)) or getattr(op, body)


def kernel_tiers(op_name: str) -> list[str]:
    """Tiers that have a faster body for the operator, sorted."""
    return sorted(tier for name, tier in _KERNELS if name == op_name)
