"""The operator form: what an operator's author writes, and what its names bind.

An operator is one class. Its annotated fields are its attributes; the parameter *names* of its bodies say what is
bound: ``data`` is an input, ``ddata`` its gradient, ``out`` an output, ``dout`` the gradient that arrives there. See
``docs/operators_howto.md`` for the walk-through. Programs find all this in ``registry``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from .attribute_text import Attribute
from .errors import OperatorDefinitionError, near_miss

# Annotation of a parameter that takes a tuple: all variadic inputs; all outputs, auxiliary states or hidden outputs if
# it is called ``out``, ``aux`` or ``hidden``.
Many = Annotated[Any, "many"]
# Annotation of scratch memory; ``temps`` gives its shape and type.
Temp = Annotated[Any, "temp"]

SPECIAL = frozenset({"xp", "rng", "is_train", "comm", "prepared"})
WHOLE = frozenset({"out", "aux", "hidden"})


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
    """Names of the outputs; a method where they depend on attributes, as with all names here."""
    listed: ClassVar[Any] = ()
    """Other names for the outputs in lists."""
    hidden: ClassVar[Any] = ()
    """Outputs that forward makes for backward and nobody else sees."""
    aux: ClassVar[Any] = ()
    """Auxiliary states, which change in ``update`` only."""
    no_gradient: ClassVar[tuple[str, ...]] = ()
    """Inputs whose gradient is zeros and whose type is free."""
    inplace: ClassVar[Mapping[str, str]] = {}
    """Written name to the read one whose bytes it may lie on."""
    passes: ClassVar[Any] = ()
    """Inputs whose gradient is the one output's: handed on without backward."""
    linear: ClassVar[tuple[str, ...]] = ()
    """Inputs in each of which ``out`` is linear while the others stay."""
    multiplies: ClassVar[bool | None] = None
    """Whether the bodies spend their time in products of matrices; None: if ``linear`` in two inputs.

    By it a plan guesses from the sizes of its arrays whether a second thread for products pays.
    """
    tile: ClassVar[int] = 0
    """Values that the matrix of one product holds at the most, where windows are laid out tile by tile; 0: no tiles."""
    ignored: ClassVar[Any] = ()
    """Inputs whose values count for nothing in this setting (a fixed gamma): no update, no decay."""
    rows: ClassVar[str | None] = None
    """What cutting the batch does: ``"parallel"``, ``"sum"`` (gradients of weights are sums), None: rows meet."""
    batch_axis: ClassVar[int] = 0
    """The batch's axis of the first input; 1 where steps stand first."""
    hints: ClassVar[tuple[str, ...]] = ()
    """Attributes that change no result."""
    rest: ClassVar[str] = ""
    """Field (tuple[str, ...]) for attributes that no field names: sorted key=text."""
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Shapes (or a `Sample`) of inputs and attributes, on which the contract runs the operator."""
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
