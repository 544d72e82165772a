"""SSD-300 on a reduced VGG-16: Liu et al. 2015. One pass predicts classes and boxes at 8,732 anchors."""

from __future__ import annotations

from arrayexec import sym

SIZES = ((0.1, 0.141), (0.2, 0.272), (0.37, 0.447), (0.54, 0.619), (0.71, 0.79), (0.88, 0.961))
RATIOS = ((1, 2, 0.5), *[(1, 2, 0.5, 3, 1.0 / 3)] * 3, (1, 2, 0.5), (1, 2, 0.5))
STEPS = tuple(step / 300 for step in (8, 16, 32, 64, 100, 300))
#        filters of the 1×1 and of the 3×3 convolution, padding, stride
EXTRA = ((256, 512, 1, 2), (128, 256, 1, 2), (128, 256, 0, 1), (128, 256, 0, 1))


def convolution(net: sym.Symbol, filters: float, name: str, size: int = 3, **options: object) -> sym.Symbol:
    """Convolution and rectifier."""
    net = sym.Convolution(net, kernel=(size, size), num_filter=int(filters), name=f"conv{name}", **options)
    return sym.Activation(net, act_type="relu", name=f"relu{name}")


def features(net: sym.Symbol, width: float) -> list[sym.Symbol]:
    """Six maps of falling size: 38, 19, 10, 5, 3, 1 for images of 300 × 300."""
    maps = []
    for stage, (count, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, count + 1):
            net = convolution(net, filters * width, f"{stage}_{number}", pad=(1, 1))
        if stage == 4:
            maps.append(net)
        size, stride, pad = (3, 1, 1) if stage == 5 else (2, 2, 0)
        net = sym.Pooling(
            net, kernel=(size, size), stride=(stride, stride), pad=(pad, pad), pool_type="max",
            pooling_convention="full", name=f"pool{stage}",
        )  # fmt: skip
    net = convolution(net, 1024 * width, "6", pad=(6, 6), dilate=(6, 6))
    net = convolution(net, 1024 * width, "7", size=1)
    maps.append(net)
    for number, (less, filters, pad, stride) in enumerate(EXTRA, 8):
        net = convolution(net, less * width, f"{number}_1", size=1)
        net = convolution(net, filters * width, f"{number}_2", pad=(pad, pad), stride=(stride, stride))
        maps.append(net)
    return maps


def flat(net: sym.Symbol) -> sym.Symbol:
    """(n, c, h, w) to (n, h·w·c)."""
    return sym.Flatten(sym.transpose(net, axes=(0, 2, 3, 1)))


def head(maps: list[sym.Symbol], classes: int, width: float) -> tuple[sym.Symbol, sym.Symbol, sym.Symbol]:
    """Scores (n, classes + 1, anchors), box offsets (n, anchors·4), anchors (1, anchors, 4)."""
    scores, boxes, anchors = [], [], []
    for number, (net, sizes, ratios, step) in enumerate(zip(maps, SIZES, RATIOS, STEPS, strict=True)):
        name, count = net.name, len(sizes) + len(ratios) - 1
        if number == 0:
            scale = sym.Variable(f"{name}_scale", shape=(1, int(512 * width), 1, 1), init='["constant", {"value": 20}]')
            net = sym.broadcast_mul(scale, sym.L2Normalization(net, mode="channel", name=f"{name}_norm"))
        for found, filters, what in ((boxes, 4, "loc"), (scores, classes + 1, "cls")):
            options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": count * filters}
            found.append(flat(sym.Convolution(net, name=f"{name}_{what}_pred_conv", **options)))
        prior = {"sizes": sizes, "ratios": ratios, "steps": (step, step), "clip": False}
        anchors.append(sym.Flatten(sym._contrib_MultiBoxPrior(net, name=f"{name}_anchors", **prior)))
    every = sym.Reshape(sym.Concat(*scores, dim=1), shape=(0, -1, classes + 1))
    every = sym.transpose(every, axes=(0, 2, 1), name="multibox_cls_pred")
    places = sym.Reshape(sym.Concat(*anchors, dim=1), shape=(0, -1, 4), name="multibox_anchors")
    return every, sym.Concat(*boxes, dim=1, name="multibox_loc_pred"), places


def get_symbol(classes: int = 20, width: float = 1.0) -> sym.Symbol:
    """Detections (n, anchors, 6) as [class, score, x1, y1, x2, y2] of images (n, 3, 300, 300)."""
    scores, boxes, anchors = head(features(sym.Variable("data"), width), classes, width)
    shares = sym.SoftmaxActivation(scores, mode="channel", name="cls_prob")
    options = {"nms_threshold": 0.5, "force_suppress": False, "variances": (0.1, 0.1, 0.2, 0.2), "nms_topk": 400}
    return sym._contrib_MultiBoxDetection(shares, boxes, anchors, name="detection", **options)


def get_train_symbol(classes: int = 20, width: float = 1.0) -> sym.Symbol:
    """Losses against ``label`` (n, objects, 5) as [class, x1, y1, x2, y2], -1 where there is no object."""
    scores, boxes, anchors = head(features(sym.Variable("data"), width), classes, width)
    target = sym._contrib_MultiBoxTarget(
        anchors, sym.Variable("label"), scores, overlap_threshold=0.5, ignore_label=-1, negative_mining_ratio=3,
        minimum_negative_samples=0, negative_mining_thresh=0.5, variances=(0.1, 0.1, 0.2, 0.2), name="multibox_target",
    )  # fmt: skip
    loss = sym.SoftmaxOutput(
        scores, target[2], ignore_label=-1, use_ignore=True, multi_output=True, normalization="valid", name="cls_prob"
    )
    gap = sym.smooth_l1(target[1] * (boxes - target[0]), scalar=1.0, name="loc_loss_")
    gap = sym.MakeLoss(gap, grad_scale=1.0, normalization="valid", name="loc_loss")
    return sym.Group([loss, gap, sym.BlockGrad(target[2], name="cls_label")])
