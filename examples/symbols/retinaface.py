"""A face detector after RetinaFace (Deng et al. 2019): feature pyramid, context modules, three heads a level."""

from __future__ import annotations

from arrayexec import sym

STRIDES = (32, 16, 8)
ANCHORS = 2  # a place


def convolution(
    net: sym.Symbol, filters: float, name: str, size: int = 3, stride: int = 1, rectify: bool = True
) -> sym.Symbol:
    """Convolution, norm and, if asked for, rectifier."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2)}
    net = sym.Convolution(net, num_filter=int(filters), name=name, **options)
    net = sym.BatchNorm(net, fix_gamma=False, eps=2e-5, momentum=0.9, name=f"{name}_bn")
    return sym.Activation(net, act_type="relu", name=f"{name}_relu") if rectify else net


def backbone(net: sym.Symbol, width: float) -> dict[int, sym.Symbol]:
    """Maps by stride. Any backbone takes its place."""
    found = {}
    for stage, filters in enumerate((16, 32, 64, 128, 256), 1):
        net = convolution(net, filters * width, f"stage{stage}_1", stride=2)
        net = convolution(net, filters * width, f"stage{stage}_2")
        found[2**stage] = net
    return found


def pyramid(maps: dict[int, sym.Symbol], filters: float) -> dict[int, sym.Symbol]:
    """Each level with what the coarser ones saw: doubled in size, cut to fit, added."""
    found, above = {}, None
    for stride in STRIDES:
        net = convolution(maps[stride], filters, f"rf_c{stride}_lateral", size=1)
        if above is not None:
            above = sym.UpSampling(above, scale=2, sample_type="nearest", name=f"rf_c{stride}_upsampling")
            net = net + sym.Crop(above, net, name=f"rf_c{stride}_crop")
            net = convolution(net, filters, f"rf_c{stride}_aggr")
        found[stride] = above = net
    return found


def context(net: sym.Symbol, filters: float, name: str) -> sym.Symbol:
    """Three widths of view beside each other."""
    three = convolution(net, filters / 2, f"{name}_conv1", rectify=False)
    five = convolution(net, filters / 4, f"{name}_context_conv1")
    seven = convolution(five, filters / 4, f"{name}_context_conv3_1")
    seven = convolution(seven, filters / 4, f"{name}_context_conv3_2", rectify=False)
    five = convolution(five, filters / 4, f"{name}_context_conv2", rectify=False)
    return sym.Activation(sym.concat(three, five, seven, dim=1, name=f"{name}_concat"), act_type="relu")


def head(net: sym.Symbol, values: int, name: str, stride: int) -> sym.Symbol:
    """(n, values·anchors, places)."""
    net = sym.Convolution(net, kernel=(1, 1), num_filter=values * ANCHORS, name=f"{name}_stride{stride}")
    return sym.Reshape(net, shape=(0, 0, -1), name=f"{name}_reshape_stride{stride}")


def regression(net: sym.Symbol, what: str, stride: int, weight: float) -> sym.Symbol:
    """Smooth L1 loss of ``net`` where ``<what>_weight`` is not 0."""
    target, mask = (sym.Variable(f"{what}_{part}_stride{stride}") for part in ("target", "weight"))
    loss = sym.smooth_l1((net - target) * mask, scalar=3.0, name=f"{what}_loss_stride{stride}_t")
    return sym.MakeLoss(loss, grad_scale=weight, name=f"{what}_loss_stride{stride}")


def get_symbol(width: float = 1.0) -> sym.Symbol:
    """Losses of face or not (labels 1, 0, -1 ignored), box and five landmarks, for every level of images ``data``."""
    levels = pyramid(backbone(sym.Variable("data"), width), 64 * width)
    outputs = []
    for stride in STRIDES:
        net = context(levels[stride], 64 * width, f"rf_head_stride{stride}")
        scores = sym.Reshape(head(net, 2, "face_rpn_cls_score", stride), shape=(0, 2, -1))
        label = sym.Variable(f"face_rpn_label_stride{stride}")
        outputs.append(
            sym.SoftmaxOutput(
                scores, label, multi_output=True, normalization="valid", use_ignore=True, ignore_label=-1,
                name=f"face_rpn_cls_prob_stride{stride}",
            )
        )  # fmt: skip
        boxes = head(net, 4, "face_rpn_bbox_pred", stride)
        outputs.append(regression(boxes, "face_rpn_bbox", stride, 0.25))
        points = head(net, 10, "face_rpn_landmark_pred", stride)
        outputs.append(regression(points, "face_rpn_landmark", stride, 0.1))
    return sym.Group(outputs)
