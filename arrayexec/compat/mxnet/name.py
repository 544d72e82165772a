"""``mx.name``: names of nodes that were given none."""

from __future__ import annotations

from ...symbol import naming as _core

__all__ = ["NameManager", "Prefix"]


class _Current(type):
    @property
    def current(cls) -> _core.NameManager:
        """The manager in force in this thread."""
        return _core.current()


class NameManager(_core.NameManager, metaclass=_Current):
    """Numbers nodes that were given no name, from 0 in each manager."""


class Prefix(_core.Prefix, metaclass=_Current):
    """Puts a prefix before the name of every node made in the block."""
