"""``mx.kv``: stores of NDArrays by key, summed over devices and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...module import kvstore as _core
from ...train.optimizer import Updater as _Updater
from .array import unwrap, wrap

__all__ = ["KVStore", "create"]


def _plain(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        return getattr(super(KVStore, self), name)(*unwrap(args), **unwrap(keywords))

    method.__name__, method.__doc__ = name, getattr(_core.KVStore, name).__doc__
    return method


class KVStore(_core.KVStore):
    """A store of `create`; an updater of a program's own gets NDArrays."""

    init, push, pull = _plain("init"), _plain("push"), _plain("pull")
    pushpull, broadcast, row_sparse_pull = _plain("pushpull"), _plain("broadcast"), _plain("row_sparse_pull")

    def set_updater(self, updater: Callable[..., object]) -> None:
        """Let every sum go to ``updater(key, sum, stored)``, which changes what is stored in place."""
        if isinstance(updater, _Updater):
            super().set_updater(updater)
        else:
            super().set_updater(lambda key, total, stored: updater(key, wrap(total), wrap(stored)))

    _set_updater = set_updater


def create(name: str = "local") -> KVStore:
    """The store of a kind: 'local', 'device', 'nccl', 'dist_sync', 'mpi'."""
    found: Any = _core.create(name)
    found.__class__ = KVStore
    return found  # type: ignore[no-any-return]
