"""MobileNet v1 and v2: Howard et al. 2017, Sandler et al. 2018."""

from __future__ import annotations

from arrayexec import sym

V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
#     expansion, filters, repeats, stride of the first
V2 = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def convolution(
    net: sym.Symbol, filters: int, name: str, size: int = 1, stride: int = 1, groups: int = 1, rectify: str = "relu"
) -> sym.Symbol:
    """Convolution, norm and, unless ``rectify`` is empty, relu or relu6."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2), "num_group": groups}
    net = sym.Convolution(net, num_filter=filters, no_bias=True, name=name, **options)
    net = sym.BatchNorm(net, fix_gamma=False, eps=1e-5, momentum=0.9, name=f"{name}_bn")
    if rectify == "relu6":
        return sym.clip(net, a_min=0, a_max=6, name=f"{name}_relu6")
    return sym.Activation(net, act_type="relu", name=f"{name}_relu") if rectify else net


def version_1(net: sym.Symbol, width: float) -> sym.Symbol:
    """Depthwise and pointwise convolutions in turn."""
    before = int(32 * width)
    net = convolution(net, before, "conv_1", 3, 2)
    for number, (filters, stride) in enumerate(V1, 2):
        net = convolution(net, before, f"conv_{number}_dw", 3, stride, groups=before)
        before = int(filters * width)
        net = convolution(net, before, f"conv_{number}")
    return net


def version_2(net: sym.Symbol, width: float) -> sym.Symbol:
    """Inverted residuals with linear ends."""
    before = int(32 * width)
    net = convolution(net, before, "first", 3, 2, rectify="relu6")
    for block, (expansion, filters, repeats, first) in enumerate(V2):
        for number in range(repeats):
            name, shortcut, stride = f"seq{block}_block{number}", net, first if number == 0 else 1
            inner, after = before * expansion, int(filters * width)
            if expansion > 1:
                net = convolution(net, inner, f"{name}_exp", rectify="relu6")
            net = convolution(net, inner, f"{name}_dw", 3, stride, groups=inner, rectify="relu6")
            net = convolution(net, after, f"{name}_linear", rectify="")
            if stride == 1 and before == after:
                net = net + shortcut
            before = after
    return convolution(net, int(1280 * width), "last", rectify="relu6")


def get_symbol(num_classes: int = 1000, version: int = 1, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w)."""
    net = (version_2 if version == 2 else version_1)(sym.Variable("data"), width)
    net = sym.Pooling(net, kernel=(7, 7), global_pool=True, pool_type="avg", name="global_pool")
    net = sym.FullyConnected(sym.Flatten(net), num_hidden=num_classes, name="fc")
    return sym.SoftmaxOutput(net, name="softmax")
