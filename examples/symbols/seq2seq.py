"""Sequence to sequence with attention: a two-way LSTM reads, an LSTM that looks back writes (Luong et al. 2015)."""

from __future__ import annotations

import arrayexec as ax
from arrayexec import sym


def attend(query: sym.Symbol, memory: sym.Symbol, units: int, step: int, weights: dict[str, sym.Symbol]) -> sym.Symbol:
    """``query`` (n, units) mixed with what it looks at in ``memory`` (n, t, units)."""
    scores = sym.batch_dot(memory, sym.expand_dims(query, axis=2))
    shares = sym.softmax(scores, axis=1, name=f"attention{step}")
    context = sym.Reshape(sym.batch_dot(shares, memory, transpose_a=True), shape=(-1, units))
    both = sym.Concat(context, query, dim=1)
    mixed = sym.FullyConnected(both, num_hidden=units, name=f"mix{step}", **weights)
    return sym.Activation(mixed, act_type="tanh")


def get_symbol(
    source: int = 32, target: int = 32, words: int = 8000, embedding: int = 256, units: int = 256
) -> sym.Symbol:
    """Softmax over ``words`` at every step of ``target_data`` (n, target), given ``data`` (n, source)."""
    net = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=embedding, name="source_embed")
    encoder = ax.rnn.BidirectionalCell(
        ax.rnn.LSTMCell(units // 2, prefix="forward_"), ax.rnn.LSTMCell(units // 2, prefix="backward_")
    )
    memory, _ = encoder.unroll(source, inputs=net, layout="NTC", merge_outputs=True)
    net = sym.Embedding(sym.Variable("target_data"), input_dim=words, output_dim=embedding, name="target_embed")
    steps = sym.SliceChannel(net, num_outputs=target, axis=1, squeeze_axis=True)
    decoder = ax.rnn.LSTMCell(units, prefix="decoder_")
    states, outputs = decoder.begin_state(), []
    shared = {name: sym.Variable(f"mix_{name}") for name in ("weight", "bias")}
    for step in range(target):
        query, states = decoder(steps[step], states)
        outputs.append(sym.expand_dims(attend(query, memory, units, step, shared), axis=1))
    net = sym.Reshape(sym.Concat(*outputs, dim=1), shape=(-1, units))
    net = sym.FullyConnected(net, num_hidden=words, name="words")
    return sym.SoftmaxOutput(net, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")
