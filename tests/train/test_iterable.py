"""Whatever Python can loop over becomes batches; a file larger than memory is read row by row."""

from __future__ import annotations

import tracemalloc

import numpy
import pytest

from arrayexec.errors import AttributeValueError, CheckpointError, ShapeError, TypeInferenceError
from arrayexec.train import io


def pairs(count, rows=2, last=None):
    """``count`` batches (data, label), numbered; the last one may have other rows."""
    sizes = [rows] * (count - 1) + [last or rows]
    return [(numpy.full((size, 3), i), numpy.full(size, -i)) for i, size in enumerate(sizes)]


def read(iterator):
    return [(b.data[0][:, 0].tolist(), b.label[0].tolist(), b.pad) for b in iterator]


def test_a_list_epoch_after_epoch():
    iterator = io.IterableIter(pairs(3, last=1))
    assert [(d.name, d.shape, d.dtype.name) for d in iterator.provide_data + iterator.provide_label] == [
        ("data", (2, 3), "float32"),
        ("softmax_label", (2,), "float32"),
    ]
    wanted = [([0, 0], [0, 0], 0), ([1, 1], [-1, -1], 0), ([2, 2], [-2, -2], 1)]
    for _ in range(3):
        iterator.reset()
        assert read(iterator) == wanted
        assert read(iterator) == []
        iterator.reset()


def test_a_last_batch_is_dropped_or_filled():
    assert len(read(io.IterableIter(pairs(3, last=1), last_batch_handle="discard"))) == 2
    filled = list(io.IterableIter(pairs(2, rows=5, last=2)))[-1]
    assert (filled.pad, filled.valid, filled.data[0].shape) == (3, 2, (5, 3))


def test_a_generator_lasts_one_epoch():
    iterator = io.IterableIter(pair for pair in pairs(2))
    assert len(read(iterator)) == 2
    iterator.reset()
    with pytest.raises(AttributeValueError, match="a generator lasts one epoch.*give a function that makes one"):
        next(iterator)


def test_a_function_makes_each_epoch_and_may_know_its_number():
    def numbered(epoch):
        for i in range(2):
            yield numpy.full((1, 1), 10 * epoch + i)

    iterator = io.IterableIter(numbered)
    found = []
    for _ in range(3):
        found += [int(batch.data[0][0, 0]) for batch in iterator]
        iterator.reset()
    assert found == [0, 1, 10, 11, 20, 21]
    assert iterator.provide_label == []
    assert len(read(io.IterableIter(lambda: pairs(4)))) == 4


def test_rows_are_collected():
    rows = [(numpy.array([i, 0]), i) for i in range(5)]
    assert read(io.IterableIter(rows, batch_size=2)) == [
        ([0, 1], [0, 1], 0),
        ([2, 3], [2, 3], 0),
        ([4, 4], [4, 4], 1),
    ]
    few = io.IterableIter(rows[:1], batch_size=3)
    assert few.provide_data[0].shape == (3, 2)
    assert read(few) == [([0, 0, 0], [0, 0, 0], 2)]


def test_names():
    one, two = numpy.zeros((2, 1)), numpy.zeros((2, 2))
    iterator = io.IterableIter([({"b": one, "a": two}, [one, two])])
    assert [desc.name for desc in iterator.provide_data] == ["b", "a"]
    assert [desc.name for desc in iterator.provide_label] == ["_0_softmax_label", "_1_softmax_label"]
    swapped = io.IterableIter([({"b": one, "a": two}, None), ({"a": two, "b": one}, None)], data_name="x")
    assert [[a.shape for a in batch.data] for batch in swapped] == [[(2, 1), (2, 2)]] * 2


def test_batches_of_other_iterators():
    inner = io.NDArrayIter(numpy.arange(5.0), numpy.arange(5.0), batch_size=2, label_name="y")
    batches = list(inner)
    iterator = io.IterableIter(batches)
    assert [desc.name for desc in iterator.provide_data + iterator.provide_label] == ["data", "y"]
    assert [(b.index.tolist(), b.pad) for b in iterator] == [(b.index.tolist(), b.pad) for b in batches]


def test_a_loader_of_torch():
    torch = pytest.importorskip("torch", reason="its loader is tried")
    data = torch.utils.data.TensorDataset(torch.arange(10.0).reshape(5, 2).requires_grad_(), torch.arange(5))
    iterator = io.IterableIter(torch.utils.data.DataLoader(data, batch_size=2))
    batches = list(iterator)
    assert [batch.label[0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 4]]
    assert (batches[-1].pad, batches[0].data[0].dtype) == (1, numpy.float32)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ((numpy.zeros((2, 4)), numpy.zeros(2)), r"data float32 \(2, 3\) .* batch 1 of epoch 0 has float32 \(2, 4\)"),
        ((numpy.zeros((3, 3)), numpy.zeros(3)), r"has float32 \(3, 3\)"),
        ((numpy.zeros((2, 3)), numpy.zeros(1)), r"softmax_label float32 \(2,\)"),
        ((numpy.zeros((2, 3), "i4"), numpy.zeros(2)), "has int32"),
        (numpy.zeros((2, 3)), "has nothing"),
    ],
)
def test_batches_unlike_the_first(second, text):
    iterator = io.IterableIter([*pairs(1), second])
    next(iterator)
    with pytest.raises(ShapeError, match=text):
        next(iterator)


def test_refusals():
    with pytest.raises(AttributeValueError, match="source must be an iterable"):
        io.IterableIter(3)
    with pytest.raises(AttributeValueError, match="batch_size must be"):
        io.IterableIter([], 0)
    with pytest.raises(ShapeError, match="at least one batch"):
        io.IterableIter([])
    with pytest.raises(TypeInferenceError, match="data must be arrays of numbers"):
        io.IterableIter([numpy.array(["a"])])
    with pytest.raises(ShapeError, match="all rows must be alike"):
        io.IterableIter([numpy.zeros(2), numpy.zeros(3)], 2)
    with pytest.raises(ShapeError, match="data must have a, but it has b"):
        list(io.IterableIter([{"a": numpy.zeros((1, 1))}, {"b": numpy.zeros((1, 1))}]))


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_reading_goes_on_from_a_state(taken, batch_size):
    def source(epoch):
        order = numpy.random.default_rng(epoch).permutation(10)
        return [(numpy.full((2, 1) if batch_size is None else (1,), i), numpy.zeros(2)) for i in order]

    iterator, other = io.IterableIter(source, batch_size), io.IterableIter(source, batch_size)
    list(iterator)
    iterator.reset()
    for _ in range(taken):
        next(iterator)
    state = iterator.get_state()
    for target in (other, io.PrefetchingIter(io.IterableIter(source, batch_size))):
        target.set_state(state if target is other else {"iters": [state]})
        copy = io.IterableIter(source, batch_size)
        copy.set_state(state)
        assert [b.data[0].ravel().tolist() for b in target] == [b.data[0].ravel().tolist() for b in copy]
    assert [b.data[0].ravel().tolist() for b in iterator] != []


def test_a_state_of_a_longer_source_is_refused():
    iterator = io.IterableIter(pairs(3))
    list(iterator)
    with pytest.raises(CheckpointError, match="must have 3 batches in epoch 0, as the state says, but it has 2"):
        io.IterableIter(pairs(2)).set_state(iterator.get_state())


# --- files larger than memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_of_a_memory_map_the_rows_of_the_batch_are_read_and_no_more(tmp_path, shuffle):
    rows, width = 4096, 4096  # 128 MiB of float64
    stored = numpy.memmap(tmp_path / "data", numpy.float64, "w+", shape=(rows, width))
    stored[:, 0] = numpy.arange(rows)
    stored.flush()
    mapped = numpy.memmap(tmp_path / "data", numpy.float64, "r", shape=(rows, width))
    tracemalloc.start()
    iterator = io.NDArrayIter(mapped, numpy.arange(rows), batch_size=8, shuffle=shuffle)
    for _, batch in zip(range(5), iterator, strict=False):
        assert type(batch.data[0]) is numpy.ndarray
        assert batch.data[0].dtype == numpy.float32
        assert batch.data[0][:, 0].tolist() == batch.index.tolist() == batch.label[0].tolist()
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_npy_files_and_other_byte_orders(tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.arange(6, dtype=">f8").reshape(3, 2))
    numpy.save(tmp_path / "b.npy", numpy.asfortranarray(numpy.arange(6, dtype=">i2").reshape(3, 2)))
    data = {name: numpy.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab"}
    iterator = io.NDArrayIter(data, batch_size=2)
    assert [desc.dtype.name for desc in iterator.provide_data] == ["float32", "int16"]
    first, second = iterator
    assert [array.tolist() for array in first.data] == [[[0, 1], [2, 3]]] * 2
    assert [array.tolist() for array in second.data] == [[[4, 5], [0, 1]]] * 2
    assert all(array.dtype.isnative and array.flags.c_contiguous for batch in (first, second) for array in batch.data)
