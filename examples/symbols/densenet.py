"""DenseNet-121 and its deeper brothers: Huang et al. 2016."""

from __future__ import annotations

from arrayexec import sym

UNITS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}


def norm_relu(net: sym.Symbol, name: str) -> sym.Symbol:
    """Norm and rectifier."""
    net = sym.BatchNorm(net, fix_gamma=False, eps=2e-5, momentum=0.9, name=f"{name}_bn")
    return sym.Activation(net, act_type="relu", name=f"{name}_relu")


def convolution(net: sym.Symbol, filters: int, size: int, name: str, stride: int = 1) -> sym.Symbol:
    """Convolution that keeps the size, up to its stride."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2), "no_bias": True}
    return sym.Convolution(net, num_filter=filters, name=f"{name}_conv", **options)


def get_symbol(num_classes: int = 1000, depth: int = 121, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w)."""
    growth, filters = int(32 * width), int(64 * width)
    net = norm_relu(convolution(sym.Variable("data"), filters, 7, "first", 2), "first")
    net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="first_pool")
    for stage, count in enumerate(UNITS[depth], 1):
        for number in range(1, count + 1):
            name = f"stage{stage}_unit{number}"
            new = convolution(norm_relu(net, f"{name}_1"), 4 * growth, 1, f"{name}_1")
            new = convolution(norm_relu(new, f"{name}_2"), growth, 3, f"{name}_2")
            net = sym.Concat(net, new, name=f"{name}_concat")
        filters += count * growth
        if stage < len(UNITS[depth]):
            filters //= 2
            net = convolution(norm_relu(net, f"tr_stage{stage}"), filters, 1, f"tr_stage{stage}")
            net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="avg", name=f"tr_stage{stage}_pool")
    net = sym.Pooling(norm_relu(net, "last"), kernel=(7, 7), global_pool=True, pool_type="avg", name="last_pool")
    net = sym.FullyConnected(sym.Flatten(net), num_hidden=num_classes, name="fc1")
    return sym.SoftmaxOutput(net, name="softmax")
