"""The public face of data: descriptions, batches, and iterators over arrays, files, sentences and other iterators."""

from __future__ import annotations

from .batch import DataBatch, DataDesc, DataIter, split_rows
from .io_arrays import ArrayIter, NDArrayIter
from .io_buckets import BucketSentenceIter
from .io_idx import MNISTIter, read_idx
from .io_image import ImageIter, ImageRecordInt8Iter, ImageRecordIter, ImageRecordUInt8Iter
from .io_iterable import IterableIter
from .io_prefetch import PrefetchingIter, ResizeIter
from .io_rows import RowIter
from .io_text import CSVIter, LibSVMIter
from .sampler import ShardedSampler

__all__ = [
    "DataDesc",
    "DataBatch",
    "DataIter",
    "NDArrayIter",
    "ArrayIter",
    "CSVIter",
    "LibSVMIter",
    "MNISTIter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "ImageRecordInt8Iter",
    "ImageIter",
    "BucketSentenceIter",
    "IterableIter",
    "ResizeIter",
    "PrefetchingIter",
    "RowIter",
    "ShardedSampler",
    "split_rows",
    "read_idx",
]
