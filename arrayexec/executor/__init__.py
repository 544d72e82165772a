"""Executors: symbols bound to arrays."""

from .arena import Arena, InputPool, allocate_segment, note_write, pool_of
from .bind import assemble, bind, borrow, grad_requests, inferred, simple_bind
from .executor import Executor

__all__ = [
    "Arena", "Executor", "InputPool", "allocate_segment", "assemble", "bind", "borrow", "grad_requests", "inferred",
    "note_write", "pool_of", "simple_bind",
]  # fmt: skip
