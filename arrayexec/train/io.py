"""The public face of data: descriptions, batches, and iterators over arrays, files, sentences and other iterators."""

from __future__ import annotations

from .batch import DataBatch, DataDesc, DataIter, split_rows
from .bucket_io import BucketSentenceIter
from .io_arrays import ArrayIter, NDArrayIter
from .io_prefetch import PrefetchingIter, ResizeIter
from .sampler import ShardedSampler

__all__ = [
    "DataDesc",
    "DataBatch",
    "DataIter",
    "NDArrayIter",
    "ArrayIter",
    "BucketSentenceIter",
    "ResizeIter",
    "PrefetchingIter",
    "ShardedSampler",
    "split_rows",
]
