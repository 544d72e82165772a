"""Tools for authors of operators: the plain interpreter of a graph and the contract test."""

from __future__ import annotations

from .naive import NaiveRun

__all__ = ["NaiveRun"]
