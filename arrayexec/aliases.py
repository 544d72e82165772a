"""``import package.alias``: modules under public names that are not where they lie, as the import system finds them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader:
    """Loads the module that there is, not a second one under another name."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put the alias there


class _Finder:
    def __init__(self, package: str, place_of: Callable[[str], str | None]) -> None:
        self.package, self.place_of = package, place_of

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(f"{self.package}."):
            return None
        place = self.place_of(name.removeprefix(f"{self.package}."))
        if place is None:
            return None
        loader: Any = _Loader(importlib.import_module(place, self.package))
        return ModuleSpec(name, loader)


def let_find(package: str, place_of: Callable[[str], str | None]) -> None:
    """Let ``import package.alias`` find the module ``place_of(alias)``, a name relative to the package.

    ``place_of`` gives None for names that are no aliases: the import system looks for those itself, after this.
    """
    sys.meta_path.append(_Finder(package, place_of))
