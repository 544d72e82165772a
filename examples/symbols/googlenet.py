"""GoogLeNet: Szegedy et al. 2014, without the auxiliary heads."""

from __future__ import annotations

from arrayexec import sym

#        1×1, 3×3 reduced, 3×3, 5×5 reduced, 5×5, after the pooling
BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64), "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip


def convolution(net: sym.Symbol, filters: int, size: int, name: str, stride: int = 1) -> sym.Symbol:
    """Convolution that keeps the size, up to its stride, and rectifier."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2)}
    net = sym.Convolution(net, num_filter=filters, name=f"conv_{name}", **options)
    return sym.Activation(net, act_type="relu", name=f"relu_{name}")


def pooling(net: sym.Symbol, stride: int, name: str, pad: int = 0) -> sym.Symbol:
    """Largest of 3 × 3."""
    return sym.Pooling(net, kernel=(3, 3), stride=(stride, stride), pad=(pad, pad), pool_type="max", name=name)


def inception(net: sym.Symbol, filters: list[int], name: str) -> sym.Symbol:
    """Four ways beside each other."""
    one, less_three, three, less_five, five, pooled = filters
    name = f"in{name}"
    ways = [
        convolution(net, one, 1, f"{name}_1x1"),
        convolution(convolution(net, less_three, 1, f"{name}_3x3_reduce"), three, 3, f"{name}_3x3"),
        convolution(convolution(net, less_five, 1, f"{name}_5x5_reduce"), five, 5, f"{name}_5x5"),
        convolution(pooling(net, 1, f"{name}_pool", 1), pooled, 1, f"{name}_proj"),
    ]
    return sym.Concat(*ways, name=f"ch_concat_{name}_chconcat")


def get_symbol(num_classes: int = 1000, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w), 224 × 224 in the paper."""
    net = pooling(convolution(sym.Variable("data"), int(64 * width), 7, "conv1", 2), 2, "pool1")
    net = convolution(convolution(net, int(64 * width), 1, "conv2"), int(192 * width), 3, "conv3")
    net = pooling(net, 2, "pool3")
    for name, filters in BLOCKS.items():
        net = inception(net, [int(f * width) for f in filters], name)
        if name in ("3b", "4e"):
            net = pooling(net, 2, f"pool{name[0]}")
    net = sym.Pooling(net, kernel=(7, 7), global_pool=True, pool_type="avg", name="global_pool")
    net = sym.FullyConnected(sym.Flatten(net), num_hidden=num_classes, name="fc1")
    return sym.SoftmaxOutput(net, name="softmax")
