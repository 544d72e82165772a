"""Names of nodes: counters for those without a name, and prefixes, in force inside ``with`` blocks of a thread."""

from __future__ import annotations

import threading
from typing import Any


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[NameManager] = [NameManager()]


class NameManager:
    """Numbers nodes that were given no name: ``fullyconnected0``, ``fullyconnected1``, … from 0 in each manager."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def get(self, name: str | None, hint: str) -> str:
        """``name`` if there is one, else ``hint`` with the next number."""
        if name:
            return name
        count = self._counts.get(hint, 0)
        self._counts[hint] = count + 1
        return f"{hint}{count}"

    def __enter__(self) -> NameManager:
        _SCOPES.stack.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _SCOPES.stack.pop()


class Prefix(NameManager):
    """Puts ``prefix`` before the name of every node made in the block, given or counted; variables keep theirs."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """The prefixed name."""
        return self._prefix + super().get(name, hint)


_SCOPES = _Scopes()


def current() -> NameManager:
    """The manager in force in this thread."""
    return _SCOPES.stack[-1]
