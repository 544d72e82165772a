"""ResNet-20 on images of CIFAR's shape, trained by `parallelize`: the trainer that Caffe2 users know.

    python examples/parallelize_resnet.py                        # one device
    python examples/parallelize_resnet.py --devices 0,1          # two replicas in threads, half the batch each
    mpirun -n 4 python examples/parallelize_resnet.py            # four ranks, a quarter of the batch each
    python examples/parallelize_resnet.py --gpu                  # all GPUs
    python examples/parallelize_resnet.py --data cifar.npz       # images (n, 3, 32, 32), labels (n,), test_images, …

Without ``--data`` the images are made: each class has a pattern, seen through noise, and held-out images are told right
(``test_accuracy`` of at least 0.98) after four epochs, also by the small net of
``--blocks 1 --images 256 --batch 16 --epochs 3``, a few seconds' work. With ``--checkpoint model.npz``
every epoch is saved, and a run goes on from what is there, with any number of devices and ranks. Batch normalisation
takes the statistics of the whole batch (``combine_spatial_bn``), so that all of these train alike. The last line is
for programs:
test_accuracy=… loss=… images_per_s=… ranks=…
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

import arrayexec as ax

CLASSES = 10


def residual_block(model: ax.ModelHelper, h: Any, name: str, inputs: int, outputs: int, stride: int) -> Any:
    """Two 3×3 convolutions beside a short cut; a 1×1 convolution on it where the shape changes."""
    left = model.conv(h, f"{name}_conv1", inputs, outputs, 3, stride=stride, pad=1, no_bias=True)
    left = model.relu(model.spatial_bn(left, f"{name}_bn1", outputs), f"{name}_relu1")
    left = model.conv(left, f"{name}_conv2", outputs, outputs, 3, pad=1, no_bias=True)
    left = model.spatial_bn(left, f"{name}_bn2", outputs)
    if inputs != outputs:
        h = model.conv(h, f"{name}_conv3", inputs, outputs, 1, stride=stride, no_bias=True)
        h = model.spatial_bn(h, f"{name}_bn3", outputs)
    return model.relu(model.add([left, h], f"{name}_sum"), f"{name}_relu2")


def resnet(model: ax.ModelHelper, loss_scale: float, blocks: int = 3) -> list[Any]:
    """3 · ``blocks`` residual blocks of 16, 32 and 64 channels, the mean over each image, ten classes."""
    h = model.conv("data", "conv0", 3, 16, 3, pad=1, no_bias=True)
    h = model.relu(model.spatial_bn(h, "bn0", 16), "relu0")
    width = 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            h = residual_block(model, h, f"stage{stage}_block{block}", width, outputs, stride)
            width = outputs
    h = model.flatten(model.average_pool(h, "pool", global_pooling=True), "flat")
    _, loss = model.softmax_with_loss(model.fc(h, "classes", 64, CLASSES), "label")
    model.accuracy("softmax", "label", "accuracy")
    return [model.scale(loss, "scaled_loss", loss_scale)]


def made_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 3, 32, 32) of ten patterns with noise, and their classes."""
    patterns = np.random.default_rng(7).normal(size=(CLASSES, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    return (patterns[labels] + rng.normal(0, 0.5, (count, 3, 32, 32))).astype(np.float32), labels


def load(options: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """Training images and labels, held-out images and labels."""
    if options.data:
        with np.load(options.data) as held:
            return tuple(held[name] for name in ("images", "labels", "test_images", "test_labels"))
    return (*made_images(options.images, 1), *made_images(max(options.images // 4, options.batch), 2))


def test(model: Any, comm: Any, images: np.ndarray, labels: np.ndarray, batch: int) -> float:
    """Share of the held-out images that are told right; the last ones that fill no batch are left out."""
    right = np.zeros(2)
    for start in range(0, len(images) - batch + 1, batch):
        model.feed("data", images[start : start + batch])
        model.feed("label", labels[start : start + batch])
        model.run()
        for device in model.devices:
            rows = len(device.blob("label"))
            right += [float(ax.asnumpy(device.blob("accuracy"))[0]) * rows, rows]
    comm.allreduce(right)
    return right[0] / right[1]


def main() -> None:
    """Train, test and save, epoch by epoch."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 with parallelize.")
    parser.add_argument("--devices", help="numbers of devices, such as 0,1 (default: 0 alone; with --gpu all)")
    parser.add_argument("--gpu", action="store_true", help="train on GPUs")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop", type=int, help="epochs after which to stop and leave the rest for later")
    parser.add_argument("--batch", type=int, default=64, help="images of a batch, over all devices and ranks")
    parser.add_argument("--images", type=int, default=1024, help="how many images are made, without --data")
    parser.add_argument("--blocks", type=int, default=3, help="residual blocks of a stage; 3 is ResNet-20")
    parser.add_argument("--data", help="an npz file with images, labels, test_images, test_labels")
    parser.add_argument("--checkpoint", help="file to save to after every epoch, and to go on from")
    options = parser.parse_args()

    comm = ax.comm.init()  # one rank unless started by mpirun
    ax.random.seed(1)
    images, labels, test_images, test_labels = load(options)
    steps = len(images) // options.batch
    devices = [int(i) for i in options.devices.split(",")] if options.devices else None if options.gpu else [0]
    where = {"devices": devices, "rendezvous": comm, "cpu_device": not options.gpu}

    def net(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
        return resnet(model, loss_scale, options.blocks)

    def optimizer(model: ax.ModelHelper) -> Any:
        schedule = {"policy": "multistep", "boundaries": [steps * options.epochs * part // 4 for part in (2, 3)]}
        return model.build_sgd(0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, gamma=0.1, **schedule)

    helper = ax.ModelHelper("resnet")
    trained = ax.parallelize(
        helper, None, net, optimizer_builder_fun=optimizer, combine_spatial_bn=True, optimize_gradient_memory=True,
        **where,
    ).init()  # fmt: skip
    tester = ax.parallelize(ax.ModelHelper("test", shares=helper), None, net, **where).init()
    if options.checkpoint and os.path.exists(options.checkpoint):
        trained.load(options.checkpoint)

    accuracy, loss, seen, begin = 0.0, 0.0, 0, time.perf_counter()
    for epoch in range(trained.iteration // steps, options.stop or options.epochs):
        order = np.random.default_rng(epoch).permutation(len(images))  # the same on every rank
        for step in range(steps):
            rows = order[step * options.batch : (step + 1) * options.batch]
            trained.feed("data", images[rows])
            trained.feed("label", labels[rows])
            trained.run()
            seen += len(rows)
        total = np.array([trained.loss()])
        comm.allreduce(total)
        loss, seconds = float(total[0]), time.perf_counter() - begin
        accuracy = test(tester, comm, test_images, test_labels, options.batch)
        if options.checkpoint:
            trained.save(options.checkpoint)
        if comm.rank == 0:
            print(f"epoch {epoch:2d}  loss {loss:.4f}  test accuracy {accuracy:.4f}", flush=True)
    if comm.rank == 0:
        speed = seen / seconds if seen else 0.0
        print(f"test_accuracy={accuracy:.4f} loss={loss:.4f} images_per_s={speed:.0f} ranks={comm.size}")


if __name__ == "__main__":
    main()
