"""Convolutions over a sentence: Kim 2014."""

from __future__ import annotations

from arrayexec import sym


def get_symbol(
    words: int = 20000, length: int = 56, classes: int = 2, embedding: int = 300, sizes: tuple[int, ...] = (3, 4, 5),
    filters: int = 100, dropout: float = 0.5,
) -> sym.Symbol:  # fmt: skip
    """Softmax over ``classes`` of sentences: word numbers ``data`` (n, length)."""
    net = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=embedding, name="vocab_embed")
    net = sym.Reshape(net, shape=(-1, 1, length, embedding))
    ways = []
    for size in sizes:
        way = sym.Convolution(net, kernel=(size, embedding), num_filter=filters, name=f"conv{size}")
        way = sym.Activation(way, act_type="relu", name=f"relu{size}")
        ways.append(sym.Pooling(way, kernel=(length - size + 1, 1), pool_type="max", name=f"pool{size}"))
    net = sym.Reshape(sym.Concat(*ways, dim=1), shape=(-1, filters * len(sizes)))
    net = sym.FullyConnected(sym.Dropout(net, p=dropout), num_hidden=classes, name="cls")
    return sym.SoftmaxOutput(net, name="softmax")
