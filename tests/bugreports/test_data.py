"""Public reports about data iterators: each number of apache/mxnet, and what is right."""

from __future__ import annotations

import numpy
import pytest

import arrayexec as ax
from arrayexec import io


@pytest.fixture(autouse=True)
def one_seed():
    ax.random.seed(0)


def rows(iterator):
    """(rows, pad) of every batch of an epoch."""
    return [(batch.index.tolist(), batch.pad) for batch in iterator]


def ten(batch_size=4, **options):
    return io.NDArrayIter(numpy.arange(10.0), numpy.arange(10.0), batch_size, **options)


def test_bug_2258_roll_over_never_hands_out_a_row_that_is_not_counted():
    iterator = ten(last_batch_handle="roll_over")
    assert rows(iterator) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0)]
    iterator.reset()
    assert rows(iterator) == [([8, 9, 0, 1], 0), ([2, 3, 4, 5], 0), ([6, 7, 8, 9], 0)]
    iterator.reset()
    assert rows(iterator) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0)]


@pytest.mark.parametrize("number", [2951, 4411, 1364])
def test_bug_2951_4411_1364_discard_gives_two_batches_from_the_first_row(number):
    iterator = ten(last_batch_handle="discard")
    for _ in range(2):
        assert iterator.num_data == 10
        assert rows(iterator) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0)]
        iterator.reset()


def test_bug_15535_a_batch_of_more_than_twice_the_rows_wraps_again_and_again():
    iterator = io.NDArrayIter(numpy.arange(4.0), batch_size=9)
    (batch,) = iterator
    assert (batch.index.tolist(), batch.pad) == ([0, 1, 2, 3, 0, 1, 2, 3, 0], 5)
    assert batch.data[0].tolist() == batch.index.tolist()


def test_bug_12285_7618_shuffles_anew_at_each_reset_and_from_the_seed():
    def orders():
        iterator, found = ten(10, shuffle=True), []
        for _ in range(4):
            found += [index for index, _ in rows(iterator)]
            iterator.reset()
        return found

    first = orders()
    assert len({tuple(order) for order in first}) == 4
    assert orders() == first
    ax.random.seed(1)
    assert orders() != first


def test_bug_12537_shuffles_without_labels():
    iterator = io.NDArrayIter(numpy.arange(10.0), None, 4, shuffle=True)
    assert iterator.provide_label == []
    assert all(batch.label == [] for batch in iterator)


def test_bug_10051_dicts_keep_their_order():
    arrays = {name: numpy.zeros((4, 1)) for name in ("zeros", "ones", "alpha")}
    iterator = io.NDArrayIter(arrays, batch_size=2)
    assert [desc.name for desc in iterator.provide_data] == ["zeros", "ones", "alpha"]


def test_bug_521_a_batch_may_be_all_rows():
    assert rows(ten(10)) == [(list(range(10)), 0)]


@pytest.mark.parametrize("around", [lambda inner: inner, io.PrefetchingIter, lambda inner: io.ResizeIter(inner, 2)])
def test_bug_5690_rows_held_over_are_forgotten_by_hard_reset(around):
    iterator = around(ten(last_batch_handle="roll_over"))
    rows(iterator)
    iterator.reset()
    iterator.hard_reset()  # what prediction does before it reads
    assert rows(iterator) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0)]


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7, 10, 11, 25])
def test_bug_3488_rows_that_fill_up_are_told(batch_size):
    iterator = ten(batch_size)
    counted = [row for batch in iterator for row in batch.index[: batch.valid].tolist()]
    assert counted == list(range(10))


def test_bug_4504_one_array_for_a_list_is_a_type_error():
    with pytest.raises(TypeError, match="data must be a list of arrays, one for each name"):
        io.DataBatch(numpy.zeros((3, 2)), [numpy.zeros(3)])
    with pytest.raises(TypeError, match="label must be a list of arrays, one for each name"):
        io.DataBatch([numpy.zeros((3, 2))], numpy.zeros(3))


def test_data_and_labels_of_different_lengths_are_refused():
    """M11: not noticed by MXNet 1.9.1."""
    with pytest.raises(ValueError, match="'data' has 10, 'softmax_label' has 9"):
        io.NDArrayIter(numpy.zeros((10, 2)), numpy.zeros(9), 2)


def test_bug_5509_6707_time_major_sentences_say_where_the_batch_axis_is():
    iterator = io.BucketSentenceIter([[1, 2, 3]] * 4, 2, layout="TN")
    desc = iterator.provide_data[0]
    assert (desc.shape, io.DataDesc.get_batch_axis(desc.layout)) == ((3, 2), 1)
    assert next(iterator).rows == 2


def test_bug_6495_sentences_that_do_not_fill_a_batch_can_be_kept():
    sentences = [[1] * length for length in (2, 2, 2, 3, 3, 4)]
    kept = io.BucketSentenceIter(sentences, 2, buckets=[2, 3, 4], last_batch="pad")
    counted = [row for batch in kept for row in batch.index[: batch.valid].tolist()]
    assert sorted(counted) == list(range(6))


def test_prefetching_hands_on_what_a_worker_raised():
    """M10: MXNet 1.9.1 waits for ever."""

    class Broken(io.DataIter):
        provide_data, provide_label = [], []

        def next(self):
            raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        next(io.PrefetchingIter(Broken(1)))


def test_every_epoch_of_a_file_reads_every_row_once(tmp_path):
    """M12: MXNet 1.9.1 leaves out, in the next epoch, the rows that filled up the last batch."""
    numpy.savetxt(tmp_path / "d.csv", numpy.arange(7), fmt="%g")
    iterator = io.CSVIter(tmp_path / "d.csv", (1,), 3)
    for _ in range(3):
        assert [row for batch in iterator for row in batch.data[0][: batch.valid, 0]] == list(range(7))
        iterator.reset()
