"""The larger, or the smaller, of many values and one number: NumPy's clip takes a quarter of its maximum's time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MANY = 2048  # values from where on the call of clip pays


def at_least(xp: Any, data: Any, bound: float, out: Any) -> None:
    """``out`` = maximum(data, bound), NaN included; ``out`` may be ``data``."""
    if _clips(xp, data, out):
        data.clip(bound, math.inf, out=out)
    else:
        xp.maximum(data, bound, out=out, casting="unsafe")


def at_most(xp: Any, data: Any, bound: float, out: Any) -> None:
    """``out`` = minimum(data, bound), NaN included; ``out`` may be ``data``."""
    if _clips(xp, data, out):
        data.clip(-math.inf, bound, out=out)
    else:
        xp.minimum(data, bound, out=out, casting="unsafe")


def _clips(xp: Any, data: Any, out: Any) -> bool:
    """16-bit values and whole numbers gain nothing."""
    kind = out.dtype
    return xp is np and data.size > MANY and kind.kind == "f" and kind.itemsize > 2 and data.dtype == kind
