"""Sentences in buckets: which go where, labels, shards."""

from __future__ import annotations

import logging

import numpy
import pytest

from arrayexec.errors import AttributeValueError
from arrayexec.train import random
from arrayexec.train.io_buckets import BucketSentenceIter


@pytest.fixture(autouse=True)
def one_seed():
    random.seed(0)


def corpus(lengths, first=1):
    """Sentences of the given lengths in which every word is different."""
    words = iter(range(first, 10**9))
    return [[next(words) for _ in range(length)] for length in lengths]


LENGTHS = [3, 5, 2, 3, 5, 5, 1, 4, 3, 5, 3, 2]


def test_buckets_found_by_themselves():
    # lengths that occur at least twice: 2 (twice), 3 (four times), 5 (four times)
    iterator = BucketSentenceIter(corpus(LENGTHS), 2)
    assert iterator.buckets == [2, 3, 5]
    assert iterator.default_bucket_key == 5
    assert [tuple(desc) for desc in iterator.provide_data + iterator.provide_label] == [
        ("data", (2, 5)),
        ("softmax_label", (2, 5)),
    ]
    assert iterator.provide_data[0].layout == "NT"


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_rows_are_padded_and_labels_shifted(layout):
    sentences = corpus(LENGTHS)
    iterator = BucketSentenceIter(sentences, 2, [3, 5], invalid_label=0, layout=layout)
    seen = []
    for batch in iterator:
        data, label = batch.data[0], batch.label[0]
        assert data.flags.c_contiguous
        assert label.flags.c_contiguous
        assert data.shape == batch.provide_data[0].shape
        assert label.shape == batch.provide_label[0].shape
        assert batch.rows == 2
        if layout == "TN":
            data, label = data.T, label.T
        for row, shifted, number in zip(data, label, batch.index, strict=True):
            sentence = sentences[number]
            filler = [0] * (batch.bucket_key - len(sentence))
            assert row.tolist() == sentence + filler
            assert shifted.tolist() == [*sentence[1:], 0, *filler]
            assert batch.bucket_key == (3 if len(sentence) <= 3 else 5)
            seen.append(int(number))
        assert batch.pad == 0
    # 7 sentences of up to 3 words give 3 batches, 5 longer ones give 2
    assert len(seen) == len(set(seen)) == 10
    assert iterator.num_batches == 5


def test_last_batch_may_be_kept():
    sentences = corpus(LENGTHS)
    iterator = BucketSentenceIter(sentences, 4, [3, 5], invalid_label=-1, last_batch="pad", dtype="int32")
    seen, pads = [], []
    for batch in iterator:
        assert batch.data[0].dtype == numpy.int32
        assert batch.valid == 4 - batch.pad
        filler = slice(batch.valid, None)
        assert (batch.data[0][filler] == -1).all()
        assert (batch.label[0][filler] == -1).all()
        assert (batch.index[filler] == -1).all()
        seen += batch.index[: batch.valid].tolist()
        pads.append(batch.pad)
    assert sorted(seen) == list(range(len(sentences)))
    assert sorted(pads) == [0, 0, 1, 3]


def test_long_sentences_are_left_out_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        iterator = BucketSentenceIter(corpus(LENGTHS), 2, [3])
    assert iterator.discarded == 5
    assert "5 of 12 sentences are longer than the largest bucket (3)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        BucketSentenceIter(corpus(LENGTHS), 2, [5])
    assert caplog.text == ""


def order(iterator):
    return [(batch.bucket_key, batch.index.tolist()) for batch in iterator]


def test_epochs_are_shuffled_by_the_seed():
    def epochs(seed):
        random.seed(seed)
        iterator = BucketSentenceIter(corpus(LENGTHS * 4), 2)
        first = order(iterator)
        iterator.reset()
        return first, order(iterator)

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    first, second = epochs(1)
    assert first != second
    assert sorted(key for key, _ in first) == sorted(key for key, _ in second)


def test_without_shuffle_the_order_is_that_of_the_sentences():
    iterator = BucketSentenceIter(corpus(LENGTHS), 2, shuffle=False)
    # the sentences of 1 and 4 words are in the buckets 2 and 5; the last of each of these is left over
    wanted = [(2, [2, 6]), (3, [0, 3]), (3, [8, 10]), (5, [1, 4]), (5, [5, 7])]
    assert order(iterator) == wanted
    iterator.reset()
    assert order(iterator) == wanted


@pytest.mark.parametrize("last_batch", ["discard", "pad"])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_draw_the_same_keys_and_share_the_rows(last_batch, shards):
    sentences = corpus(LENGTHS * 5)

    def iterator(**shard):
        return BucketSentenceIter(sentences, 7, last_batch=last_batch, **shard)

    whole = iterator()
    parts = [iterator(num_shards=shards, shard_id=i) for i in range(shards)]
    assert len({part.num_batches for part in parts}) == 1
    for _ in range(2):
        seen = []
        for batch in whole:
            pieces = [next(part) for part in parts]
            assert {piece.bucket_key for piece in pieces} == {batch.bucket_key}
            assert {piece.global_rows for piece in pieces} == {batch.valid}
            assert [piece.first_row for piece in pieces] == numpy.cumsum([0, *(p.rows for p in pieces[:-1])]).tolist()
            numpy.testing.assert_array_equal(numpy.concatenate([p.data[0] for p in pieces]), batch.data[0])
            numpy.testing.assert_array_equal(numpy.concatenate([p.label[0] for p in pieces]), batch.label[0])
            assert sum(piece.valid for piece in pieces) == batch.valid
            seen += [row for piece in pieces for row in piece.index[: piece.valid].tolist()]
        assert all(next(part, None) is None for part in parts)
        assert len(seen) == len(set(seen))
        if last_batch == "pad":
            assert len(seen) == len(sentences)
        for each in (whole, *parts):
            each.reset()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layout": "TNC"}, "layout must be one of NT, TN"),
        ({"last_batch": "padd"}, "did you mean 'pad'"),
        ({"batch_size": 5}, "some length must occur in at least 5 sentences"),
        ({"batch_size": 50, "buckets": [5]}, "a full batch of 50 sentences"),
        ({"buckets": [0, 5]}, "lengths of at least 1"),
        ({"buckets": []}, "lengths of at least 1"),
        ({"num_shards": 3}, "num_shards must be in 1..2, but it is 3"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(AttributeValueError, match=text):
        BucketSentenceIter(corpus(LENGTHS), **{"batch_size": 2, **options})
