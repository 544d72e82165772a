"""Modules: a symbol with its parameters, optimizer and devices, trained, scored and asked for predictions.

* modules: `base_module` (`fit` and what else runs over batches), `bound_module` (a step), `module`, `bucketing_module`,
  `sequential_module`, `python_module`; `symbol_changes` for frozen layers; `model` (`FeedForward`), `callback`;
* saving: `checkpoint` (all that training goes on from) with `trained_state` (a manager's part) and `rank_files` (one
  rank writes for all); `model_files` (MXNet's symbol and parameters);
* stores: `kvstore` with `two_bit`.
"""

from .base_module import BaseModule
from .bucketing_module import BucketingModule
from .module import Module
from .python_module import PythonLossModule, PythonModule
from .sequential_module import SequentialModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]
