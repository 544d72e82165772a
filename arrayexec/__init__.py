"""arrayexec: a symbolic graph becomes a plan, the plan becomes executors on plain NumPy and CuPy arrays.

``import arrayexec`` brings in NumPy and the standard library; each name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from .aliases import let_find

__version__ = "0.1.0"

_MODULES = {
    "attribute": "symbol.attribute", "callback": "module.callback", "checkpoint": "module.checkpoint", "comm": "comm",
    "context": "context", "errors": "errors", "executor_manager": "parallel.executor_manager", "image": "train.image",
    "init": "train.initializer", "initializer": "train.initializer", "io": "train.io", "kv": "module.kvstore",
    "kvstore": "module.kvstore", "lr_scheduler": "train.lr_scheduler", "metric": "train.metric", "mod": "module",
    "model": "module.model", "module": "module", "mon": "train.monitor", "monitor": "train.monitor",
    "name": "symbol.naming", "nd": "files", "operator": "operator", "ops": "ops", "optimizer": "train.optimizer",
    "parallel": "parallel", "plan": "plan", "random": "train.random", "recordio": "train.recordio", "rnn": "train.rnn",
    "sym": "symbol", "symbol": "symbol", "testing": "testing", "train": "train",
}  # fmt: skip
"""Public modules: name here -> module of the package."""

_OBJECTS = {
    "symbol": "Symbol Variable Group",
    "symbol.attribute": "AttrScope",
    "symbol.naming": "NameManager Prefix",
    "registry": "Op register_op",
    "context": "Context cpu gpu current_context num_gpus asnumpy copyto",
    "executor": "Executor",
    "threads": "set_num_threads",
    "train.initializer": "InitDesc",
    "train.model_helper": "ModelHelper",
    "parallel.data_parallel_model": "parallelize parallelize_gpu parallelize_cpu parallelize_ideep "
    "optimize_gradient_memory",
    "parallel.parallel_model": "ParallelModel",
    "parallel.predictor": "convert_net_for_device extract_predictor_net",
    "parallel.bmuf": "parallelize_bmuf",
}
"""Public objects by the module that defines them; exception classes of ``errors`` are found beside them."""

_HOME = {name: module for module, names in _OBJECTS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        path, attribute = _MODULES[name], None
    elif name in _HOME:
        path, attribute = _HOME[name], name
    else:
        errors = importlib.import_module(f"{__name__}.errors")
        if not name.startswith("_") and isinstance(getattr(errors, name, None), type):
            path, attribute = "errors", name
        else:
            raise AttributeError(f"'{__name__}' has no attribute '{name}'{errors.near_miss(name, __dir__())}")
    full = f"{__name__}.{path}"
    try:
        module = importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{full}.".startswith(f"{error.name}."):
            raise AttributeError(
                f"'{__name__}.{name}' is not part of this installation: no module {error.name}"
            ) from None
        raise
    found = module if attribute is None else getattr(module, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*_MODULES, *_HOME, "__version__"})


def _place(alias: str) -> str | None:
    return f".{_MODULES[alias]}" if _MODULES.get(alias, alias) != alias else None


let_find(__name__, _place)
