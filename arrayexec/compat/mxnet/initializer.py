"""``mx.init``: the initialisers of the engine, which fill NDArrays; one of a program's own gets NDArrays."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ...train import initializer as _core
from ...train.initializer import InitDesc
from .array import unwrap, wrap
from .refused import found_in

__all__ = ["InitDesc", "Initializer", "create", "register"]


class Initializer(_core.Initializer):
    """Base of initialisers: a subclass gives ``_init_weight(name, arr)``, which fills an NDArray."""

    def __call__(self, desc: Any, array: Any) -> None:
        """Fill ``array`` by the rules of names."""
        super().__call__(desc, unwrap(array))

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, rule in list(vars(cls).items()):
            if name.startswith("_init_") and isinstance(rule, FunctionType):
                setattr(cls, name, _filling(rule))


def _filling(rule: Any) -> Any:
    """A rule of a program's class, called with an NDArray."""
    return lambda self, desc, array, *others: rule(self, desc, wrap(unwrap(array)), *others)


class _Taken:
    """An initialiser of the engine that takes NDArrays."""

    def __call__(self, desc: Any, array: Any) -> None:
        """Fill ``array`` by the rules of names."""
        super().__call__(desc, unwrap(array))  # type: ignore[misc]

    def init_array(self, array: Any, name: str = "") -> None:
        """Fill ``array`` by this initialiser's own rule."""
        super().init_array(unwrap(array), name)  # type: ignore[misc]

    def _init_weight(self, desc: Any, array: Any) -> None:
        super()._init_weight(desc, unwrap(array))  # type: ignore[misc]


create = _core.create
register = _core.register
_classes: dict[type, type] = {_core.Initializer: Initializer}


def __getattr__(name: str) -> Any:
    found = found_in(_core, "init", name, __dir__())
    if not isinstance(found, type) or not issubclass(found, _core.Initializer):
        return found
    if found not in _classes:
        _classes[found] = type(found.__name__, (_Taken, found, Initializer), {"__doc__": found.__doc__})
    return _classes[found]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_core) if name[:1] != "_")})
