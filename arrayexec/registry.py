"""The operator form: what an operator's author writes, and the look-up of operators and faster kernels.

An operator is one class. Its annotated fields are its attributes; the parameter *names* of its bodies say what is
bound: ``data`` is an input, ``ddata`` its gradient, ``out`` an output, ``dout`` the gradient that arrives there. See
``docs/operators_howto.md`` for the walk-through.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from .attribute_text import MAX_PORTS, PORTS, Attribute, attributes_of, to_text, unknown_attribute
from .errors import ArrayExecError, AttributeValueError, OperatorDefinitionError, UnknownOperatorError, near_miss

# Annotation of a parameter that takes a tuple: all variadic inputs; all outputs, auxiliary states or hidden outputs if
# it is called ``out``, ``aux`` or ``hidden``.
Many = Annotated[Any, "many"]
# Annotation of scratch memory; ``temps`` gives its shape and type.
Temp = Annotated[Any, "temp"]

SPECIAL = frozenset({"xp", "rng", "is_train", "comm", "prepared"})
WHOLE = frozenset({"out", "aux", "hidden"})
_Class = TypeVar("_Class", bound="type[Op]")


class Sample(NamedTuple):
    """Values of an example's input: uniform in [low, high], whole numbers if ``integer``."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    integer: bool = False


class Op:
    """Base of all operators. An instance is one setting of the attributes: frozen, hashable, comparable.

    Every author writes fields, ``infer``, ``forward``, ``backward`` and ``examples``; ``inputs`` and ``outputs`` may be
    tuples or methods of the attributes. The rest makes an operator better and is never needed for a right answer.
    """

    outputs: ClassVar[Any] = ("out",)
    listed: ClassVar[Any] = ()  # other names for the outputs in lists
    hidden: ClassVar[Any] = ()
    aux: ClassVar[Any] = ()
    no_gradient: ClassVar[tuple[str, ...]] = ()
    inplace: ClassVar[Mapping[str, str]] = {}
    passes: ClassVar[Any] = ()  # inputs whose gradient is the one output's: handed on without backward
    linear: ClassVar[tuple[str, ...]] = ()  # inputs in each of which ``out`` is linear
    ignored: ClassVar[Any] = ()
    rows: ClassVar[str | None] = None
    batch_axis: ClassVar[int] = 0  # of the first input; 1 where steps stand first
    hints: ClassVar[tuple[str, ...]] = ()
    rest: ClassVar[str] = ""  # field (tuple[str, ...]) for attributes that no field names: sorted key=text
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()
    form: ClassVar[Form]

    def infer(self, s: Any) -> None:
        """Assign what must hold between the shapes ``s.<name>`` of inputs, auxiliaries, outputs and hidden outputs."""
        raise OperatorDefinitionError(f"operator {self.form.name} has no infer")

    def types(self, t: Any) -> None:
        """Assign element types; the default makes all the same, save inputs named in ``no_gradient``."""
        t.same()

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of each ``Temp`` parameter, from the known shapes ``s.<name>`` and types ``s.dtype(name)``."""
        return {}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        """Names among backward's parameters that it reads when only the gradients of ``want`` are asked for."""
        return self.form.backward.parameters if self.form.backward else ()

    def unused(self) -> Iterable[str]:
        """Names among backward's parameters, or of single values of a ``Many``, that this setting never reads.

        They are bound as None, or left out of the tuple; without any d<output> the setting is a loss head.
        """
        return ()

    def prepare(self, known: Any, context: Any) -> Any:
        """What the bodies get as ``prepared``: made once a bound node; ``known`` as in ``temps``."""
        return None

    def is_view(self, train: bool) -> bool:
        """True if the one output is the first input's bytes under another shape, in this mode."""
        return False

    def variable_attributes(self, argument: str) -> Mapping[str, str]:
        """Attributes that an input variable made for ``argument`` starts with, such as its ``__init__``."""
        return {}

    def total_outputs(self) -> int:
        """Outputs that MXNet's files count for this operator, hidden ones included."""
        signature = signature_of(self)
        return len(signature.outputs) + len(signature.hidden)


class Body(NamedTuple):
    """One body of an operator: its parameters after ``self``, and which are variadic or scratch."""

    parameters: tuple[str, ...]
    many: frozenset[str]
    temps: frozenset[str]


class Form(NamedTuple):
    """What registration found out about an operator class."""

    name: str
    aliases: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    forward: Body
    backward: Body | None
    update: Body | None

    @property
    def variadic(self) -> str | None:
        """Name of the parameter that takes all variadic inputs, if any."""
        return next((name for name in self.forward.parameters if name in self.forward.many - WHOLE), None)


# Where a body parameter comes from: kind (input output hidden aux dinput doutput temp absent, or one of SPECIAL) and
# position of the value in its kind; a tuple of positions for a ``Many`` parameter.
Slot = tuple[str, Any]


class Signature(NamedTuple):
    """Names of the values of one operator setting, and the slots of its bodies."""

    inputs: tuple[str, ...]
    aux: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: tuple[str, ...]
    names: Mapping[str, Sequence[str]]  # of the values by kind; of gradients (dinput, doutput) as ``d<name>``
    frame: Mapping[str, Any]  # name in a rule -> place (or places) among inputs, states, outputs, hidden outputs
    forward: tuple[Slot, ...]
    backward: tuple[Slot, ...] | None
    update: tuple[Slot, ...] | None
    head_gradient: bool  # whether backward reads the gradient of an output; a loss head does not
    output_suffixes: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Inputs and auxiliary states, in the order of a node's inputs."""
        return self.inputs + self.aux


def _names(op: Op, kind: str) -> tuple[str, ...]:
    value = getattr(op, kind, None)
    value = value() if callable(value) else () if value is None else value
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        raise OperatorDefinitionError(f"operator {op.form.name}: {kind} must be a tuple of names, but it is {value!r}")
    return tuple(value)


def _expand(op: Op, form: Form, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Input names that follow from forward's parameters; a ``Many`` one becomes arg0, arg1, …"""
    other = {*SPECIAL, *form.forward.temps, *outputs, *_names(op, "hidden"), *_names(op, "aux"), *WHOLE}
    names: list[str] = []
    for name in form.forward.parameters:
        if name in other:
            continue
        if name in form.forward.many:
            names += [f"arg{i}" for i in range(op.num_args)]  # type: ignore[attr-defined]
        else:
            names.append(name)
    return tuple(names)


@functools.lru_cache(maxsize=8192)
def signature_of(op: Op) -> Signature:
    """Names and slots of ``op``; raises OperatorDefinitionError where attributes and names do not fit."""
    form = op.form
    outputs, hidden, aux = _names(op, "outputs"), _names(op, "hidden"), _names(op, "aux")
    inputs = _names(op, "inputs") if hasattr(op, "inputs") else _expand(op, form, outputs)
    fixed = set(form.forward.parameters) - form.forward.many - SPECIAL
    every = [*inputs, *aux, *outputs, *hidden]
    if not outputs or len(set(every)) < len(every):
        raise OperatorDefinitionError(
            f"operator {form.name}: there must be an output, and all names must differ, but inputs, auxiliary states, "
            f"outputs and hidden outputs are {inputs}, {aux}, {outputs}, {hidden}"
        )
    unused = frozenset(op.unused())
    variadic = tuple(i for i, name in enumerate(inputs) if name not in fixed) if form.variadic else ()
    names: dict[str, Sequence[str]] = {"input": inputs, "aux": aux, "output": outputs, "hidden": hidden}
    names |= {"d" + kind: tuple("d" + name for name in names[kind]) for kind in ("input", "output")}
    groups: dict[str, Any] = {name: (kind, i) for kind, members in names.items() for i, name in enumerate(members)}
    if form.variadic:
        groups[form.variadic], groups["d" + form.variadic] = ("input", variadic), ("dinput", variadic)
    for name, kind in (("out", "output"), ("dout", "doutput"), ("aux", "aux"), ("hidden", "hidden")):
        if name.removeprefix("d") in form.forward.many:
            groups[name] = (kind, tuple(range(len(names[kind]))))

    def slots(body: Body | None, left_out: frozenset[str] = frozenset()) -> tuple[Slot, ...] | None:
        if body is None:
            return None
        found: list[Slot] = []
        for name in body.parameters:
            if name in SPECIAL:
                found.append((name, 0))
            elif name in body.temps:
                found.append(("temp", name))
            else:
                absent = name in left_out and name not in body.many
                kind, place = ("absent", name) if absent else groups.get(name, ("absent", name))
                if isinstance(place, tuple):
                    place = tuple(position for position in place if names[kind][position] not in left_out)
                found.append((kind, place))
        return tuple(found)

    place_of = {name: place for place, name in enumerate(every)}
    frame: dict[str, Any] = dict.fromkeys(form.forward.parameters)  # absent optional inputs read as unknown
    for name, (kind, position) in groups.items():
        if kind in ("input", "aux", "output", "hidden"):
            many = isinstance(position, tuple)
            frame[name] = tuple(place_of[names[kind][p]] for p in position) if many else place_of[name]
    backward = slots(form.backward, unused)
    listed = _names(op, "listed") or outputs
    suffixes = ("output" + name[3:] if name[:3] == "out" and name[3:].isdecimal() else name for name in listed)
    return Signature(
        inputs, aux, outputs, hidden, names, frame, slots(form.forward) or (), backward, slots(form.update),
        any(kind == "doutput" and place != () for kind, place in backward or ()),
        tuple("output" if suffix == "out" else suffix for suffix in suffixes),
    )  # fmt: skip


def gradient_positions(op: Op) -> list[int]:
    """Positions of the inputs to which backward of ``op`` gives a gradient."""
    signature, found = signature_of(op), list[int]()
    for kind, place in signature.backward or ():
        if kind == "dinput":
            places = place if isinstance(place, tuple) else (place,)
            found += [p for p in places if signature.inputs[p] not in op.no_gradient]
    return found


def scratch_of(op: Op, known: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of every ``Temp`` of ``op``; raises OperatorDefinitionError where ``temps`` leaves one out."""
    found = op.temps(known)
    bodies = [body for body in (op.form.forward, op.form.backward, op.form.update) if body]
    missing = [name for body in bodies for name in body.parameters if name in body.temps and name not in found]
    if missing:
        fact = f"temps(self, s) gives no shape and type of the Temp '{missing[0]}'"
        raise OperatorDefinitionError(f"operator {op.form.name}: {fact}{near_miss(missing[0], found)}")
    return found


class Known:
    """Known shapes of one node's values under their names, and their types by ``dtype(name)``: what ``temps`` sees."""

    __slots__ = ("_names", "_shapes", "_types")

    def __init__(self, signature: Signature, shapes: Sequence[Any], types: Sequence[Any]) -> None:
        """``shapes`` and ``types`` stand in frame order: inputs, auxiliaries, outputs, hidden outputs."""
        self._names, self._shapes, self._types = signature.frame, shapes, types

    def _of(self, values: Sequence[Any], name: str) -> Any:
        slot = self._names[name]
        if isinstance(slot, tuple):
            return tuple(values[i] for i in slot)
        return None if slot is None else values[slot]

    def __getattr__(self, name: str) -> Any:
        return self._of(self._shapes, name)

    def dtype(self, name: str) -> Any:
        """Element type of a value; a tuple of them for a ``Many``."""
        return self._of(self._types, name)


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
