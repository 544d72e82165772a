"""Tools for authors of operators: the plain interpreter of a graph and the contract test."""

from __future__ import annotations

from .check import check_op
from .naive import NaiveRun

__all__ = ["NaiveRun", "check_op"]
