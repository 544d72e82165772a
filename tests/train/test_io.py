"""Iterators: which rows come when, at every size; shards; threads."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time

import numpy
import pytest

from arrayexec.errors import AttributeValueError, ShapeError, UnknownNameError
from arrayexec.train import io, random


@pytest.fixture(autouse=True)
def one_seed():
    random.seed(0)


def numbers(rows, width=2):
    return numpy.arange(rows * width, dtype=numpy.float32).reshape(rows, width)


def read(iterator):
    """(row numbers, pad) of every batch of an epoch."""
    return [(batch.index.tolist(), batch.pad) for batch in iterator]


def test_description_unpacks_as_name_and_shape_and_compares_in_full():
    desc = io.DataDesc("data", [4, 3], "float16", "NT")
    name, shape = desc
    assert (name, shape) == ("data", (4, 3))
    assert desc == ("data", (4, 3))
    assert desc == io.DataDesc("data", (4, 3), numpy.float16, "NT")
    assert desc != io.DataDesc("data", (4, 3), numpy.float32, "NT")
    assert desc != io.DataDesc("data", (4, 3), numpy.float16, "TN")
    assert hash(desc) == hash(io.DataDesc("data", (4, 3), numpy.float16, "NT"))
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert pickle.loads(pickle.dumps(desc)).layout == "NT"


@pytest.mark.parametrize(("layout", "axis"), [(None, 0), ("NCHW", 0), ("TNC", 1), ("CHW", -1)])
def test_batch_axis(layout, axis):
    assert io.DataDesc.get_batch_axis(layout) == axis


def test_descriptions_from_pairs():
    got = io.DataDesc.get_list([("a", (1,)), ("b", (2,))], [("b", "int32")])
    assert [(desc.name, desc.shape, desc.dtype.name) for desc in got] == [
        ("a", (1,), "float32"),
        ("b", (2,), "int32"),
    ]


def test_batch_counts_rows_along_the_batch_axis():
    batch = io.DataBatch([numpy.zeros((7, 4))], None, pad=1, provide_data=[io.DataDesc("data", (7, 4), layout="TN")])
    assert (batch.rows, batch.valid, batch.global_rows) == (4, 3, 3)
    assert "label=None" in repr(batch)
    with pytest.raises(AttributeValueError, match="data must be a list of arrays"):
        io.DataBatch(numpy.zeros((7, 4)))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 8, 10])
def test_pad_wraps_and_counts(rows, batch_size):
    steps = -(-rows // batch_size)
    every = [i % rows for i in range(steps * batch_size)]
    wanted = [(every[i * batch_size : (i + 1) * batch_size], max(0, (i + 1) * batch_size - rows)) for i in range(steps)]
    iterator = io.NDArrayIter(numbers(rows), batch_size=batch_size)
    assert read(iterator) == wanted
    assert read(iterator) == []
    iterator.reset()
    assert read(iterator) == wanted


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
def test_discard_drops_the_rest(rows, batch_size):
    iterator = io.NDArrayIter(numbers(rows), batch_size=batch_size, last_batch_handle="discard")
    steps = rows // batch_size
    assert iterator.num_batches == steps
    assert read(iterator) == [(list(range(i * batch_size, (i + 1) * batch_size)), 0) for i in range(steps)]


@pytest.mark.parametrize("rows", [1, 3, 4, 9, 10])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_roll_over_uses_every_row_of_every_epoch_once(rows, batch_size, shuffle):
    iterator = io.NDArrayIter(numbers(rows), batch_size=batch_size, last_batch_handle="roll_over", shuffle=shuffle)
    seen = []
    for _ in range(12):
        batches = read(iterator)
        assert all(pad == 0 and len(index) == batch_size for index, pad in batches)
        seen += [row for index, _ in batches for row in index]
        iterator.reset()
    # every epoch gives its rows in full before those of the next one; what is missing is less than a batch
    assert 12 * rows - len(seen) < batch_size
    for start in range(0, len(seen) - rows + 1, rows):
        assert sorted(seen[start : start + rows]) == list(range(rows))


def test_roll_over_example_and_hard_reset():
    iterator = io.NDArrayIter(numbers(10), batch_size=4, last_batch_handle="roll_over")
    assert [index for index, _ in read(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    iterator.reset()
    assert [index for index, _ in read(iterator)] == [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    iterator.hard_reset()
    iterator.reset()
    assert len(read(iterator)) == 2


def test_reset_in_mid_epoch_holds_nothing_over():
    iterator = io.NDArrayIter(numbers(10), batch_size=4, last_batch_handle="roll_over")
    next(iterator)
    iterator.reset()
    assert [index for index, _ in read(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_values_follow_the_index():
    data, label = numbers(7), numpy.arange(7) * 10
    iterator = io.NDArrayIter(data, label, batch_size=3, shuffle=True)
    for batch in iterator:
        numpy.testing.assert_array_equal(batch.data[0], data[batch.index])
        numpy.testing.assert_array_equal(batch.label[0], label[batch.index])
        assert batch.data[0].flags.c_contiguous
        assert not numpy.shares_memory(batch.data[0], data)


def test_shuffle_draws_a_new_order_each_epoch_from_the_seed():
    def epochs(seed):
        random.seed(seed)
        iterator = io.NDArrayIter(numbers(50), batch_size=50, shuffle=True)
        orders = []
        for _ in range(3):
            orders += [index for index, _ in read(iterator)]
            iterator.reset()
        return orders

    first, again, other = epochs(1), epochs(1), epochs(2)
    assert first == again
    assert first != other
    assert all(sorted(order) == list(range(50)) for order in first)
    assert len({tuple(order) for order in first}) == 3


def test_reset_before_the_first_batch_changes_nothing():
    iterator = io.NDArrayIter(numbers(20), batch_size=20, shuffle=True)
    untouched = io.NDArrayIter(numbers(20), batch_size=20, shuffle=True)
    iterator.reset()
    assert read(iterator) == read(untouched)


def test_names_types_and_order():
    iterator = io.NDArrayIter(
        {"z": numpy.zeros((4, 2)), "a": numpy.zeros((4, 3), "float16")},
        [numpy.zeros(4, "int64"), numpy.zeros(4, "int32")],
        batch_size=2,
    )
    described = [(desc.name, desc.shape, desc.dtype.name) for desc in iterator.provide_data + iterator.provide_label]
    assert described == [
        ("z", (2, 2), "float32"),
        ("a", (2, 3), "float16"),
        ("_0_softmax_label", (2,), "float32"),
        ("_1_softmax_label", (2,), "int32"),
    ]
    batch = next(iterator)
    assert [array.dtype.name for array in batch.data + batch.label] == [
        "float32",
        "float16",
        "float32",
        "int32",
    ]


def test_no_label():
    iterator = io.NDArrayIter(numbers(4), batch_size=2)
    assert iterator.provide_label == []
    assert next(iterator).label == []


def test_protocol_methods():
    iterator = io.NDArrayIter(numbers(5), numpy.arange(5), batch_size=2)
    assert iterator.iter_next()
    assert iterator.iter_next()
    assert iterator.iter_next()
    assert iterator.getpad() == 1
    assert iterator.getindex().tolist() == [4, 0]
    assert iterator.getdata()[0].shape == (2, 2)
    assert iterator.getlabel()[0].tolist() == [4, 0]
    assert not iterator.iter_next()
    with pytest.raises(StopIteration):
        iterator.next()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"data": numbers(4), "label": numbers(5)}, ShapeError, "'data' has 4, 'softmax_label' has 5"),
        ({"data": numbers(0)}, ShapeError, "at least one row"),
        ({"data": ["a"]}, ShapeError, "must be an array of numbers"),
        ({"data": {}}, AttributeValueError, "at least one array"),
        ({"data": numbers(4), "label": {"data": numbers(4)}}, AttributeValueError, "names .* must differ"),
        (
            {"data": numbers(4), "last_batch_handle": "rollover"},
            AttributeValueError,
            "did you mean 'roll_over'",
        ),
        ({"data": numbers(4), "batch_size": 0}, AttributeValueError, "integer >= 1"),
        ({"data": numbers(4), "batch_size": 2, "num_shards": 3}, AttributeValueError, "num_shards must be in 1..2, but it is 3"),
        (
            {"data": numbers(4), "batch_size": 2, "num_shards": 2, "shard_id": 2},
            AttributeValueError,
            "in 0..1",
        ),
    ],
)
def test_refusals(arguments, error, text):
    with pytest.raises(error, match=text):
        io.NDArrayIter(**arguments)
    assert issubclass(error, ValueError)


@pytest.mark.parametrize("rows", range(12))
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_split_rows_is_numpy_array_split(rows, parts):
    assert io.split_rows(rows, parts) == [len(part) for part in numpy.array_split(range(rows), parts)]


@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over"])
@pytest.mark.parametrize(("rows", "batch_size", "shards"), [(10, 4, 1), (10, 4, 3), (13, 6, 4), (3, 7, 4), (9, 5, 5)])
def test_shards_are_the_global_batches(handle, rows, batch_size, shards):
    data, label = numbers(rows), numpy.arange(rows)

    def iterator(**shard):
        return io.NDArrayIter(data, label, batch_size, shuffle=True, last_batch_handle=handle, **shard)

    whole = iterator()
    parts = [iterator(num_shards=shards, shard_id=i) for i in range(shards)]
    for _ in range(3):
        valid_rows = []
        for batch in whole:
            pieces = [next(part) for part in parts]
            first = 0
            for part, piece in zip(parts, pieces, strict=True):
                assert piece.first_row == first
                assert piece.global_rows == batch.valid
                assert piece.data[0].shape == part.provide_data[0].shape
                assert piece.rows == part.batch_size
                first += piece.rows
            numpy.testing.assert_array_equal(numpy.concatenate([p.data[0] for p in pieces]), batch.data[0])
            numpy.testing.assert_array_equal(numpy.concatenate([p.label[0] for p in pieces]), batch.label[0])
            assert sum(piece.valid for piece in pieces) == batch.valid
            valid_rows += [row for piece in pieces for row in piece.index[: piece.valid].tolist()]
        assert all(next(part, None) is None for part in parts)
        if handle == "pad":
            assert sorted(valid_rows) == list(range(rows))
        for each in (whole, *parts):
            each.reset()


def test_resize_wraps_around():
    inner = io.NDArrayIter(numbers(6), batch_size=2)
    iterator = io.ResizeIter(inner, 5)
    assert [index for index, _ in read(iterator)] == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    iterator.reset()
    assert next(index for index, _ in read(iterator)) == [0, 1]


def test_resize_may_go_on_where_it_stopped():
    iterator = io.ResizeIter(io.NDArrayIter(numbers(6), batch_size=2), 2, reset_internal=False)
    assert [index for index, _ in read(iterator)] == [[0, 1], [2, 3]]
    iterator.reset()
    assert [index for index, _ in read(iterator)] == [[4, 5], [0, 1]]
    assert iterator.getpad() == 0
    assert iterator.getindex().tolist() == [0, 1]
    assert iterator.getlabel() == []


def test_resize_of_an_empty_iterator_is_refused():
    inner = io.NDArrayIter(numbers(2), batch_size=4, last_batch_handle="discard")
    with pytest.raises(AttributeValueError, match="must give a batch"):
        next(io.ResizeIter(inner, 2))


def test_prefetching_gives_the_same_batches():
    plain = io.NDArrayIter(numbers(9), numpy.arange(9), batch_size=2, shuffle=True)
    ahead = io.PrefetchingIter(io.NDArrayIter(numbers(9), numpy.arange(9), batch_size=2, shuffle=True))
    assert ahead.provide_data == plain.provide_data
    for _ in range(3):
        assert read(ahead) == read(plain)
        assert next(ahead, None) is None
        plain.reset()
        ahead.reset()
    next(ahead)
    ahead.reset()
    next(plain)
    plain.reset()
    assert read(ahead) == read(plain)


def test_prefetching_joins_and_renames():
    left = io.NDArrayIter(numbers(5), numpy.arange(5), batch_size=2)
    right = io.NDArrayIter(numbers(5, 3), batch_size=2)
    ahead = io.PrefetchingIter([left, right], [{"data": "left"}, {"data": "right"}], [{}, {}])
    assert [desc.name for desc in ahead.provide_data + ahead.provide_label] == [
        "left",
        "right",
        "softmax_label",
    ]
    batches = list(ahead)
    assert [[array.shape for array in batch.data] for batch in batches] == [[(2, 2), (2, 3)]] * 3
    assert batches[-1].pad == 1
    assert batches[-1].valid == 1
    assert batches[-1].provide_data == ahead.provide_data


class Faulty(io.DataIter):
    def __init__(self, fail_at):
        super().__init__(1)
        self.provide_data, self.provide_label = [io.DataDesc("data", (1,))], []
        self.step, self.fail_at = 0, fail_at

    def next(self):
        self.step += 1
        if self.step == self.fail_at:
            raise OSError("disk gone")
        return io.DataBatch([numpy.full(1, self.step)], pad=0)


@pytest.mark.parametrize("fail_at", [1, 3])
def test_an_exception_of_the_thread_arrives(fail_at):
    ahead = io.PrefetchingIter(Faulty(fail_at))
    for step in range(1, fail_at):
        assert next(ahead).data[0][0] == step
    with pytest.raises(OSError, match="disk gone"):
        next(ahead)
    assert next(ahead).data[0][0] == fail_at + 1


def test_reset_forgets_a_fault_of_a_batch_nobody_asked_for():
    inner = Faulty(2)
    ahead = io.PrefetchingIter(inner)
    next(ahead)
    deadline = time.monotonic() + 10
    while inner.step < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    ahead.reset()
    assert next(ahead).data[0][0] == 3


def test_prefetching_refuses_what_does_not_fit():
    long, short = (io.NDArrayIter(numbers(rows), batch_size=2) for rows in (6, 4))
    ahead = io.PrefetchingIter([long, short])
    with pytest.raises(ShapeError, match="same number of batches"):
        list(ahead)
    uneven = io.PrefetchingIter([io.NDArrayIter(numbers(rows), batch_size=4) for rows in (6, 7)])
    with pytest.raises(ShapeError, match=r"pads \[2, 1\]"):
        list(uneven)
    with pytest.raises(AttributeValueError, match="one dict for each of the 1"):
        io.PrefetchingIter(long, rename_data=[{}, {}])
    with pytest.raises(UnknownNameError, match="did you mean 'data'"):
        io.PrefetchingIter(long, rename_data=[{"dta": "x"}])
    with pytest.raises(AttributeValueError, match="at least one iterator"):
        io.PrefetchingIter([])


def test_leaving_early_neither_waits_nor_leaks_threads():
    program = """
import time
from arrayexec.train import io
import numpy
class Stuck(io.DataIter):
    provide_data, provide_label = [], []
    step = 0
    def next(self):
        self.step += 1
        if self.step > 1:
            time.sleep(600)
        return io.DataBatch([numpy.zeros(1)])
next(io.PrefetchingIter(Stuck(1)))
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    before = threading.active_count()
    for _ in range(5):
        ahead = io.PrefetchingIter(io.NDArrayIter(numbers(9), batch_size=2))
        next(ahead)
        ahead.reset()
    assert threading.active_count() <= before


def test_a_class_without_methods_says_so():
    with pytest.raises(AttributeValueError, match="must define next"):
        next(io.DataIter())


def test_arrays_of_other_packages_are_read() -> None:
    class Held:
        shape = (5, 2)

        def __array__(self, dtype: object = None, copy: object = None) -> numpy.ndarray:
            return numpy.arange(10.0).reshape(self.shape)

    for data in (Held(), [Held()], {"data": Held()}):
        batch = next(io.NDArrayIter(data, batch_size=2))
        assert batch.data[0].dtype == numpy.float32
        assert batch.data[0].tolist() == [[0, 1], [2, 3]]
