"""Gradients of linear operators, as operators.

An operator that names inputs in ``linear`` is linear in each of them while the others stay. Its gradient for one of
them, ``x``, is linear again: in what arrives and in the others; the values of ``x`` do not count. So for every such
pair there is an operator ``_gradient_<operator>_<input>``, whose forward is the operator's own backward, and whose
gradients are the operator itself and others of this kind: where ``g`` arrives (of ``x``'s shape), the gradient for
what had arrived is the operator at ``x = g``, and the one for another input is that input's gradient at ``x = g``.
That is closed, so it gives derivatives of every order. The classes are made when they are first asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ..errors import AttributeValueError
from ..registry import SPECIAL, Op, Temp, find_op, get_op, register_op, signature_of

PREFIX = "_gradient_"


class Inner:
    """A frame (or known shapes) as the operator sees it whose output is called ``head`` here."""

    __slots__ = ("_frame", "_wrt")

    def __init__(self, frame: Any, wrt: str = "") -> None:
        object.__setattr__(self, "_frame", frame)
        object.__setattr__(self, "_wrt", wrt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, "head" if name == "out" else name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._frame, "head" if name == "out" else name, value)

    def fail(self, argument: str, text: str) -> None:
        self._frame.fail("head" if argument == "out" else argument, text)

    def same(self) -> None:
        self._frame.same()
        setattr(self._frame, self._wrt, self._frame.out)

    def dtype(self, name: str) -> Any:
        return self._frame.dtype("head" if name == "out" else name)


class Transposed(Op):
    """Base of the classes made here: ``out`` = gradient of ``head`` for one input of a linear operator."""

    linear_class: ClassVar[type[Op]]
    wrt: ClassVar[str]
    rows, passes, linear, examples = None, (), (), ()  # not those of the operator, which stands behind in each class
    inplace: ClassVar[Mapping[str, str]] = {}
    unused = Op.unused

    def __post_init__(self) -> None:
        super_init = getattr(super(), "__post_init__", None)
        if super_init is not None:
            super_init()
        others = set(self.inner.form.forward.parameters).intersection(signature_of(self.inner).inputs)
        bent = sorted(others.difference(self.inner.linear, self.inner.no_gradient))
        if bent or self.wrt not in others:
            raise AttributeValueError(
                f"{self.form.name}: the attributes must be those of {self.inner.form.name} without inputs in which it "
                f"is not linear, but they make it take {', '.join(bent) or 'no ' + self.wrt}"
            )

    @functools.cached_property
    def inner(self) -> Any:
        """The linear operator, of the same attributes."""
        return self.linear_class(**{name: getattr(self, name) for name in self.linear_class.form.attributes})

    @property
    def no_gradient(self) -> tuple[str, ...]:  # type: ignore[override]
        """The input whose gradient this is: only its shape counts; and what the operator has no gradient for."""
        return (self.wrt, *self.linear_class.no_gradient)

    def inputs(self) -> tuple[str, ...]:
        return ("head", *signature_of(self.inner).inputs)

    def infer(self, s: Any) -> None:
        s.out = getattr(s, self.wrt)
        setattr(s, self.wrt, s.out)
        self.inner.infer(Inner(s))

    def types(self, t: Any) -> None:
        self.inner.types(Inner(t, self.wrt))
        t.out = getattr(t, self.wrt)
        setattr(t, self.wrt, t.out)

    def temps(self, s: Any) -> Any:
        return self.inner.temps(Inner(s))

    def prepare(self, known: Any, context: Any) -> Any:
        return self.inner.prepare(Inner(known), context)

    def is_view(self, train: bool) -> bool:
        return bool(self.inner.is_view(train)) and signature_of(self.inner).inputs[0] == self.wrt

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name in Op.keeps(self, want) if name != "head" or want != {"head"}]

    def gradient(self, sym: Any, dout: Any, head: Any, **values: Any) -> Mapping[str, Any]:
        """As the text of this module says."""
        own = {name: values.get(name) for name in signature_of(self.inner).inputs} | {self.wrt: dout}
        others = [name for name in self.inner.linear if name != self.wrt]
        result = {"head": getattr(sym, self.inner.form.name)(**own, **_attributes(self.inner))}
        return result | {name: _node(sym, self.inner, name, head, own) for name in others}


def _attributes(op: Op) -> dict[str, Any]:
    """The attributes that differ from their defaults."""
    values = {name: (getattr(op, name), attribute) for name, attribute in op.form.attributes.items()}
    return {name: value for name, (value, a) in values.items() if a.required or value != a.default}


def _node(sym: Any, op: Op, wrt: str, head: Any, inputs: Mapping[str, Any]) -> Any:
    return getattr(sym, f"{PREFIX}{op.form.name}_{wrt}")(head=head, **inputs, **_attributes(op))


def gradients(sym: Any, op: Op, dout: Any, **inputs: Any) -> dict[str, Any]:
    """Gradients of a linear operator by input, as Symbols: ``inputs`` are Symbols by name, ``dout`` what arrives."""
    own = {name: inputs.get(name) for name in signature_of(op).inputs}
    return {name: _node(sym, op, name, dout, own) for name in op.linear}


def load(name: str) -> bool:
    """Make and register the class of a name ``_gradient_<operator>_<input>``; False if there is no such pair."""
    words = name.removeprefix(PREFIX).split("_")
    for i in range(len(words) - 1, 0, -1):  # names of operators and inputs have such lines, too
        operator, wrt = "_".join(words[:i]), "_".join(words[i:])
        cls = find_op(operator)
        if cls is not None and cls.form.name == operator and wrt in cls.linear:
            _register(name, cls, wrt)
            return True
    return False


def _register(name: str, cls: type[Op], wrt: str) -> None:
    forward, backward = _bodies(cls, wrt)
    space: dict[str, Any] = {
        "__doc__": f"``out`` = gradient of {cls.form.name} for {wrt} where ``head`` arrives; the shape is {wrt}'s.",
        "__module__": __name__,
        "__qualname__": name,
        "linear_class": cls,
        "wrt": wrt,
        "forward": forward,
        "backward": backward,
    }
    register_op(type(name, (Transposed, cls), space), name=name)


def __getattr__(name: str) -> Any:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return get_op(name)


def _bodies(cls: type[Op], wrt: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Forward and backward for one input, with the parameters that the engine binds by name."""
    ahead: Any = cls.form.forward
    back: Any = cls.form.backward
    others = [name for name in cls.linear if name != wrt]

    def forward(self: Any, *bound: Any) -> None:
        values = dict(zip(names, bound, strict=True))
        values |= {"dout": values["head"], wrt: values["out"], "d" + wrt: values["out"]}  # of wrt only the shape counts
        self.inner.backward(*map(values.get, back.parameters))

    def backward(self: Any, *bound: Any) -> None:
        values = dict(zip(back_names, bound, strict=True))
        values[wrt] = values["dout"]
        if values["dhead"] is not None:
            self.inner.forward(*map((values | {"out": values["dhead"]}).get, ahead.parameters))
        if any(values["d" + name] is not None for name in others):
            self.inner.backward(*map((values | {"dout": values["head"]}).get, back.parameters))

    names = _sign(forward, ("xp", "head", "out"), wrt, ahead, back)
    gradients = ("dhead", *("d" + name for name in others))
    back_names = _sign(backward, ("xp", "dout", "head", *gradients), wrt, ahead, back, ahead)
    return forward, backward


def _sign(body: Any, first: tuple[str, ...], wrt: str, ahead: Any, *calls: Any) -> tuple[str, ...]:
    """Give ``body`` the parameters ``first``, then the other inputs, and what the bodies that it ``calls`` need beside.

    Inputs that a setting leaves out are among them: the rules of inference speak of them.
    """
    inputs = [name for name in ahead.parameters if name not in (*SPECIAL, *ahead.temps, "out", wrt)]
    temps = [name for call in calls for name in call.parameters if name in call.temps]
    special = [name for call in calls for name in call.parameters if name in SPECIAL]
    names = tuple(dict.fromkeys((*first, *inputs, *special, *temps)))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    marks = [inspect.Parameter(name, kind, annotation=Temp if name in temps else Any) for name in ("self", *names)]
    body.__signature__ = inspect.Signature(marks)
    return names
