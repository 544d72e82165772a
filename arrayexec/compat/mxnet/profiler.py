"""``mx.profiler``: calls that old programs make; they record nothing.

`arrayexec` tells the memory and the steps of an executor by ``memory_plan()`` and ``debug_str()``; times are measured
with Python's own profilers.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "dump", "dump_profile", "dumps", "pause", "profiler_set_config", "profiler_set_state", "resume", "set_config",
    "set_state",
]  # fmt: skip


def set_config(**kwargs: Any) -> None:
    """Takes the settings and does nothing with them."""


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Starts and stops nothing."""


def pause(profile_process: str = "worker") -> None:
    """Pauses nothing."""


def resume(profile_process: str = "worker") -> None:
    """Resumes nothing."""


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Writes no file."""


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """A text that says that nothing was recorded."""
    return "nothing is recorded here: see memory_plan() and debug_str() of an executor\n"


profiler_set_config, profiler_set_state, dump_profile = set_config, set_state, dump
