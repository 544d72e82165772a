"""Tools for authors of operators: the plain interpreter of a graph and the contract test."""

from __future__ import annotations

from .check import check_op
from .naive import NaiveRun
from .planned import run_planned

__all__ = ["NaiveRun", "check_op", "run_planned"]
