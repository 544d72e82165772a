"""Encoder block of the transformer: Vaswani et al. 2017, norm after each part."""

from __future__ import annotations

from arrayexec import sym


def heads(net: sym.Symbol, count: int, name: str, units: int) -> sym.Symbol:
    """(n, t, units) projected and cut into heads: (n·count, t, units / count)."""
    net = sym.FullyConnected(net, num_hidden=units, flatten=False, name=name)
    net = sym.transpose(sym.Reshape(net, shape=(0, 0, count, -1)), axes=(0, 2, 1, 3))
    return sym.Reshape(net, shape=(-3, 0, 0))


def attention(net: sym.Symbol, mask: sym.Symbol, units: int, count: int, name: str) -> sym.Symbol:
    """Scaled dot-product attention of ``net`` (n, t, units) to itself; ``mask`` (n, t) is 0 where there is nothing."""
    query, key, value = (heads(net, count, f"{name}_{part}", units) for part in ("query", "key", "value"))
    scores = sym.batch_dot(query, key, transpose_b=True) * (units // count) ** -0.5
    scores = sym.Reshape(scores, shape=(-4, -1, count, 0, 0))
    hidden = (1 - sym.Reshape(mask, shape=(0, 1, 1, -1))) * -1e9
    weights = sym.softmax(sym.broadcast_add(scores, hidden), axis=-1, name=f"{name}_weights")
    mixed = sym.batch_dot(sym.Reshape(weights, shape=(-3, 0, 0)), value)
    mixed = sym.transpose(sym.Reshape(mixed, shape=(-4, -1, count, 0, 0)), axes=(0, 2, 1, 3))
    return sym.FullyConnected(
        sym.Reshape(mixed, shape=(0, 0, -3)), num_hidden=units, flatten=False, name=f"{name}_out"
    )


def encoder_block(
    net: sym.Symbol, mask: sym.Symbol, units: int = 512, count: int = 8, hidden: int = 2048, dropout: float = 0.1,
    name: str = "block",
) -> sym.Symbol:  # fmt: skip
    """Attention and two dense layers, each with a shortcut and a layer norm: (n, t, units) to the same shape."""
    part = sym.Dropout(attention(net, mask, units, count, f"{name}_attention"), p=dropout)
    net = sym.LayerNorm(net + part, name=f"{name}_norm1")
    part = sym.FullyConnected(net, num_hidden=hidden, flatten=False, name=f"{name}_dense1")
    part = sym.LeakyReLU(part, act_type="gelu", name=f"{name}_gelu")
    part = sym.FullyConnected(part, num_hidden=units, flatten=False, name=f"{name}_dense2")
    return sym.LayerNorm(net + sym.Dropout(part, p=dropout), name=f"{name}_norm2")


def get_symbol(blocks: int = 1, units: int = 512, count: int = 8, hidden: int = 2048) -> sym.Symbol:
    """``blocks`` encoder blocks over ``data`` (n, t, units) with ``mask`` (n, t)."""
    net, mask = sym.Variable("data"), sym.Variable("mask")
    for number in range(blocks):
        net = encoder_block(net, mask, units, count, hidden, name=f"block{number}")
    return net
