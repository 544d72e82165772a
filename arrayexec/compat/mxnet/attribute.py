"""``mx.attribute``: attributes for all symbols made in a block."""

from __future__ import annotations

from collections.abc import Mapping

from ...symbol import attribute as _core

__all__ = ["AttrScope"]


class _Current(type):
    @property
    def current(cls) -> AttrScope:
        """What the scopes of this thread give together."""
        return AttrScope(**_core.scoped())


class AttrScope(_core.AttrScope, metaclass=_Current):
    """Gives attributes, which are texts, to every symbol made in the block; inner scopes win."""

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """The attributes of the scope and those given, which win."""
        return {**self._attributes, **_core.texts_only(attr or {}, "AttrScope.get")}
