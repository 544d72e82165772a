"""``mx.optimizer``: the rules of the engine; one of a program's own gets NDArrays."""

from __future__ import annotations

import functools
from typing import Any

from ...train import optimizer as _core
from .array import unwrap, wrap, wrap_all
from .refused import found_in

__path__: list[str] = []  # programs import from modules inside this one
__all__ = ["Optimizer", "Updater", "create", "get_updater", "register"]


class _Names(dict[Any, str]):
    """Names by index that know themselves, too."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.values()

    def __missing__(self, key: Any) -> str:
        return {name: name for name in self.values()}[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """The name of an index, or ``default``."""
        return super().get(key, str(key) if key in self else default)


class Optimizer(_core.Optimizer):
    """Base of optimizers: a subclass gives ``create_state(index, weight)`` and ``update(index, weight, grad, state)``.

    A state is None, an NDArray, or a tuple or dict of them. The states of a rule of the engine are handed to a
    subclass of it as they are in MXNet: None, the array if there is one, a tuple if there are more.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        _take_arrays(self)

    @property  # type: ignore[override]
    def idx2name(self) -> _Names:
        """Names of parameters by index; a name, which is what modules give as an index, stands for itself."""
        return self._names

    @idx2name.setter
    def idx2name(self, names: Any) -> None:
        self._names = _Names(names)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _hand_arrays(cls)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The state of a parameter."""
        return self.create_state(index, weight)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Change a parameter and its state in place."""
        self.update(index, weight, grad, state)


def _take_arrays(optimizer: Any) -> None:
    """Let what the engine defines take NDArrays, too: on the object, so that its class stays as fast as it is."""
    for name in ("create_state", "update"):
        if getattr(type(optimizer), name) is getattr(_core.Optimizer, name):
            setattr(optimizer, name, functools.partial(_plainly, getattr(type(optimizer), name), optimizer))


def _plainly(function: Any, *args: Any) -> Any:
    return function(*unwrap(args))


def _hand_arrays(cls: type) -> None:
    """Let what a program's class defines be called with NDArrays, and let it call what the engine defines with them."""
    for name in ("create_state", "update"):
        if name in cls.__dict__:
            setattr(cls, name, _with_arrays(cls.__dict__[name]))
            cls.state_like, cls.step_one = _called_inside(cls)  # type: ignore[attr-defined]


def _with_arrays(function: Any) -> Any:
    """A method that is called with NDArrays, and whose arrays go on as plain ones."""

    def method(self: Any, index: Any, weight: Any, *others: Any) -> Any:
        return unwrap(function(self, index, wrap(weight), *(wrap_all(_bare(self, other)) for other in others)))

    return method


def _called_inside(cls: Any) -> tuple[Any, Any]:
    """What the engine's ``create_state`` and ``update`` call, for those that a program's class calls with NDArrays."""

    def state_like(self: Any, weight: Any) -> Any:
        return super(cls, self).state_like(unwrap(weight))

    def step_one(self: Any, weight: Any, grad: Any, state: Any, *others: Any) -> None:
        plain = unwrap(state)
        if not isinstance(plain, dict):
            arrays = () if plain is None else plain if isinstance(plain, tuple) else (plain,)
            plain = dict(zip(self.used_states(), arrays, strict=True))
        super(cls, self).step_one(unwrap(weight), unwrap(grad), plain, *others)

    return state_like, step_one


def _bare(optimizer: Any, state: Any) -> Any:
    """The states by name of a rule of the engine as MXNet has them; anything else as it is."""
    if isinstance(state, tuple):
        return tuple(_bare(optimizer, one) for one in state)
    if type(state) is not dict or not optimizer.state_names or tuple(state) != optimizer.used_states():
        return state
    arrays = tuple(state.values())
    return arrays if len(arrays) > 1 or isinstance(optimizer, _core.RMSProp) else arrays[0] if arrays else None


class Updater(_core.Updater):
    """A function ``updater(index, grad, weight)`` that keeps the optimizer's states."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one parameter (or those of lists) in place."""
        if isinstance(index, list | tuple):
            for one, its_grad, its_weight in zip(index, grad, weight, strict=True):
                super().__call__(one, unwrap(its_grad), unwrap(its_weight))
        else:
            super().__call__(index, unwrap(grad), unwrap(weight))


def get_updater(optimizer: Any) -> Updater:
    """A function ``updater(index, grad, weight)`` that keeps the optimizer's states."""
    return Updater(optimizer)


def create(name: Any, **kwargs: Any) -> Any:
    """The optimizer of a registered name, or the one given."""
    found = _core.create(name, **kwargs)
    if not isinstance(found, Optimizer):
        found.__class__ = __getattr__(type(found).__name__)
        found.idx2name = found.__dict__.pop("idx2name")
        _take_arrays(found)
    return found


register = _core.register


_classes: dict[type, type] = {_core.Optimizer: Optimizer, _core.Updater: Updater}


def __getattr__(name: str) -> Any:
    found = found_in(_core, "optimizer", name, __dir__())
    if not (isinstance(found, type) and issubclass(found, _core.Optimizer)):
        return found
    if found not in _classes:
        _classes[found] = type(name, (found, Optimizer), {"__doc__": found.__doc__})
    return _classes[found]


def __dir__() -> list[str]:
    return sorted({*__all__, *_core.__all__})
