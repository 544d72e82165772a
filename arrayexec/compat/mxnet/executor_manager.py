"""``mx.executor_manager``: executors of one symbol, or of one a bucket, on several devices, with NDArrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...parallel import executor_manager as _core
from .array import unwrap, wrap_all
from .module import plain_batch

__all__ = ["DataParallelExecutorManager"]


class DataParallelExecutorManager(_core.DataParallelExecutorManager):
    """Executors on several devices: load a batch, run forward and backward, read parameters and gradients."""

    @property
    def param_arrays(self) -> list[list[Any]]:
        """For every parameter its arrays, one a device."""
        return wrap_all(super().param_arrays)  # type: ignore[no-any-return]

    @property
    def grad_arrays(self) -> list[list[Any]]:
        """For every parameter its gradients, one a device."""
        return wrap_all(super().grad_arrays)  # type: ignore[no-any-return]

    @property
    def aux_arrays(self) -> list[list[Any]]:
        """For every auxiliary state its arrays, one a device."""
        return wrap_all(super().aux_arrays)  # type: ignore[no-any-return]

    def set_params(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """Give parameters and auxiliary states values by name."""
        super().set_params(unwrap(arg_params), unwrap(aux_params))

    def copy_to(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """Write the means over devices into arrays by name."""
        super().copy_to(unwrap(arg_params), unwrap(aux_params))

    def load_data_batch(self, data_batch: Any, *args: Any, **keywords: Any) -> None:
        """Copy a batch to the devices."""
        super().load_data_batch(plain_batch(data_batch), *args, **keywords)

    def backward(self, out_grads: Any = None) -> None:
        """Run backward; ``out_grads``: head gradients of the whole batch."""
        super().backward(unwrap(out_grads))

    def update_metric(self, metric: Any, labels: Any, *args: Any, **keywords: Any) -> None:
        """Count the outputs of the last forward against labels."""
        super().update_metric(metric, unwrap(labels), *args, **keywords)


def __getattr__(name: str) -> Any:
    return getattr(_core, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_core) if name[:2] != "__")})
