"""Margin loss of ArcFace: Deng et al. 2018. The angle to the right class is made larger before the softmax."""

from __future__ import annotations

from arrayexec import sym


def embedding(net: sym.Symbol, size: int, width: float = 1.0) -> sym.Symbol:
    """A small face network: (n, 3, h, w) to (n, size). Any backbone takes its place."""
    for number, filters in enumerate((64, 128, 256, 512)):
        options = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "no_bias": True}
        net = sym.Convolution(net, num_filter=int(filters * width), name=f"conv{number}", **options)
        net = sym.BatchNorm(net, fix_gamma=False, eps=2e-5, momentum=0.9, name=f"bn{number}")
        net = sym.LeakyReLU(net, act_type="prelu", name=f"relu{number}")
    net = sym.Dropout(sym.BatchNorm(net, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn"), p=0.4)
    net = sym.FullyConnected(net, num_hidden=size, name="pre_fc1")
    return sym.BatchNorm(net, fix_gamma=True, eps=2e-5, momentum=0.9, name="fc1")


def margin_loss(
    net: sym.Symbol, label: sym.Symbol, classes: int, size: int, scale: float = 64.0, margin: float = 0.5,
    dtype: str = "float32",
) -> sym.Symbol:  # fmt: skip
    """Logits (n, classes) whose right class has cos(angle + margin) in place of cos(angle), times ``scale``."""
    weight = sym.Variable("fc7_weight", shape=(classes, size), lr_mult=1.0)
    weight = sym.L2Normalization(weight, mode="instance")
    net = sym.L2Normalization(net, mode="instance", name="fc1n") * scale
    logits = sym.FullyConnected(net, weight, no_bias=True, num_hidden=classes, name="fc7")
    cosine = sym.pick(logits, label, axis=1) / scale
    moved = sym.cos(sym.arccos(cosine) + margin) * scale
    mask = sym.one_hot(label, depth=classes, on_value=1.0, off_value=0.0, dtype=dtype)
    change = sym.expand_dims(moved - cosine * scale, axis=1)
    return logits + sym.broadcast_mul(mask, change)


def get_symbol(classes: int = 10000, size: int = 512, width: float = 1.0, dtype: str = "float32") -> sym.Symbol:
    """The embedding as a value to look at, and the softmax of the margin loss."""
    net, label = embedding(sym.Variable("data"), size, width), sym.Variable("softmax_label")
    logits = margin_loss(net, label, classes, size, dtype=dtype)
    loss = sym.SoftmaxOutput(logits, label, normalization="valid", name="softmax")
    return sym.Group([sym.BlockGrad(net), loss])
