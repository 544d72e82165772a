"""Models on some of the ranks: any communicator of mpi4py may be a rendezvous."""

from __future__ import annotations

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("per_host", [None, 2])
def test_models_of_some_of_the_ranks(per_host: int | None) -> None:
    env = {} if per_host is None else {"ARRAYEXEC_RANKS_PER_HOST": str(per_host)}
    run = run_ranks("parallelized_groups.py", 4, timeout=120, env=env)
    assert (run.code, run.out, run.err) == (0, "", "")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("raises", "arrayexec: rank 2 of 4 failed in step 1 of the model 'sgd', group of ranks 0, 2; last collective"),
        ("leaves", "PeerFailure: rank 1 left (exit) while rank 0 waits for it in barrier (step 2 of the model 'sgd', group of ranks 0, 2)"),
    ],
)
def test_a_fault_in_a_group_ends_the_job(event: str, text: str) -> None:
    run = run_ranks("parallelized_groups.py", 4, event, timeout=30)
    assert run.code != 0
    assert text in run.err
