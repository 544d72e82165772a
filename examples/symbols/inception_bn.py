"""Inception-BN: Ioffe and Szegedy 2015."""

from __future__ import annotations

from arrayexec import sym

#        1×1, 3×3 reduced, 3×3, two 3×3 reduced, two 3×3, kind of pooling, after the pooling
KEEP = {
    "3a": (64, 64, 64, 64, 96, "avg", 32), "3b": (64, 64, 96, 64, 96, "avg", 64),
    "4a": (224, 64, 96, 96, 128, "avg", 128), "4b": (192, 96, 128, 96, 128, "avg", 128),
    "4c": (160, 128, 160, 128, 160, "avg", 128), "4d": (96, 128, 192, 160, 192, "avg", 128),
    "5a": (352, 192, 320, 160, 224, "avg", 128), "5b": (352, 192, 320, 192, 224, "max", 128),
}  # fmt: skip
HALVE = {"3c": (128, 160, 64, 96), "4e": (128, 192, 192, 256)}
ORDER = ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b")


def convolution(net: sym.Symbol, filters: float, size: int, name: str, stride: int = 1) -> sym.Symbol:
    """Convolution, norm, rectifier."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2)}
    net = sym.Convolution(net, num_filter=int(filters), name=f"conv_{name}", **options)
    net = sym.BatchNorm(net, fix_gamma=False, eps=1e-3 + 1e-5, momentum=0.9, name=f"bn_{name}")
    return sym.Activation(net, act_type="relu", name=f"relu_{name}")


def pooling(net: sym.Symbol, stride: int, kind: str, name: str, pad: int = 1) -> sym.Symbol:
    """Pooling over 3 × 3."""
    return sym.Pooling(net, kernel=(3, 3), stride=(stride, stride), pad=(pad, pad), pool_type=kind, name=name)


def keep(net: sym.Symbol, name: str, width: float) -> sym.Symbol:
    """Four ways beside each other, of the same size."""
    one, less, three, less_double, double, kind, pooled = KEEP[name]
    last = convolution(net, less_double * width, 1, f"{name}_double_3x3_reduce")
    for number in (0, 1):
        last = convolution(last, double * width, 3, f"{name}_double_3x3_{number}")
    ways = [
        convolution(net, one * width, 1, f"{name}_1x1"),
        convolution(convolution(net, less * width, 1, f"{name}_3x3_reduce"), three * width, 3, f"{name}_3x3"),
        last,
        convolution(pooling(net, 1, kind, f"{kind}_pool_{name}_pool"), pooled * width, 1, f"{name}_proj"),
    ]
    return sym.Concat(*ways, name=f"ch_concat_{name}_chconcat")


def halve(net: sym.Symbol, name: str, width: float) -> sym.Symbol:
    """Three ways beside each other, of half the size."""
    less, three, less_double, double = HALVE[name]
    last = convolution(net, less_double * width, 1, f"{name}_double_3x3_reduce")
    last = convolution(last, double * width, 3, f"{name}_double_3x3_0")
    ways = [
        convolution(convolution(net, less * width, 1, f"{name}_3x3_reduce"), three * width, 3, f"{name}_3x3", 2),
        convolution(last, double * width, 3, f"{name}_double_3x3_1", 2),
        pooling(net, 2, "max", f"max_pool_{name}_pool"),
    ]
    return sym.Concat(*ways, name=f"ch_concat_{name}_chconcat")


def get_symbol(num_classes: int = 1000, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w), 224 × 224 in the paper."""
    net = pooling(convolution(sym.Variable("data"), 64 * width, 7, "1", 2), 2, "max", "pool_1", 0)
    net = convolution(convolution(net, 64 * width, 1, "2_red"), 192 * width, 3, "2")
    net = pooling(net, 2, "max", "pool_2", 0)
    for name in ORDER:
        net = (keep if name in KEEP else halve)(net, name, width)
    net = sym.Pooling(net, kernel=(7, 7), global_pool=True, pool_type="avg", name="global_pool")
    net = sym.FullyConnected(sym.Flatten(net, name="flatten"), num_hidden=num_classes, name="fc1")
    return sym.SoftmaxOutput(net, name="softmax")
