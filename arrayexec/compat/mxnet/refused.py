"""What MXNet has and this namespace has not, with what to use instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import near_miss

_SYMBOLS = "gradients come from symbols: mx.sym, bind, Executor.backward (or mx.mod.Module)"
_GRAPHS = "build the network with mx.sym and train it with mx.mod.Module or BucketingModule"
_LOOPS = "loops and branches are written in Python: over arrays, or over the symbols of a graph (a cell's unroll())"
_BOXES = "labels of boxes are read with mx.recordio and an iterator of your own (mx.io.DataIter)"

REFUSED = {
    "autograd": f"nothing is recorded; {_SYMBOLS}",
    "gluon": f"there are no blocks; {_GRAPHS}",
    "np": "arrays with NumPy's rules are NumPy's own; import numpy",
    "npx": "NumPy's extensions of MXNet 1.6 are not here; the operators are in mx.sym and mx.nd",
    "numpy": "arrays with NumPy's rules are NumPy's own; import numpy",
    "rtc": "CUDA source is not compiled here; write an operator (arrayexec.register_op, docs/operators_howto.md)",
    "onnx": "models are read from MXNet's files: mx.model.load_checkpoint, mx.sym.load",
    "th": "Torch functions are not here; mx.operator.CustomOp can call any Python code",
    "torch": "Torch functions are not here; mx.operator.CustomOp can call any Python code",
    "log": "Python's module logging is used as it is",
    "notebook": "symbols show themselves in notebooks; mx.viz draws them",
    "misc": "schedules are in mx.lr_scheduler",
    "registry": "mx.metric, mx.init, mx.optimizer and mx.operator have register of their own",
    "runtime": "there are no build options; mx.num_gpus() and arrayexec.ops.list() tell what is there",
    "library": "operators of other packages are found by their entry points; see docs/operators_howto.md",
    "set_np": "arrays with NumPy's rules are NumPy's own; import numpy",
    "contrib.foreach": _LOOPS,
    "contrib.while_loop": _LOOPS,
    "contrib.cond": _LOOPS,
    "io.ImageDetRecordIter": _BOXES,
    "image.ImageDetIter": _BOXES,
    "image.CreateDetAugmenter": _BOXES,
    "rnn.rnn_unroll": "a cell's own unroll() does it",
    "use_np": "arrays with NumPy's rules are NumPy's own; import numpy",
}
"""Modules and functions of ``mx`` that are not here."""

REFUSED_METHODS = {
    "attach_grad": _SYMBOLS,
    "backward": _SYMBOLS,
    "grad": f"an array has no gradient of its own; {_SYMBOLS}, whose arrays are in executor.grad_dict",
    "as_np_ndarray": "asnumpy() gives a NumPy array",
    "to_dlpack_for_read": "asnumpy() gives a NumPy array, which has __dlpack__",
    "to_dlpack_for_write": "asnumpy() gives a NumPy array, which has __dlpack__",
    "handle": "there is no handle: the memory is the array's own",
}
"""Attributes of NDArray that are not here."""


def found_in(core: Any, title: str, name: str, names: Iterable[str]) -> Any:
    """What a module of the engine has under ``name``; AttributeError with what to use instead, or what is there."""
    if name.startswith("__") or hasattr(core, name):
        return getattr(core, name)
    fact = f"mx.{title}.{name} is not here"
    full = f"{title}.{name}"
    raise AttributeError(f"{fact}: {REFUSED[full]}" if full in REFUSED else f"{fact}{near_miss(name, names)}")
