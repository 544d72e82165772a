"""NDArrayIter and the sampler against ten lines that say what must come, at every size; and their states."""

from __future__ import annotations

import json

import numpy
import pytest

from arrayexec.errors import CheckpointError
from arrayexec.train import io, random

hypothesis = pytest.importorskip("hypothesis", reason="sizes are drawn by hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies


def reference(orders, batch_size, handle):
    """(rows, pad) of every batch of every epoch, from the orders of the epochs."""
    held, epochs = [], []
    for order in orders:
        rows, batches = held + order, []
        while len(rows) >= batch_size:
            batches.append((rows[:batch_size], 0))
            rows = rows[batch_size:]
        held = rows if handle == "roll_over" else []
        if handle == "pad" and rows:
            pad = batch_size - len(rows)
            batches.append(((rows + order * batch_size)[:batch_size], pad))
        epochs.append(batches)
    return epochs


SIZES = dict(
    rows=st.integers(1, 30),
    batch_size=st.integers(1, 40),
    handle=st.sampled_from(["pad", "discard", "roll_over"]),
    shuffle=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(**SIZES, label=st.booleans())
def test_batches_at_every_size(rows, batch_size, handle, shuffle, label):
    random.seed(3)
    data = numpy.arange(rows, dtype=numpy.float32)
    iterator = io.NDArrayIter(data, -data if label else None, batch_size, shuffle, handle)
    orders = [list(range(rows)) for _ in range(4)]
    if shuffle:
        whole = io.NDArrayIter(data, batch_size=rows, shuffle=True)
        for epoch in range(4):
            orders[epoch] = next(whole).index.tolist()
            whole.reset()
    for batches in reference(orders, batch_size, handle):
        found = list(iterator)
        assert [(batch.index.tolist(), batch.pad) for batch in found] == batches
        for batch in found:
            assert batch.data[0].tolist() == batch.index.tolist()
            assert (batch.label[0] == -batch.data[0]).all() if label else batch.label == []
        iterator.reset()


@settings(max_examples=150, deadline=None)
@given(**SIZES, shards=st.integers(1, 5), epochs=st.integers(0, 2), taken=st.integers(0, 6))
def test_a_state_goes_on_with_the_identical_batches(rows, batch_size, handle, shuffle, shards, epochs, taken):
    batch_size = max(batch_size, shards)

    def made(shard_id=0, num_shards=1):
        return io.ShardedSampler(rows, batch_size, num_shards, shard_id, shuffle, handle)

    random.seed(5)
    sampler = made()
    for _ in range(epochs):
        while sampler.advance():
            pass
        sampler.reset()
    for _ in range(taken):
        sampler.advance()
    state = sampler.get_state()
    plain = {key: value for key, value in state.items() if not isinstance(value, numpy.ndarray)}
    assert json.loads(json.dumps(plain)) == plain
    random.seed(6)  # the seed of the state stays in force
    parts = [made(i, shards) for i in range(shards)]
    for part in parts:
        part.set_state(state)
    again = made()
    again.set_state(state)
    random.seed(5)
    for _ in range(3):
        while sampler.advance():
            assert [one.advance() for one in (again, *parts)] == [True] * (1 + shards)
            assert again.rows.tolist() == sampler.rows.tolist()
            assert [row for part in parts for row in part.rows.tolist()] == sampler.rows.tolist()
            assert sum(part.pad for part in parts) == sampler.pad
            assert {part.global_rows for part in parts} == {sampler.global_rows}
        for each in (sampler, again, *parts):
            assert not each.advance()
            each.reset()


def test_sampler_loops_epoch_after_epoch():
    sampler = io.ShardedSampler(10, 4, shuffle=False)
    assert len(sampler) == 3
    drawn = [(rows.tolist(), sampler.pad) for rows in sampler]
    assert drawn == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0), ([8, 9, 0, 1], 2)]
    assert (next(iter(sampler)).tolist(), sampler.epoch) == ([0, 1, 2, 3], 1)
    assert [rows.tolist() for rows in sampler] == [[4, 5, 6, 7], [8, 9, 0, 1]]


def test_epoch_is_set_and_one_under_way_goes_on():
    sampler = io.ShardedSampler(50, 10, seed=1)
    first = [rows.tolist() for rows in sampler]
    sampler.set_epoch(7)
    seventh = [rows.tolist() for rows in sampler]
    for order in (first, seventh):
        assert sorted(row for rows in order for row in rows) == list(range(50))
    assert first != seventh
    other = io.ShardedSampler(50, 10, seed=1)
    other.set_epoch(7)
    assert [next(iter(other)).tolist()] == seventh[:1]
    state = other.get_state()
    resumed = io.ShardedSampler(50, 10, seed=99)
    resumed.set_state(state)
    resumed.set_epoch(7)  # as a loop over epochs does that begins where the state says
    assert [rows.tolist() for rows in resumed] == seventh[1:]
    sampler.set_epoch(7)
    assert [rows.tolist() for rows in sampler] == seventh


def test_rows_may_be_written():
    sampler = io.ShardedSampler(6, 3)
    order = sampler.get_state()
    for rows in sampler:
        rows[:] = -1
    sampler.set_state(order)
    assert sorted(row for rows in sampler for row in rows.tolist()) == list(range(6))


@pytest.mark.parametrize("other", [dict(num_rows=11), dict(batch_size=5), dict(shuffle=False), dict(last_batch_handle="discard")])
def test_a_state_of_something_else_is_refused(other):
    options = dict(num_rows=10, batch_size=4)
    state = io.ShardedSampler(**options).get_state()
    with pytest.raises(CheckpointError, match=f"{next(iter(other))} must be what it was in the state"):
        io.ShardedSampler(**{**options, **other}).set_state(state)


def test_torch_takes_it_for_a_batch_sampler():
    torch = pytest.importorskip("torch", reason="its loader is tried")
    data = torch.utils.data.TensorDataset(torch.arange(10.0))
    sampler = io.ShardedSampler(10, 4, 2, 1, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert [batch[0].tolist() for batch in loader] == [[2, 3], [6, 7], [0, 1]]
