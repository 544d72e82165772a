"""``mx.base``: the exception that programs catch, and the kinds of plain values."""

from __future__ import annotations

import numpy

from ...errors import ArrayExecError as MXNetError

__all__ = ["MXNetError", "numeric_types", "string_types"]

numeric_types = (float, int, numpy.generic)
string_types = (str,)
