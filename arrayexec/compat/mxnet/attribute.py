"""``mx.attribute``: attributes for all symbols made in a block."""

from __future__ import annotations

from ...symbol.attribute import AttrScope

__all__ = ["AttrScope"]
