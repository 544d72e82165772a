"""Single-shot detection on pictures with coloured boxes: MultiBoxPrior, MultiBoxTarget, two losses, MultiBoxDetection.

    python examples/from_mxnet/train_ssd.py --num-epochs 12
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx

CLASSES = 2
SIZES, RATIOS = ([0.3, 0.4], [0.5, 0.6]), ([1, 2, 0.5], [1, 2, 0.5])


def scores():
    """Class scores (n, CLASSES + 1, anchors), box offsets (n, anchors · 4), anchors (1, anchors, 4)."""
    net, layers = mx.sym.Variable("data"), []
    for number, filters in enumerate((16, 32, 32, 32)):
        net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"conv{number}")
        net = mx.sym.BatchNorm(net, fix_gamma=False, name=f"bn{number}")
        net = mx.sym.Activation(net, act_type="relu")
        net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
        layers.append(net)
    classes, offsets, anchors = [], [], []
    for number, (layer, sizes, ratios) in enumerate(zip(layers[-2:], SIZES, RATIOS, strict=True)):
        boxes = len(sizes) + len(ratios) - 1
        found = mx.sym.Convolution(
            layer, kernel=(3, 3), pad=(1, 1), num_filter=boxes * (CLASSES + 1), name=f"cls{number}"
        )
        classes.append(mx.sym.Flatten(mx.sym.transpose(found, axes=(0, 2, 3, 1))))
        found = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=boxes * 4, name=f"loc{number}")
        offsets.append(mx.sym.Flatten(mx.sym.transpose(found, axes=(0, 2, 3, 1))))
        anchors.append(mx.sym.contrib.MultiBoxPrior(layer, sizes=sizes, ratios=ratios, clip=True))
    classes = mx.sym.Reshape(mx.sym.Concat(*classes, dim=1), shape=(0, -1, CLASSES + 1))
    return mx.sym.transpose(classes, axes=(0, 2, 1)), mx.sym.Concat(*offsets, dim=1), mx.sym.Concat(*anchors, dim=1)


def training():
    classes, offsets, anchors = scores()
    loc_target, loc_mask, cls_target = mx.sym.contrib.MultiBoxTarget(
        anchors, mx.sym.Variable("label"), classes, overlap_threshold=0.5, ignore_label=-1, negative_mining_ratio=3,
        negative_mining_thresh=0.5, minimum_negative_samples=0, variances=(0.1, 0.1, 0.2, 0.2), name="target",
    )  # fmt: skip
    cls_prob = mx.sym.SoftmaxOutput(
        classes, cls_target, ignore_label=-1, use_ignore=True, multi_output=True, normalization="valid", name="cls_prob"
    )
    difference = mx.sym.smooth_l1(loc_mask * (offsets - loc_target), scalar=1.0)
    loc_loss = mx.sym.MakeLoss(difference, grad_scale=1.0, normalization="valid", name="loc_loss")
    return mx.sym.Group([cls_prob, loc_loss, mx.sym.BlockGrad(cls_target), mx.sym.BlockGrad(loc_mask)])


def detection():
    classes, offsets, anchors = scores()
    chances = mx.sym.SoftmaxActivation(classes, mode="channel", name="cls_prob")
    return mx.sym.contrib.MultiBoxDetection(
        chances, offsets, anchors, nms_threshold=0.4, force_suppress=False, variances=(0.1, 0.1, 0.2, 0.2), name="found"
    )  # fmt: skip


class Losses(mx.metric.EvalMetric):
    """Cross entropy of the classes that count, smooth L1 of the boxes that are matched."""

    def __init__(self):
        super().__init__("losses")

    def reset(self):
        self.sums, self.counts = [0.0, 0.0], [0, 0]

    def update(self, labels, preds):
        chances, loss, target, mask = (array.asnumpy() for array in preds)
        target = target.astype(int)
        wanted = np.take_along_axis(chances, np.maximum(target, 0)[:, None], axis=1)[:, 0]
        self.sums[0] -= np.log(np.maximum(wanted[target >= 0], 1e-12)).sum()
        self.counts[0] += int((target >= 0).sum())
        self.sums[1] += loss.sum()
        self.counts[1] += int(mask.sum()) // 4

    def get(self):
        means = [total / max(count, 1) for total, count in zip(self.sums, self.counts, strict=True)]
        return ["cross_entropy", "smooth_l1"], means


def overlap(a, b):
    """Area of both over area of either."""
    inner = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return inner / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    train = mx.io.NDArrayIter(*synthetic.boxes(500, seed=0), args.batch_size, shuffle=True, label_name="label")
    module = mx.mod.Module(training(), label_names=("label",), context=mx.cpu())
    module.fit(
        train,
        eval_metric=Losses(),
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 5e-4, "rescale_grad": 1.0},
        initializer=mx.init.Xavier(),
        num_epoch=args.num_epochs,
        batch_end_callback=mx.callback.Speedometer(args.batch_size, 10),
    )

    pictures, labels = synthetic.boxes(100, seed=1)
    test = mx.io.NDArrayIter(pictures, batch_size=args.batch_size)
    detector = mx.mod.Module(detection(), label_names=None, context=mx.cpu())
    detector.bind(test.provide_data, for_training=False)
    detector.set_params(*module.get_params())
    found = detector.predict(test).asnumpy()
    hits = boxes = 0
    for rows, truth in zip(found, labels, strict=True):
        sure = rows[(rows[:, 0] >= 0) & (rows[:, 1] > 0.5)]
        for kind, *box in truth[truth[:, 0] >= 0]:
            boxes += 1
            hits += any(row[0] == kind and overlap(row[2:], np.array(box)) > 0.5 for row in sure)
    print("recall=%.3f" % (hits / boxes))


if __name__ == "__main__":
    main()
