"""The tables of docs/training_kit.md say what the classes do. ARRAYEXEC_WRITE_TEXTS=1 writes them anew."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from arrayexec.train import initializer, lr_scheduler, metric, metric_base, optimizer
from arrayexec.train.options import options_of

PAGE = Path(__file__).parents[2] / "docs" / "training_kit.md"
assert metric  # whose classes register themselves
COMMON = set(options_of(optimizer.Optimizer))


def optimizers() -> str:
    found = {cls.__name__: cls for cls in optimizer.Optimizer.opt_registry.values() if cls.__module__.startswith("arrayexec")}
    return table("optimizer", {name: (cls, []) for name, cls in found.items()}, COMMON - {"learning_rate"})


def metrics() -> str:
    found: dict[str, tuple[Any, list[str]]] = {}
    for name, cls in metric_base._registry.items():
        if cls.__module__.startswith("arrayexec"):
            found.setdefault(cls.__name__, (cls, []))[1].append(name)
    return table("metric", found, {"name", "output_names", "label_names"})


def initialisers() -> str:
    found: dict[str, tuple[Any, list[str]]] = {name: (getattr(initializer, name), []) for name in ("Mixed", "Load")}
    for name, cls in initializer._registry.items():
        if cls.__module__.startswith("arrayexec"):
            found.setdefault(cls.__name__, (cls, []))[1].append(name)
    return table("initialiser", found, set())


def schedules() -> str:
    names = [name for name, cls in vars(lr_scheduler).items() if inspect.isclass(cls) and name.endswith("Scheduler")]
    found = {name: (getattr(lr_scheduler, name), list[str]()) for name in names if name != "LRScheduler"}
    return table("schedule", found, set(options_of(lr_scheduler.LRScheduler)))


def table(what: str, classes: dict[str, tuple[Any, list[str]]], hidden: set[str]) -> str:
    """One row a class: names, whole docstring, options with defaults."""
    lines = [f"| {what} | what it does | options |", "|---|---|---|"]
    for name, (cls, aliases) in sorted(classes.items(), key=lambda item: item[0].lower()):
        words = " ".join((inspect.getdoc(cls) or "").split())
        words = re.sub(r"``([^`]*)``", r"`\1`", words).replace("|", r"\|")
        options = []
        for option, default in options_of(cls).items():
            if option in hidden:
                continue
            if option == "learning_rate":
                default = cls.default_lr
            options.append(option if default is inspect.Parameter.empty else f"{option}={default!r}")
        others = ", ".join(f"`{alias}`" for alias in aliases if alias != name.lower())
        lines.append(f"| **{name}** {others}".rstrip() + f" | {words} | {', '.join(options)} |")
    return "\n".join(lines)


TABLES = {"optimizers": optimizers, "metrics": metrics, "initialisers": initialisers, "schedules": schedules}


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    head, rest = page.split(begin)
    held, tail = rest.split(end, 1)
    wanted = f"\n{TABLES[name]()}\n\n"
    if os.environ.get("ARRAYEXEC_WRITE_TEXTS"):
        PAGE.write_text(head + begin + wanted + end + tail, encoding="utf-8")
        return
    assert held == wanted
