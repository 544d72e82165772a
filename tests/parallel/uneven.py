"""Batches of ranks that have different numbers of them."""

from __future__ import annotations

import numpy as np

from arrayexec.train.io import DataBatch

COUNTS = (3, 5, 4)
SHAPE = (4, 6)


def batches(rank: int, count: int) -> list[DataBatch]:
    """The first batches of a rank; one row of the last one of rank 2 does not count."""
    rng = np.random.default_rng(rank)
    found = []
    for number in range(count):
        data, label = rng.normal(size=SHAPE).astype(np.float32), rng.integers(0, 3, SHAPE[0]).astype(np.float32)
        found.append(DataBatch([data], [label], pad=int((rank, number) == (2, 3))))
    return found
