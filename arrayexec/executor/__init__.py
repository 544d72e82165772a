"""Executors: symbols bound to arrays."""

from .arena import Arena, InputPool, address_of, allocate_segment, note_write, note_writes, pool_of, span
from .bind import assemble, bind, simple_bind
from .bound import Meeting
from .checks import check_values
from .executor import Executor
from .parts import Binding, Inferred, inferred, placed

__all__ = [
    "Arena", "Binding", "Executor", "Inferred", "InputPool", "Meeting", "address_of", "allocate_segment",
    "assemble", "bind", "check_values", "inferred", "note_write", "note_writes", "placed", "pool_of", "simple_bind",
    "span",
]  # fmt: skip
