"""The operators, one file a family. A family is imported when one of its names is first used.

The table below is how a name finds its file without importing all of them; a test holds it complete.
"""

from __future__ import annotations

import importlib

from .. import registry

FAMILIES: dict[str, str] = {
    "linalg": "FullyConnected dot batch_dot",
    "conv": "Convolution",
    "pool": "Pooling",
    "norm": "BatchNorm",
    "random": "Dropout",
    "activation": "Activation LeakyReLU softmax log_softmax",
    "loss": "SoftmaxOutput Softmax LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss make_loss BlockGrad stop_gradient",
    "shape": "Flatten flatten Reshape reshape transpose expand_dims SwapAxis swapaxes slice_axis Concat concat SliceChannel split",
    "index": "pick one_hot",
    "embed": "Embedding",
    "constant": "_zeros _ones zeros_like ones_like",
    "custom": "Custom",
    "elemwise": "",
    "broadcast": "",
    "reduce": "sum mean max min sum_axis max_axis min_axis",
}

_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}


def _load(name: str) -> bool:
    family = _FAMILY_OF.get(name)
    if family is None:
        return False
    importlib.import_module(f"{__name__}.{family}")
    return True


def list() -> "list[str]":  # noqa: A001 - MXNet's word
    """Every operator name and alias, sorted."""
    return registry.all_names()


registry.add_loader(_load)
registry.add_names(lambda: _FAMILY_OF)
