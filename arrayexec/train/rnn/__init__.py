"""Recurrent cells that are unrolled into a graph, one copy of their operators a step, all on the same weights."""

from ..io_buckets import BucketSentenceIter
from .base import BaseRNNCell, RNNParams
from .cells import GRUCell, LSTMCell, RNNCell
from .conv import ConvGRUCell, ConvLSTMCell, ConvRNNCell
from .fused import FusedRNNCell
from .stack import BidirectionalCell, DropoutCell, ModifierCell, ResidualCell, SequentialRNNCell, ZoneoutCell

__all__ = [
    "BaseRNNCell", "BidirectionalCell", "BucketSentenceIter", "ConvGRUCell", "ConvLSTMCell", "ConvRNNCell",
    "DropoutCell", "FusedRNNCell", "GRUCell", "LSTMCell", "ModifierCell", "RNNCell", "RNNParams", "ResidualCell",
    "SequentialRNNCell", "ZoneoutCell",
]  # fmt: skip
