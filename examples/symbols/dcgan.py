"""DCGAN, generator and discriminator of 64 × 64 images: Radford et al. 2015."""

from __future__ import annotations

from arrayexec import sym

NORM = {"fix_gamma": True, "eps": 1e-5 + 1e-12}
SQUARE = {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "no_bias": True}


def generator(width: float = 1.0, channels: int = 3) -> sym.Symbol:
    """Images (n, channels, 64, 64) in (-1, 1) from ``rand`` (n, k, 1, 1)."""
    wide = int(64 * width)
    net = sym.Deconvolution(sym.Variable("rand"), kernel=(4, 4), num_filter=8 * wide, no_bias=True, name="g1")
    for number, filters in enumerate((4 * wide, 2 * wide, wide, channels), 2):
        net = sym.BatchNorm(net, name=f"gbn{number - 1}", **NORM)
        net = sym.Activation(net, act_type="relu", name=f"gact{number - 1}")
        net = sym.Deconvolution(net, num_filter=filters, name=f"g{number}", **SQUARE)
    return sym.Activation(net, act_type="tanh", name="gact5")


def discriminator(width: float = 1.0) -> sym.Symbol:
    """Probability that images ``data`` (n, c, 64, 64) are real, with a logistic loss against ``label`` (n, 1)."""
    net = sym.Variable("data")
    for number, filters in enumerate((1, 2, 4, 8), 1):
        net = sym.Convolution(net, num_filter=int(64 * width) * filters, name=f"d{number}", **SQUARE)
        if number > 1:
            net = sym.BatchNorm(net, name=f"dbn{number}", **NORM)
        net = sym.LeakyReLU(net, act_type="leaky", slope=0.2, name=f"dact{number}")
    net = sym.Flatten(sym.Convolution(net, kernel=(4, 4), num_filter=1, no_bias=True, name="d5"))
    return sym.LogisticRegressionOutput(net, sym.Variable("label"), name="dloss")
