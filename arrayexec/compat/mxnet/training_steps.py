"""Steps of training loops that programs took from ``mx.model``: stores made, filled, and used for updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .kvstore import KVStore, create

_LARGE = 16 << 20  # elements of a parameter that devices update themselves

Arrays = Sequence[Sequence[Any]]
"""For every parameter its arrays (or gradients), one a device."""


def create_kvstore(kvstore: Any, num_device: int, arg_params: Mapping[str, Any]) -> tuple[KVStore | None, bool]:
    """The store of a kind (None for one device of one process), and whether updates are made in it."""
    if isinstance(kvstore, str):
        if num_device == 1 and "dist" not in kvstore:
            return None, False
        large = kvstore == "local" and max((array.size for array in arg_params.values()), default=0) > _LARGE
        return create(kvstore), not large
    return kvstore, kvstore is not None


def initialize_kvstore(
    kvstore: Any, param_arrays: Arrays, arg_params: Mapping[str, Any], param_names: Sequence[str],
    update_on_kvstore: bool,
) -> None:  # fmt: skip
    """Give a store the values of all parameters, and with ``update_on_kvstore`` the devices those of the store."""
    for index, (name, arrays) in enumerate(zip(param_names, param_arrays, strict=True)):
        kvstore.init(name, arg_params[name])
        if update_on_kvstore:
            kvstore.pull(name, out=list(arrays), priority=-index)


def update_params_on_kvstore(
    param_arrays: Arrays, grad_arrays: Arrays, kvstore: Any, param_names: Sequence[str]
) -> None:
    """Let the store sum the gradients and make the step; the devices get its parameters."""
    for index, (name, arrays, gradients) in enumerate(zip(param_names, param_arrays, grad_arrays, strict=True)):
        if gradients[0] is not None:
            kvstore.push(name, list(gradients), priority=-index)
            kvstore.pull(name, out=list(arrays), priority=-index)


def update_params(
    param_arrays: Arrays, grad_arrays: Arrays, updater: Callable[[int, Any, Any], Any], num_device: int,
    kvstore: Any = None, param_names: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Let the store, if there is one, sum the gradients; then every device makes the step by itself."""
    for index, (arrays, gradients) in enumerate(zip(param_arrays, grad_arrays, strict=True)):
        if gradients[0] is None:
            continue
        if kvstore is not None:
            name = index if param_names is None else param_names[index]
            kvstore.push(name, list(gradients), priority=-index)
            kvstore.pull(name, out=list(gradients), priority=-index)
        for device, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
            updater(index * num_device + device, gradient, array)
