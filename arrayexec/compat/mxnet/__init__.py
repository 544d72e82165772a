"""``import arrayexec.compat.mxnet as mx``: the names of MXNet 1.x, with arrays that behave as MXNet's.

Symbols, executors, modules, iterators, metrics and custom operators are those of `arrayexec`; what they hand out here
are NDArrays over the same memory. Each name is imported when it is first used. What cannot be here says what to use
instead. See ``docs/from-mxnet.md``.
"""

from __future__ import annotations

import importlib
from typing import Any

from ...aliases import let_find
from .refused import REFUSED

__version__ = "1.9.1"

_MODULES = {
    "attribute": "attribute", "base": "base", "callback": "...module.callback", "context": "context",
    "contrib": "contrib", "engine": "engine", "executor": "executor",
    "executor_manager": "executor_manager", "image": "image", "img": "image", "init": "initializer",
    "initializer": "initializer", "io": "io", "kv": "kvstore", "kvstore": "kvstore",
    "lr_scheduler": "...train.lr_scheduler", "metric": "metric", "mod": "module", "model": "model",
    "module": "module", "mon": "monitor", "monitor": "monitor", "name": "name", "nd": "ndarray",
    "ndarray": "ndarray", "operator": "operator", "opt": "optimizer", "optimizer": "optimizer",
    "profiler": "profiler", "random": "random", "recordio": "...train.recordio", "rnd": "random", "rnn": "rnn",
    "sym": "symbol", "symbol": "symbol", "test_utils": "test_utils", "util": "util",
    "visualization": "visualization", "viz": "visualization",
}  # fmt: skip
_OBJECTS = {
    "base": "MXNetError",
    "context": "Context cpu cpu_pinned current_context gpu gpu_memory_info num_gpus",
    "attribute": "AttrScope",
    "util": "is_np_array is_np_shape",
}
_DEEPER = {
    "io.io": "io", "module.base_module": "module", "module.bucketing_module": "module",
    "module.executor_group": "...parallel.executor_group", "module.module": "module",
    "module.python_module": "module", "module.sequential_module": "module", "ndarray.ndarray": "ndarray",
    "ndarray.random": "random", "optimizer.optimizer": "optimizer", "rnn.io": "rnn", "rnn.rnn": "rnn",
    "rnn.rnn_cell": "rnn", "symbol.symbol": "symbol",
}  # fmt: skip
"""Modules inside modules, which programs import from: here they are one."""
_HOME = {name: module for module, names in _OBJECTS.items() for name in names.split()}


def _relative(place: str) -> str:
    return place if place.startswith(".") else f".{place}"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(_relative(_MODULES[name]), __name__)
    elif name in _HOME:
        found = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif name in REFUSED:
        raise AttributeError(f"mx.{name} is not here: {REFUSED[name]}")
    else:
        from ...errors import near_miss

        raise AttributeError(f"'{__name__}' has no attribute '{name}'{near_miss(name, __dir__())}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*_MODULES, *_HOME, "__version__"})


def _place(alias: str) -> str | None:
    if alias in REFUSED:
        raise ImportError(f"mx.{alias} is not here: {REFUSED[alias]}", name=f"{__name__}.{alias}")
    place = _DEEPER.get(alias, _MODULES.get(alias, alias))
    return _relative(place) if place != alias else None


let_find(__name__, _place)
