"""A gradient segment placed in a shared window of MPI: the allocator by role is all it takes."""

from __future__ import annotations

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi


def test_gradients_in_a_shared_window() -> None:
    run = run_ranks("shared_gradients.py", 2)
    assert run.code == 0, run.err
    assert "gradients in a shared window: right" in run.out
