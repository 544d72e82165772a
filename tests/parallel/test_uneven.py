"""Ranks with different numbers of batches: refused, cut to the shortest, or joined by batches without rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.comm import init
from arrayexec.errors import ArgumentError
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.parallel.uneven import EvenBatches
from arrayexec.train.io import DataBatch
from tests.parallel.mpi_helper import run_ranks
from tests.parallel.networks import Described, mlp, values
from tests.parallel.uneven import COUNTS, SHAPE, batches


def alone(steps: int) -> dict[str, np.ndarray]:
    """One rank that trains on the rows that the others have together."""
    manager = DataParallelExecutorManager(mlp(), ax.cpu(), Described({"data": SHAPE}, {"softmax_label": SHAPE[:1]}))
    manager.set_params(*values(mlp(), data=SHAPE))
    rule = ax.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    updater = ax.optimizer.get_updater(rule)
    every = [batches(rank, count) for rank, count in enumerate(COUNTS)]
    for number in range(steps):
        here = [each[number] for each in every if number < len(each)]
        data, label = ([np.concatenate([getattr(b, k)[0][: b.valid] for b in here])] for k in ("data", "label"))
        manager.load_data_batch(DataBatch(data, label))
        manager.forward(is_train=True)
        manager.backward()
        rule.rescale_grad = 1 / len(data[0])
        manager.update(updater)
    return manager.stores[0].parameters


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "rows"), [("join", [12, 12, 12, 7, 4]), ("drop", [12, 12, 12])])
def test_ranks_with_fewer_batches(how: str, rows: list[int], tmp_path: Path) -> None:
    run = run_ranks("uneven.py", 3, how, tmp_path / "found.npz")
    assert (run.code, run.out, run.err) == (0, f"{rows}\n", "")
    want = alone(len(rows))
    with np.load(tmp_path / "found.npz") as found:
        for name, value in want.items():
            assert np.abs(found[name] - value).max() <= 1e-5 * np.abs(value).max(), name


HINT = "give every rank as many, or say uneven='drop', or uneven='join' where every rank has one at least"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "fact", "counts"),
    [
        ("error", "rank 0 has no batch number 4", (3, 4, 4)),
        ("none at all", "rank 1 has no batch number 1", (1, 0, 1)),
    ],
)
def test_what_is_refused_is_told_on_all_ranks(how: str, fact: str, counts: tuple[int, ...], tmp_path: Path) -> None:
    run = run_ranks("uneven.py", 3, how, tmp_path / "found.npz")
    rows = "".join(f"\n    rank {rank}  {count}" for rank, count in enumerate(counts))
    assert run.code != 0
    assert run.complaint().endswith(
        f"Traceback (most recent call last):\narrayexec.errors.CollectiveError: {fact}\n  batches so far:{rows}\n  {HINT}"
    )


def test_alone_nothing_changes() -> None:
    given = batches(0, 3)
    found = list(EvenBatches(given, init("local"), "join"))
    assert [batch.data for batch in found] == [batch.data for batch in given]
    assert [batch.global_rows for batch in found] == [4, 4, 4]


def test_other_words_are_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        EvenBatches([], init("local"), "joint")
    assert str(caught.value) == "uneven must be one of error, join, drop, but it is 'joint'; did you mean 'join'?"
