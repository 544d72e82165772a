"""``mx.executor``: an executor whose arrays are NDArrays over its own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...executor import Executor as _Executor
from .array import unwrap, wrap

__all__ = ["Executor"]


class Executor:
    """One symbol bound to arrays, as `arrayexec.executor.Executor`; what it hands out are NDArrays."""

    def __init__(self, core: _Executor) -> None:
        self.core = core

    def _named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        where = self.core._binding.placement.of
        return {name: wrap(array, where(name)) for name, array in arrays.items()}

    def _listed(self, arrays: Iterable[Any]) -> list[Any]:
        return [wrap(array, self.core.context) for array in arrays]

    @property
    def arg_dict(self) -> dict[str, Any]:
        """Arguments by name, in the symbol's order."""
        return self._named(self.core.arg_dict)

    @property
    def grad_dict(self) -> dict[str, Any]:
        """Gradient arrays by name; None where no gradient is asked for."""
        return self._named(self.core.grad_dict)

    @property
    def aux_dict(self) -> dict[str, Any]:
        """Auxiliary states by name."""
        return self._named(self.core.aux_dict)

    @property
    def arg_arrays(self) -> list[Any]:
        """Arguments in the symbol's order."""
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[Any]:
        """Gradient arrays in the order of the arguments; None where no gradient is asked for."""
        return list(self.grad_dict.values())

    @property
    def aux_arrays(self) -> list[Any]:
        """Auxiliary states in the symbol's order."""
        return list(self.aux_dict.values())

    @property
    def outputs(self) -> list[Any]:
        """Output arrays, overwritten by the next forward in the same memory."""
        return self._listed(self.core.outputs)

    @property
    def output_dict(self) -> dict[str, Any]:
        """Output arrays by name."""
        return {name: wrap(array, self.core.context) for name, array in self.core.output_dict.items()}

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[Any]:
        """Run forward and give the outputs; arrays given by name are copied into arguments first."""
        return self._listed(self.core.forward(is_train, **{name: unwrap(value) for name, value in kwargs.items()}))

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Write (or add) the gradients; ``out_grads`` as an array, a list or a dict by output name."""
        self.core.backward(unwrap(out_grads), is_train)

    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays into arguments and auxiliary states by name."""
        self.core.copy_params_from(unwrap(arg_params), unwrap(aux_params), allow_extra_params)

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any) -> Executor:
        """An executor for other input shapes that shares this one's arrays."""
        return Executor(self.core.reshape(partial_shaping, allow_up_sizing, **kwargs))

    def set_monitor_callback(self, callback: Callable[[str, Any], Any] | None, monitor_all: bool = False) -> None:
        """Call ``callback(name, NDArray)`` for every output of a node (None: no more)."""
        seen = callback and (lambda name, array: callback(name, wrap(array)))
        self.core.set_monitor_callback(seen, monitor_all)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)
