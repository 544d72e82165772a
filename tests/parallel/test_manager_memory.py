"""Memory of buckets: visits in any order cost what the largest bucket costs alone."""

from __future__ import annotations

import gc
import logging
import os
import tracemalloc

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, lstm

MIB = 2**20
BUCKETS = (10, 20, 30, 40, 60)
ORDERS = {"ascending": BUCKETS, "descending": BUCKETS[::-1], "random": (30, 60, 10, 40, 20)}


def peak(order: tuple[int, ...], hidden: int, vocabulary: int, rows: int, max_groups: int | None = None) -> int:
    """Highest traced bytes over a training step in each bucket, from the manager's beginning."""
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    batches = [
        DataBatch([np.ones((rows, key), np.float32)], [np.ones((rows, key), np.float32)], bucket_key=key) for key in order
    ]
    described = Described({"data": (rows, order[0])}, {"softmax_label": (rows, order[0])}, default_bucket_key=order[0])
    poison = os.environ.pop("ARRAYEXEC_POISON", None)  # its calls are objects, too
    gc.collect()
    tracemalloc.start()
    try:
        manager = DataParallelExecutorManager(
            None, ax.cpu(), described, sym_gen=lstm(2, hidden, vocabulary), logger=quiet, max_groups=max_groups
        )  # fmt: skip
        for batch in batches:
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
        assert len(manager.execgrp_bucket) == (max_groups or len(order))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        if poison is not None:
            os.environ["ARRAYEXEC_POISON"] = poison


@pytest.fixture(scope="module")
def alone() -> tuple[int, int]:
    """Bucket 60 alone: at full size, and with arrays of next to no bytes, which leaves the objects of its plan."""
    peak((2, 3), 1, 2, 1)  # imports
    return peak((60,), 200, 10_000, 32), peak((60,), 1, 2, 1)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_five_buckets_take_the_arrays_of_the_largest(order: tuple[int, ...], alone: tuple[int, int]) -> None:
    objects = peak(order, 1, 2, 1) - alone[1]  # graphs, plans and views of the other four buckets
    more = peak(order, 200, 10_000, 32) - alone[0]
    print(f"bucket 60 alone {alone[0] / MIB:.1f} MiB, four more: {more / MIB:+.2f}, of these objects {objects / MIB:.2f}")
    assert more - objects <= MIB
    assert objects <= 12 * MIB


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_buckets_bound_one_at_a_time_take_what_the_largest_takes(order: tuple[int, ...], alone: tuple[int, int]) -> None:
    more = peak(order, 200, 10_000, 32, max_groups=1) - alone[0]
    print(f"bucket 60 alone {alone[0] / MIB:.1f} MiB, four more, one bound at a time: {more / MIB:+.2f}")
    assert more <= MIB


def test_visits_after_the_first_take_no_more() -> None:
    described = Described({"data": (4, 5)}, {"softmax_label": (4, 5)}, default_bucket_key=5)
    manager = DataParallelExecutorManager(None, [ax.cpu(0), ax.cpu(1)], described, sym_gen=lstm(1, 4, 9))
    updater = optimizer.get_updater(optimizer.create("adam"))

    def visits() -> tuple[int, int]:
        """Bytes of arrays and number of objects after a round."""
        for key, rows in ((3, 4), (5, 4), (4, 1), (2, 4)):
            words = np.ones((rows, key), np.float32)
            manager.load_data_batch(DataBatch([words], [words], bucket_key=key))
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
        del words
        gc.collect()
        arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
        return sum(trace.size for trace in arrays.traces), len(gc.get_objects())

    tracemalloc.start()
    try:
        visits()
        first = visits()
        for _ in range(20):
            last = visits()
    finally:
        tracemalloc.stop()
    assert last[0] - first[0] < 1024
    assert last[1] - first[1] < 40
